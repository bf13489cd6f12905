"""All sandboxes that are not released yet, each with the coroutine that is its life."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from axern.daemon import deadline
from axern.daemon.course import Course
from axern.daemon.life import Life

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from axern.daemon.log_keeper import LogKeeper
    from axern.daemon.networks import Networks
    from axern.daemon.runs import RunStore
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.store import Ledger

_log = logging.getLogger(__name__)


class Lives:
    """The way to every living sandbox: begin, find, stop, wake."""

    def __init__(
        self,
        ledger: Ledger,
        committer: Committer,
        layout: Layout,
        runs: RunStore,
        settings: Settings,
        clock: Callable[[], Now],
        keeper: LogKeeper,
    ) -> None:
        self._keeper = keeper
        self._layout = layout
        self._ledger = ledger
        self._clock = clock
        self._course = Course(ledger, committer, layout, runs, settings, clock)
        self._lives: dict[str, Life] = {}
        self._closed = False
        self.failed = asyncio.Event()

    def begin(self, reservation_id: str) -> Life:
        """Let the sandbox live on from its phase in the ledger; one that does already is kept."""
        life = self._lives.get(reservation_id)
        if life is None:
            life = Life(reservation_id)
            if self._closed:
                return life  # the next daemon lets it live
            self._lives[reservation_id] = life
            self._keeper.keep(self._layout.sandbox(reservation_id))
            life.task = asyncio.create_task(self._guarded(life), name=f"life {reservation_id}")
        return life

    def find(self, reservation_id: str) -> Life | None:
        """Return the life of a sandbox that is not released, or None."""
        return self._lives.get(reservation_id)

    @property
    def networks(self) -> Networks:
        """The network that they share."""
        return self._course.networks

    def all(self) -> tuple[Life, ...]:
        """Return every life."""
        return tuple(self._lives.values())

    def stop(self, reservation_id: str, reason: str, by: str, grace_ms: int) -> None:
        """Ask a sandbox to end; a later call may only shorten the grace. Unknown ids are over."""
        if self._ledger.state.find_reservation(reservation_id) is not None:
            kill_at_ms = self._clock().monotonic_ms + grace_ms
            self.begin(reservation_id).stop(reason, by, kill_at_ms)

    def wake(self, reservation_id: str) -> None:
        """Let a sandbox look at its exit file; an empty id wakes all."""
        lives = self._lives.values() if not reservation_id else [self._lives.get(reservation_id)]
        for life in lives:
            if life is not None:
                life.woken.set()

    async def close(self, timeout_s: float) -> None:
        """Start nothing new, let what is half done come to rest, leave the sandboxes running."""
        self._closed = True
        self._course.close()
        self.wake("")
        waits = [
            asyncio.create_task(_first(life.resting.wait(), life.over.wait()))
            for life in self._lives.values()
        ]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)
        for task in (*waits, *(life.task for life in self._lives.values() if life.task)):
            task.cancel()
        await self._course.leave()

    async def _guarded(self, life: Life) -> None:
        try:
            await self._course.run(life)
            self._keeper.let_go(self._layout.sandbox(life.reservation_id))
        except asyncio.CancelledError:
            raise
        except BaseException:
            _log.exception("sandbox %s: its life ended by a bug", life.reservation_id)
            self.failed.set()
            raise
        finally:
            deadline.quiet(life)
            self._lives.pop(life.reservation_id, None)
            life.over.set()
            life.moved.notify()


async def _first(*waits: Coroutine[object, object, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
