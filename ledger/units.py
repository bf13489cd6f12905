"""Parse and format quantities: CPU in milli-cores, memory and storage in bytes, ratios, durations.

One grammar serves the command line, the API, the configuration and the ledger. Arithmetic is
exact (integers and fractions); a text that does not name a whole unit is refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ledger.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction
    from typing import NoReturn

MAX_INTEGER = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""
MAX_CPU_MILLI = 1_000_000

# Texts, since `re` keeps what it has compiled, and most commands need none of them.
_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_QUANTITY = rf"({_NUMBER}) *([A-Za-z]*)"
_LONGEST_TEXT = 64
_LONGEST_EXACT = 7
"""Longest exact amount that a sentence or a table shows; a longer one is cut to two decimals."""

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
    "ki": 1024,
    "mi": 1024**2,
    "gi": 1024**3,
    "ti": 1024**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_BINARY_NAMES = (("TiB", 1024**4), ("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+"
_DURATION_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"


def parse_cpu_milli(text: str, field: str = "cpu") -> int:
    """Return the milli-cores that *text* names: `1`, `1.5`, `.25` are cores, `500m` is milli.

    Args:
        text: ASCII digits with at most one dot, optionally followed by `m`.
        field: The flag or JSON field, for the error message.
    Returns:
        0 to 1,000,000 milli-cores.
    Raises:
        InvalidArgument: Not in the grammar, not a whole milli-core, or too large; not for 0.
    """
    number, unit = _split(text, field, "500m or 1.5")
    if unit not in ("", "m"):
        _refuse(field, text, "the only suffix is m", "500m or 1.5")
    milli = _whole(number, 1 if unit == "m" else 1000)
    if milli is None and unit == "m":
        _refuse(field, text, "a fraction of a milli-core can't be reserved", "500m or 1.5")
    if milli is None:
        _refuse(field, text, "it must be a whole number of milli-cores", "500m or 1.5")
    if milli > MAX_CPU_MILLI:
        _refuse(field, text, f"the largest value is {MAX_CPU_MILLI}m", "500m or 1.5")
    return milli


def format_cpu_milli(milli: int) -> str:
    """Return the shortest text that `parse_cpu_milli` reads back as *milli*: `2` or `1500m`."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def parse_bytes(text: str, field: str = "bytes") -> int:
    """Return the bytes that *text* names; a bare integer is bytes.

    Args:
        text: A decimal number and B, KiB, MiB, GiB, TiB, Ki, Mi, Gi, Ti, KB, MB, GB or TB in any
            case; a fraction is allowed where the product is a whole byte.
        field: The flag or JSON field, for the error message.
    Returns:
        0 to 2**53 - 1 bytes.
    Raises:
        InvalidArgument: Not in the grammar, not a whole byte, or too large; not for 0.
    """
    number, unit = _split(text, field, "512MiB")
    factor = _BYTE_UNITS.get(unit.lower())
    if factor is None:
        _refuse(
            field, text, "the unit is not one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB", "512MiB"
        )
    amount = _whole(number, factor)
    if amount is None and unit == "":
        _refuse(field, text, "a number without a unit is bytes and must be whole", "512MiB")
    if amount is None:
        _refuse(field, text, "it must be a whole number of bytes", "512MiB")
    if amount > MAX_INTEGER:
        _refuse(field, text, f"the largest value is {MAX_INTEGER} bytes", "512MiB")
    return amount


def format_bytes(amount: int) -> str:
    """Return the shortest exact text that `parse_bytes` reads back as *amount*: `512MiB`, `1B`."""
    for name, factor in _BINARY_NAMES:
        if amount and amount % factor == 0:
            return f"{amount // factor}{name}"
    return f"{amount}B"


def format_short(amount: int, exact: Callable[[int], str], *, up: bool = False) -> str:
    """Return *amount* for people: as *exact* has it where that is short, else as `22.36GiB`.

    Args:
        amount: Of whatever *exact* formats; only bytes grow too long to be read.
        exact: The formatter of the amount's dimension.
        up: Round up, as for what is asked for or lacking; else down, as for what there is.
    """
    text = exact(amount)
    if len(text) <= _LONGEST_EXACT or exact is not format_bytes:
        return text
    name, factor = next((row for row in _BINARY_NAMES if amount >= row[1]), ("B", 1))
    hundredths = -(-amount * 100 // factor) if up else amount * 100 // factor
    return f"{hundredths // 100}.{hundredths % 100:02}{name}"


def parse_ratio(text: str, field: str = "ratio") -> Fraction:
    """Return the exact positive fraction that the decimal *text* names: `1.1` is 11/10.

    Raises:
        InvalidArgument: Not a plain decimal, or zero; not for a ratio below one.
    """
    from fractions import Fraction

    stripped = text.strip(" ")
    if len(stripped) > _LONGEST_TEXT or not re.fullmatch(_NUMBER, stripped):
        _refuse(field, text, "it must be a finite decimal number", "1.5")
    ratio = Fraction(stripped if stripped[0] != "." else f"0{stripped}")
    if ratio <= 0:
        _refuse(field, text, "it must be greater than zero", "1.5")
    return ratio


def parse_duration_ms(text: str, field: str = "duration") -> int:
    """Return the milliseconds that *text* names: `90s`, `10m`, `1h30m`, `500ms`, `2d`.

    Raises:
        InvalidArgument: No unit, unknown unit, or not a whole millisecond; not for 0s.
    """
    stripped = text.strip(" ")
    if len(stripped) > _LONGEST_TEXT or not re.fullmatch(_DURATION, stripped):
        _refuse(field, text, "each number needs a unit: ms, s, m, h or d", "90s or 1h30m")
    parts = re.findall(_DURATION_PART, stripped)
    # Parts that are not whole may be so together, as in 0.5ms0.5ms: one denominator for all.
    places = max(len(number.partition(".")[2]) for number, _ in parts)
    scale: int = 10**places
    scaled = sum(
        int(f"{whole}{decimals:0<{places}}") * _DURATION_UNITS_MS[unit]
        for number, unit in parts
        for whole, _, decimals in (number.partition("."),)
    )
    if scaled % scale or scaled // scale > MAX_INTEGER:
        _refuse(field, text, "it must be a whole number of milliseconds", "90s or 1h30m")
    return scaled // scale


def format_duration_ms(duration_ms: int) -> str:
    """Return the shortest exact text that `parse_duration_ms` reads back: `1h30m`, `0s`."""
    if duration_ms == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        amount, duration_ms = divmod(duration_ms, _DURATION_UNITS_MS[unit])
        if amount:
            text += f"{amount}{unit}"
    return text


def format_rfc3339(wall_ms: int) -> str:
    """Return milliseconds since the epoch as RFC 3339 in UTC: `2026-01-31T12:00:00.250Z`."""
    return "%s.%03dZ" % (_to_second(wall_ms // 1000), wall_ms % 1000)  # noqa: UP031 - the quickest


@lru_cache(64)
def _to_second(wall_s: int) -> str:
    """Return the moment without its end; what is shown together is often of one second."""
    from datetime import datetime, timedelta

    # Naive on purpose: all arithmetic is in UTC.
    moment = datetime(1970, 1, 1) + timedelta(seconds=wall_s)  # noqa: DTZ001
    return moment.isoformat(timespec="seconds")


def _split(text: str, field: str, example: str) -> tuple[str, str]:
    """Return number and unit, as they are written."""
    stripped = text.strip(" ")
    match = re.fullmatch(_QUANTITY, stripped) if len(stripped) <= _LONGEST_TEXT else None
    if match is None:
        _refuse(field, text, "it must be a decimal number with a unit", example)
    number, unit = match.groups()
    return number, unit


def _whole(number: str, factor: int) -> int | None:
    """Return the decimal *number* times *factor*, or None if that is not whole; exact."""
    whole, _, decimals = number.partition(".")
    amount, rest = divmod(int(whole + decimals) * factor, 10 ** len(decimals))
    return None if rest else amount


def _refuse(field: str, text: str, rule: str, example: str) -> NoReturn:
    shown = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
    raise InvalidArgument(f"{field}: {shown!r} is not valid: {rule}", hint=f"for example {example}")
