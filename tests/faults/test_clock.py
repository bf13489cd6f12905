"""Clocks that leap, stand still or lie: nothing ends by itself, nothing is lost, deadlines hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ledger.__main__ import main
from ledger.store import Ledger
from ledger.tables import Row
from ledger.testing import ManualClock, reserving, small_proposal
from tests.faults import lives

MINUTE_MS, DAY_MS = 60_000, 86_400_000
LEAPS_MS = [
    sign * ms for ms in (10 * MINUTE_MS, DAY_MS, 30 * 365 * DAY_MS) for sign in (1, -1)
]  # fmt: skip
TTL_MS = 8 * 60 * MINUTE_MS


def begin(path: Path, clock: ManualClock) -> Ledger:
    """Open a ledger and let it have a lease with a deadline."""
    ledger = lives.open_ledger(str(path), clock)
    lives.observe(ledger, clock)
    ledger.commit(reserving(small_proposal(1, ttl_ms=TTL_MS), clock()), clock())
    return ledger


def left_ms(ledger: Ledger, clock: ManualClock) -> int:
    """Return how long the lease of `begin` still has."""
    (row,) = [row for row in ledger.state.reservations() if int(row.id, 16) == 1]
    assert row.expires_boottime_ms is not None
    return row.expires_boottime_ms - clock().boottime_ms


def timeless(row: Row) -> Row:
    """Return *row* without the times of day in it."""
    times = {each.name: 0 for each in fields(row) if each.name.endswith("_wall_ms")}
    return replace(row, **times)  # type: ignore[arg-type]  # field names are ours


def life(path: Path, leap: Callable[[ManualClock], object]) -> dict[str, dict[str, Row]]:
    """Live with a *leap* at every turn; return what there is in the end, without times of day."""
    clock = ManualClock()
    with begin(path, clock) as ledger:
        for number in range(2, 20):
            leap(clock)
            lives.reserve(ledger, clock, number, lives.silent)
            if number % 3 == 0:
                lives.release(ledger, clock, number, lives.silent)
                ledger.checkpoint(rotate=number % 2 == 0)
    leap(clock)
    with lives.open_ledger(str(path), clock) as ledger:
        assert left_ms(ledger, clock) == TTL_MS
        rows = {name: dict(table) for name, table in ledger.state.all_rows().items()}
    assert main(["check", str(path)]) == 0
    return {
        name: {key: timeless(row) for key, row in table.items()} for name, table in rows.items()
    }


@pytest.mark.parametrize("leap_ms", LEAPS_MS)
def test_a_wall_clock_that_leaps_changes_nothing(tmp_path: Path, leap_ms: int) -> None:
    leaps = iter([leap_ms, -leap_ms] * 100)
    there = life(tmp_path / "leaping", lambda clock: clock.jump_wall(next(leaps)))
    assert there == life(tmp_path / "steady", lambda _: None)


def forge(clock: ManualClock) -> None:
    """Let the host claim another boot, though its clocks go on."""
    clock.now = replace(clock.now, boot_id="forged")


def go_back(clock: ManualClock) -> None:
    """Let the clocks of the boot start anew under the same boot id, as in a copy of the host."""
    clock.now = replace(clock.now, monotonic_ms=1, boottime_ms=1)


@pytest.mark.parametrize(
    ("change", "passed_ms"),
    [
        (lambda clock: clock.suspend(5 * MINUTE_MS), 5 * MINUTE_MS),
        (lambda clock: clock.advance(5 * MINUTE_MS), 5 * MINUTE_MS),
        (lambda clock: clock.reboot(DAY_MS), 0),
        (forge, 0),
        (go_back, 1 - ManualClock().now.boottime_ms),
    ],
    ids=["suspend", "daemon-down", "reboot", "forged-boot", "same-boot-anew"],
)
def test_what_is_left_of_a_deadline_after_a_gap(
    tmp_path: Path, change: Callable[[ManualClock], object], passed_ms: int
) -> None:
    clock = ManualClock()
    begin(tmp_path / "ledger", clock).close(checkpoint=False)
    change(clock)
    for number in (2, 3):
        with lives.open_ledger(str(tmp_path / "ledger"), clock) as ledger:
            assert left_ms(ledger, clock) == TTL_MS - passed_ms
            lives.reserve(ledger, clock, number, lives.silent)
            assert ledger.state.entry_count() == 2
            lives.release(ledger, clock, number, lives.silent)
    assert main(["check", str(tmp_path / "ledger")]) == 0


def test_the_archive_outlives_a_wall_clock_that_leaps(tmp_path: Path) -> None:
    """But for its oldest segment: that is taken for too old, and only one at a time goes."""
    clock = ManualClock()
    with begin(tmp_path / "ledger", clock) as ledger:
        for number in range(2, 9):
            lives.reserve(ledger, clock, number, lives.silent)
            ledger.checkpoint(rotate=True)
        archived = sorted(path.name for path in (tmp_path / "ledger" / "archive").iterdir())
        assert len(archived) > 5
        clock.jump_wall(30 * 365 * DAY_MS)
        lives.reserve(ledger, clock, 20, lives.silent)
        ledger.checkpoint(rotate=False)
    left = sorted(path.name for path in (tmp_path / "ledger" / "archive").iterdir())
    assert left == archived[1:]
