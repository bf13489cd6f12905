"""What follows when this host can no longer do what sandboxes were promised: the loss policies.

Judged by how things stand and not by what has changed, so that a loss which happened while no
daemon ran is found too. Only a definite no ends anything; as long as nothing can be told, new
sandboxes are refused and those that run go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from axern.daemon.capability_watch import SWEEP_S
from axern.errors import HostError
from axern.host.capabilities import DEGRADE, FAIL_STOP
from axern.runtime.outcome import CAPABILITY_LOST
from ledger.reservation import RETIRING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.daemon.parts import Parts
    from ledger.reservation import Reservation

GRACE_MS = 1_000
"""From TERM to KILL: what it could do meanwhile, nothing limits."""
_log = logging.getLogger(__name__)


class CapabilityLoss:
    """Sweeps, and acts by the policy of each row that is lost."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def loop(self) -> None:
        """Sweep and act until the daemon closes."""
        closing = self._parts.closing
        self.act()
        while not closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), SWEEP_S)
                return
            await self.step()

    async def step(self) -> None:
        """Sweep, let admission know of a change at once, and act."""
        parts = self._parts
        before = parts.capabilities.snapshot().generation
        await parts.capabilities.sweep(self.act)
        if parts.capabilities.snapshot().generation != before:
            with contextlib.suppress(HostError):  # the loop that observes tells of it
                parts.observer.observe(parts.ledger.state.reservations())
        self.act()

    def act(self) -> None:
        """End every sandbox whose limit would no longer hold."""
        for row, keys in standing_on(self._parts, FAIL_STOP):
            life = self._parts.lives.find(row.id)
            if life is None or life.stop_reason is None:
                _log.error("sandbox %s: ended: %s is lost", row.id, ", ".join(keys))
            self._parts.lives.stop(row.id, CAPABILITY_LOST, "daemon", GRACE_MS)


def degraded(parts: Parts) -> tuple[str, ...]:
    """Return the keys of what is lost and still asked for by a sandbox that goes on."""
    return tuple(sorted({key for _, keys in standing_on(parts, DEGRADE) for key in keys}))


def standing_on(parts: Parts, loss: str) -> Iterator[tuple[Reservation, tuple[str, ...]]]:
    """Yield each sandbox that requires what fell by the policy *loss*, with the keys that fell."""
    fallen = parts.capabilities.fallen(loss)
    if not fallen:
        return
    for row in parts.ledger.state.reservations():
        keys = tuple(key for key in row.requires if key in fallen)
        if keys and row.is_sandbox and row.phase != RETIRING:
            yield row, keys
