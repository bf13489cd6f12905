"""Tell systemd that the daemon is ready, how it is, and that it still gets on with its work.

A sign of life is given only while the loop does its rounds. Each round ends with a commit, so that
it also stands still when the ledger's flush or its committer does. A ledger that refuses commits
because its disk does is told in the status and is no death: it recovers by itself, and a daemon
that is started anew could not even open it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from axern.daemon.parts import Parts
    from axern.daemon.reconcile import Reconciler
    from axern.host.systemd import Notifier

_SIGNS_A_WINDOW = 3
_STATUS_EVERY_S = 10.0

_log = logging.getLogger(__name__)


class Supervision:
    """What systemd hears of a daemon that serves; `watchdog_s` is None where it expects nothing."""

    def __init__(
        self, notifier: Notifier, watchdog_s: float | None, parts: Parts, reconciler: Reconciler
    ) -> None:
        self._notifier = notifier
        self._watchdog_s = watchdog_s
        self._parts = parts
        self._reconciler = reconciler
        self._was_alive = True

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Be ready from now on, and give signs of life until the end, stopping included."""
        self._notifier.tell("READY=1", f"STATUS={self.status()}")
        signs = asyncio.create_task(self._signs(), name="signs of life")
        try:
            yield
        finally:
            signs.cancel()
            await asyncio.wait((signs,))

    def stop(self, words: str) -> None:
        """Say that the daemon is about to end, and in *words* what becomes of its sandboxes."""
        _log.info("stopping; %s", words)
        self._notifier.tell("STOPPING=1", f"STATUS=stopping; {words}")

    def status(self) -> str:
        """Return in one line how the daemon is."""
        state = self._parts.ledger.state
        words = f"{state.entry_count()} reservations at generation {state.generation}"
        standing = state.standing()
        if standing is not None:
            words = f"{standing.state}, {standing.reason}: {words}"
        trouble = self._parts.condition.words()
        return f"ledger {trouble}; {words}" if trouble else words

    def is_alive(self) -> bool:
        """Tell whether the last round ended within the window; one that is stopping makes none."""
        if self._watchdog_s is None or self._parts.closing.is_set():
            return True
        silent_ms = self._parts.clock().monotonic_ms - self._reconciler.ticked_monotonic_ms
        return silent_ms < self._watchdog_s * 1000

    async def _signs(self) -> None:
        pause_s = _STATUS_EVERY_S
        if self._watchdog_s is not None:
            pause_s = min(pause_s, self._watchdog_s / _SIGNS_A_WINDOW)
        while True:
            await asyncio.sleep(pause_s)
            alive = self.is_alive()
            if alive:
                status = () if self._parts.closing.is_set() else (f"STATUS={self.status()}",)
                self._notifier.tell("WATCHDOG=1", *status)
            elif self._was_alive:
                _log.error("no round of the loop has ended for %s s", self._watchdog_s)
            self._was_alive = alive
