"""Moments as people ask for them: how long ago, and how long from now. JSON has the time itself."""

from __future__ import annotations

import time

from ledger.errors import InvalidArgument
from ledger.units import parse_duration_ms

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_TWO_UNITS_BELOW = 10
"""Below ten of the first unit the second one matters: 1h50m, but 12h."""


def age(at: str | None, now_s: float | None = None) -> str | None:
    """Return how long ago the RFC 3339 time *at* was; None stays None, the future is 0s."""
    return None if at is None else span(_now(now_s) - _seconds(at))


def ahead(at: str | None, now_s: float | None = None) -> str | None:
    """Return `in 5m` for the RFC 3339 time *at*, or `now` once it has passed; None stays None."""
    if at is None:
        return None
    left_s = _seconds(at) - _now(now_s)
    return f"in {span(left_s)}" if left_s >= 1 else "now"


def span(seconds: float) -> str:
    """Return a duration of *seconds*, rounded down, in one unit or two: 45s, 1h50m, 12h."""
    left = max(0, int(seconds))
    for number, (unit, size) in enumerate(_UNITS):
        count, rest = divmod(left, size)
        if not count:
            continue
        shown = f"{count}{unit}"
        if count < _TWO_UNITS_BELOW and number + 1 < len(_UNITS):
            next_unit, next_size = _UNITS[number + 1]
            shown += f"{rest // next_size}{next_unit}" if rest >= next_size else ""
        return shown
    return "0s"


def moment_ms(text: str, flag: str, now_s: float | None = None) -> int:
    """Return the moment that *text* names, in milliseconds since the epoch.

    It is a duration ago, such as `2h`, or a time with its zone, such as `2026-01-31T12:00:00Z`.

    Raises:
        InvalidArgument: It is neither; *flag* is named.
    """
    if text[:1].isdigit() and "-" not in text:
        return max(0, int(_now(now_s) * 1000) - parse_duration_ms(text, flag))
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgument(
            f"{flag}: {text[:64]!r} is neither a duration ago nor a time with its zone",
            hint="for example 2h, or 2026-01-31T12:00:00Z",
        )
    return max(0, int(moment.timestamp() * 1000))


def _seconds(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at).timestamp()


def _now(now_s: float | None) -> float:
    return time.time() if now_s is None else now_s
