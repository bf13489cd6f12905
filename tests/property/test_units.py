"""Format and parse are inverse, parsing is exact, and no text gets past the grammar."""

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import units
from ledger.errors import AxernError, InvalidArgument
from ledger.resources import parse_count
from ledger.units import MAX_CPU_MILLI, MAX_INTEGER

PARSERS: list[Callable[[str, str], object]] = [
    units.parse_cpu_milli,
    units.parse_bytes,
    units.parse_ratio,
    units.parse_duration_ms,
    parse_count,
]
BYTE_FACTORS = {
    **{name + tail: 1024**power for power, name in enumerate("KMGT", 1) for tail in ("i", "iB")},
    **{name + "B": 1000**power for power, name in enumerate("KMGT", 1)},
    "B": 1,
}
numbers = st.from_regex(r"\A(?:[0-9]{1,12}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})\Z")
# Texts that look almost right find more than texts of any kind.
lookalikes = st.text(" .-+eEmMkKgGiIbBtTpPsShHdDxX_,0123456789٣１\n\t\x00", max_size=12)


@given(st.integers(0, MAX_CPU_MILLI))
def test_cpu_is_read_back(milli: int) -> None:
    assert units.parse_cpu_milli(units.format_cpu_milli(milli)) == milli


@given(st.integers(0, MAX_INTEGER))
def test_bytes_are_read_back(amount: int) -> None:
    assert units.parse_bytes(units.format_bytes(amount)) == amount


@given(st.integers(0, 2**33), st.sampled_from(list(BYTE_FACTORS.values())))
def test_multiples_are_read_back(count: int, factor: int) -> None:
    amount = count * factor
    if amount <= MAX_INTEGER:
        assert units.parse_bytes(units.format_bytes(amount)) == amount


@given(st.integers(0, MAX_INTEGER))
def test_durations_are_read_back(duration_ms: int) -> None:
    assert units.parse_duration_ms(units.format_duration_ms(duration_ms)) == duration_ms


@given(numbers, st.sampled_from(sorted(BYTE_FACTORS)), st.lists(st.booleans(), min_size=3))
def test_bytes_are_exact_in_any_case(number: str, unit: str, upper: list[bool]) -> None:
    exact = Fraction(number if number[0] != "." else f"0{number}") * BYTE_FACTORS[unit]
    letters = zip(unit, upper, strict=False)
    text = number + "".join(letter.upper() if up else letter.lower() for letter, up in letters)
    if exact.denominator == 1 and exact <= MAX_INTEGER:
        assert units.parse_bytes(text) == exact
    else:
        with pytest.raises(InvalidArgument):
            units.parse_bytes(text)


@given(numbers, st.booleans())
def test_cpu_is_exact(number: str, in_milli: bool) -> None:
    exact = Fraction(number if number[0] != "." else f"0{number}") * (1 if in_milli else 1000)
    text = number + "m" * in_milli
    if exact.denominator == 1 and exact <= MAX_CPU_MILLI:
        assert units.parse_cpu_milli(text) == exact
    else:
        with pytest.raises(InvalidArgument):
            units.parse_cpu_milli(text)


def outcome(parse: Callable[[str, str], object], text: str, field: str) -> object:
    """Return what *parse* makes of *text*: a value, or the error it raises."""
    try:
        return parse(text, field)
    except AxernError as error:
        return error


@pytest.mark.parametrize("parse", PARSERS)
@given(text=st.text(max_size=80) | lookalikes, field=st.text(max_size=10))
def test_any_text_is_read_or_refused(
    parse: Callable[[str, str], object], text: str, field: str
) -> None:
    made = outcome(parse, text, field)
    if isinstance(made, InvalidArgument):
        assert made.message.startswith(f"{field}: ")
        assert made.hint is not None
        return
    assert isinstance(made, int | Fraction)
    assert made >= 0
    assert text.isascii()
