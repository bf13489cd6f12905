"""How text is measured, cut and folded, and how moments are told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.cli import table, when
from axern.cli.output import visible

TEXT = st.text(st.sampled_from("ab c\u0301データé…-") | st.characters(), max_size=60).map(visible)


@pytest.mark.parametrize(
    ("text", "width"), [("", 0), ("abc", 3), ("é", 1), ("e\u0301", 1), ("データ", 6), ("ａ", 2)]
)
def test_a_terminal_counts_cells(text: str, width: int) -> None:
    assert table.width_of(text) == width


@given(TEXT, st.integers(2, 40))
def test_what_is_cut_fits_and_is_a_beginning(text: str, width: int) -> None:
    shown = table.cut(text, width)
    # One wide character is shown even where there is room for half of it.
    assert table.width_of(shown) <= max(width, 3)
    if shown != text:
        assert shown.endswith("…")
        assert text.startswith(shown[:-1])


@given(TEXT, st.integers(2, 40))
def test_what_is_folded_fits_and_loses_only_spaces(text: str, width: int) -> None:
    lines = table.fold(text, width)
    assert all(table.width_of(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_folding_breaks_at_spaces() -> None:
    assert table.fold("the kernel has no memory controller", 12) == [
        "the kernel",
        "has no",
        "memory",
        "controller",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0.9, "0s"),
        (45, "45s"),
        (60, "1m"),
        (61, "1m1s"),
        (9 * 60 + 59, "9m59s"),
        (10 * 60 + 59, "10m"),
        (6600, "1h50m"),
        (43_300, "12h"),
        (86_400, "1d"),
        (86_400 * 2 + 3_600 * 3, "2d3h"),
        (86_400 * 400, "400d"),
    ],
)
def test_spans_are_short(seconds: float, shown: str) -> None:
    assert when.span(seconds) == shown


def test_moments() -> None:
    at = "2026-01-02T03:04:05.678Z"
    then_s = 1767323045.678
    assert when.age(at, then_s + 61) == "1m1s"
    assert when.ahead(at, then_s - 61.5) == "in 1m1s"
    assert when.ahead(at, then_s + 1) == "now"
    assert when.age(None) is None
    assert when.ahead(None) is None


@given(st.floats(0, 1e9))
def test_a_span_is_never_longer_than_it_was(seconds: float) -> None:
    units = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
    total, number = 0, ""
    for char in when.span(seconds):
        if char.isdigit():
            number += char
        else:
            total += int(number) * units[char]
            number = ""
    assert total <= seconds
