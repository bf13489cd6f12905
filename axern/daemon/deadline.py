"""The deadline of a sandbox: an alarm on the event loop that ends it, and the word for why.

The ledger keeps one deadline on CLOCK_BOOTTIME, so that it holds through restarts of the daemon.
An alarm is to the point; it stands still while the host is suspended, and the loop of
`daemon.reconcile` catches up with what it has missed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.runtime.outcome import EXPIRED, TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from axern.daemon.life import Life
    from ledger.clock import Now
    from ledger.reservation import Reservation
    from ledger.store import Ledger


def reason_of(reservation: Reservation) -> str:
    """Return why *reservation* ends at its deadline.

    It is `expired` at the ceiling that admission set, and `timeout` where the time that the
    workload may run ends before that.
    """
    at_ceiling = reservation.expires_boottime_ms == reservation.expires_limit_boottime_ms
    return EXPIRED if at_ceiling else TIMEOUT


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Sets the alarms of lives; `grace_ms` is the time from TERM to KILL."""

    ledger: Ledger
    clock: Callable[[], Now]
    grace_ms: int

    def watch(self, life: Life) -> None:
        """Set the alarm for the deadline that the ledger has now, or ring it if that has passed."""
        quiet(life)
        row = self.ledger.state.find_reservation(life.reservation_id)
        if row is None or row.expires_boottime_ms is None:
            return
        now = self.clock()
        left_ms = row.expires_boottime_ms - now.boottime_ms
        if left_ms > 0:
            life.alarm = asyncio.get_running_loop().call_later(left_ms / 1000, self.watch, life)
        else:
            life.stop(reason_of(row), "daemon", now.monotonic_ms + self.grace_ms)


def quiet(life: Life) -> None:
    """Take the alarm away."""
    if life.alarm is not None:
        life.alarm.cancel()
        life.alarm = None
