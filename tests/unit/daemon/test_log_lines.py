"""Whatever a record quotes, the log has one printable, bounded line of it."""

from __future__ import annotations

import logging
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from axern.daemon.log_lines import MESSAGE_LIMIT, LineFormatter, printable

HOSTILE = "a\n\r\x1b[2J\x00\x07\x85\u2028\u202eb\udcff"


def line(message: str, *arguments: object, error: Exception | None = None) -> str:
    """Return what the daemon would write."""
    reason = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("axern.test", logging.ERROR, __file__, 1, message, arguments, reason)
    return LineFormatter().format(record)


def raised(text: str) -> Exception:
    """Return an exception that has a traceback and a cause."""
    try:
        try:
            raise KeyError(text)
        except KeyError as cause:
            raise ValueError(text) from cause
    except ValueError as error:
        return error


def is_plain(text: str) -> bool:
    return all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)


def test_an_ordinary_line_stays_as_it_is() -> None:
    assert line("köln: %s of %s", 1, 2) == "ERROR axern.test: köln: 1 of 2"


@given(st.text(max_size=200), st.booleans())
@example(HOSTILE, False)
@example(HOSTILE, True)
def test_one_record_is_one_printable_line(text: str, with_error: bool) -> None:
    written = line("%s", text, error=raised(text) if with_error else None)
    assert is_plain(written)
    assert written.startswith("ERROR axern.test: ")


def test_a_traceback_names_file_and_cause_on_the_same_line() -> None:
    written = line("it broke", error=raised("why"))
    for part in ("ERROR axern.test: it broke | Traceback", "test_log_lines.py", "KeyError: 'why'"):
        assert part in written
    assert written.endswith("ValueError: why")


@pytest.mark.parametrize("length", [MESSAGE_LIMIT // 2, 10 * MESSAGE_LIMIT])
def test_a_long_line_is_cut_in_the_middle_and_says_so(length: int) -> None:
    text = "a" * length + "z"
    shown = printable(text, MESSAGE_LIMIT)
    assert shown[0] == "a"
    assert shown[-1] == "z"
    assert ("more]" in shown) == (length > MESSAGE_LIMIT)
    assert len(line("%s", text, error=raised(text))) < 3 * MESSAGE_LIMIT


def test_a_wrong_call_costs_no_line() -> None:
    assert "could not be written" in line("%d", "no number")


PROGRAM = """
import logging, sys, threading, warnings
from axern.daemon import log_lines
log_lines.set_up(sys.stderr, verbose=False)
warnings.warn("a\\nwarning")
class Bad:
    def __del__(self): raise ValueError("ValueError: in | del")
Bad()
thread = threading.Thread(target=lambda: int("no\\nnumber"))
thread.start(); thread.join()
raise RuntimeError("RuntimeError: last | words")
"""


def test_what_python_says_itself_goes_the_same_way() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert len(lines) == 4
    found = ("a\\nwarning", "ValueError: in | del", "invalid literal", "RuntimeError: last | words")
    assert all(part in line for part, line in zip(found, lines, strict=True)), lines
