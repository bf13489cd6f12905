"""No control code and no bidirectional override reaches a terminal by way of a table or message."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.cli.output import cell, put_fields, say, visible
from axern.daemon.log_lines import printable

HOSTILE = (
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31m",
    "a\rb\nc\td\x08\x7f",
    "\u202etxt.exe\u202c",
    "\u2066\u2067\u2068\u2069\u200e\u200f\u061c",
    "zero\u200bwidth\u2060\ufeff",
    "\u2028\u2029\x85",
    "\ud800",
    "tag\U000e0041",
)
NEVER = {"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"}
"""Categories: controls, formats (all bidirectional controls are there), halves, separators."""


def is_harmless(text: str) -> bool:
    return not any(unicodedata.category(char) in NEVER for char in text)


@pytest.mark.parametrize("show", [visible, cell, lambda text: printable(text, 200)])
@pytest.mark.parametrize("text", HOSTILE)
def test_what_could_drive_a_terminal_is_spelled_out(show: object, text: str) -> None:
    assert callable(show)
    shown = show(text)
    assert is_harmless(shown), ascii(shown)
    assert shown != text
    assert not is_harmless(text)


@given(st.text())
def test_nothing_else_is_changed(text: str) -> None:
    shown = visible(text)
    assert is_harmless(shown)
    if is_harmless(text) and " ".join(text.split()) == text:
        assert shown == text


@pytest.mark.parametrize("text", HOSTILE)
def test_messages_and_fields_are_harmless(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    say(text)
    put_fields([("command", text), ("message", text)])
    out, err = capfd.readouterr()
    for line in (out + err).splitlines():
        assert is_harmless(line), ascii(line)
