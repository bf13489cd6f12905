"""One reading of the host's clocks, taken at the edge and passed in as a value."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Now:
    """All clocks at one moment, in milliseconds.

    `monotonic_ms` (CLOCK_MONOTONIC) stands still in suspend and judges staleness; `boottime_ms`
    (CLOCK_BOOTTIME) runs on and judges deadlines; both count within `boot_id`. `wall_ms` since the
    epoch is for display only: a jump of it changes nothing.
    """

    boot_id: str
    monotonic_ms: int
    boottime_ms: int
    wall_ms: int
