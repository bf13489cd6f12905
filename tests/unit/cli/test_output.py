"""What tables show, and what they never let through."""

import contextlib
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.cli import output
from axern.cli.actions.environment import environment
from axern.cli.actions.foreground import RECONNECT_S, Patience
from axern.cli.actions.target import checked_id, query
from axern.cli.dispatch import wants_json
from axern.errors import DaemonUnreachable
from ledger.errors import CODES, AxernError, InvalidArgument
from ledger.resources import BY_NAME


@given(st.text())
def test_nothing_that_is_shown_can_drive_a_terminal(text: str) -> None:
    shown = output.visible(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_what_is_not_printable_is_spelled_out() -> None:
    assert output.visible("a\x1b[2J\n\u202e\x9b\udcff") == r"a\x1b[2J\n\u202e\x9b\udcff"


@pytest.mark.parametrize(
    ("dimension", "value", "shown"),
    [
        ("cpu_milli", 1500, "1500m"),
        ("cpu_milli", 123_457, "123457m"),
        ("memory_bytes", 4 * 1024**3, "4GiB"),
        ("memory_bytes", 4 * 1024**3 - 1, "3.99GiB"),
        ("memory_bytes", 1023, "1023B"),
        ("memory_bytes", 1024**4 + 1, "1.00TiB"),
        ("memory_bytes", 0, "0B"),
        ("memory_bytes", None, "-"),
        ("sandbox_slots", 10_000_000_000, "10000000000"),
    ],
)
def test_amounts_are_short_and_never_too_large(
    dimension: str, value: int | None, shown: str
) -> None:
    assert output.amount(BY_NAME[dimension], value) == shown


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_exit_code(code: str) -> None:
    error = AxernError("x")
    error.code = code
    assert output.exit_code(error) == CODES[code].exit_code


def test_a_code_of_a_newer_daemon_is_a_1() -> None:
    error = AxernError("x")
    error.code = "not_invented_yet"
    assert output.exit_code(error) == 1


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["node", "status", "-o", "json"], True),
        (["node", "status", "-ojson"], True),
        (["node", "status", "--output=json"], True),
        (["reservations", "list", "--format", "ndjson"], True),
        (["node", "status", "-o", "table"], False),
        (["run", "--", "kubectl", "-o", "json"], False),
        ([], False),
    ],
)
def test_when_errors_are_json(words: list[str], wanted: bool) -> None:
    assert wants_json(words) is wanted


@pytest.mark.parametrize("text", ["abc", "xyz1", "", "a" * 33, "../abcd", "ab cd", "abcd?x"])
def test_what_is_no_id_never_reaches_a_path(text: str) -> None:
    with pytest.raises(InvalidArgument, match="hexadecimal"):
        checked_id(text)


def test_ids_may_be_short_and_in_capitals() -> None:
    assert checked_id("ABCD") == "abcd"


def test_queries_are_quoted() -> None:
    assert query("/x", a=None) == "/x"
    assert query("/x", a="b c&d=e\n", b=None, c=0) == "/x?a=b+c%26d%3De%0A&c=0"


def test_a_variable_may_hold_an_equals_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "x")
    assert environment(["A=b=c", "EMPTY=", "HERE"]) == {"A": "b=c", "EMPTY": "", "HERE": "x"}


def test_patience_ends() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    patience = Patience(lambda: now[0], sleep)
    error = DaemonUnreachable("gone")
    for _ in range(3):
        patience.wait(error)
    patience.succeed()
    began = now[0]

    def wait_for_ever() -> None:
        while True:
            patience.wait(error)

    with pytest.raises(DaemonUnreachable):
        wait_for_ever()
    assert RECONNECT_S <= now[0] - began < RECONNECT_S + 3


TABLE = (
    "from axern.cli.table import put_table;"
    "name = '[bold]x[/bold] \\x1b[31m' + 'long ' * 9;"
    "put_table(('ID', 'NAME'), [('0123456789ab', name), (1, 2)])"
)
NAME = r"[bold]x[/bold] \x1b[31m" + ("long " * 9).rstrip()


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (30, ["id:   0123456789ab", f"name: {NAME}", "", "id:   1", "name: 2"]),
        (200, ["ID            NAME", f"0123456789ab  {NAME}", "1             2"]),
    ],
)
def test_a_terminal_of_any_width_shows_everything(columns: int, lines: list[str]) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "NO_COLOR": "1"}
    subprocess.run([sys.executable, "-c", TABLE], stdout=theirs, env=environment, check=True)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    assert [line.rstrip() for line in seen.decode().splitlines()] == lines


def test_a_pipe_gets_plain_columns() -> None:
    environment = os.environ | {"COLUMNS": "30"}
    command = [sys.executable, "-c", TABLE]
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert done.stdout.decode().splitlines()[0] == "ID            NAME"
