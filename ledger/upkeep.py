"""What a committer does beside commits: checkpoints, and segments that are made in advance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ledger.errors import CommitFailed
from ledger.staging import Batch
from ledger.store import Ledger

IDLE_S = 1.0
"""The least time between two checkpoints that are written because nothing happens."""
COST_FACTOR = 20
"""The same in terms of what the last one cost, so that they take a twentieth of a core at most."""
ROOM_FACTOR = 10
"""How many times `IDLE_S` to wait before room for a segment or the ballast is tried again."""
_A_MOMENT_S = 0.001


class Upkeep:
    """One thing at a time, whenever `look` finds that it has become due."""

    def __init__(
        self, ledger: Ledger, threads: ThreadPoolExecutor, resting: asyncio.Event, idle_s: float
    ) -> None:
        self.error: CommitFailed | None = None
        self.room_error: CommitFailed | None = None
        self.urgent = False  # the journal begins on a medium that has failed
        self.is_owed = False  # and no checkpoint has followed yet
        self._ledger = ledger
        self._threads = threads
        self._resting = resting
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_after_s = 0.0
        self._retry_after_s = 0.0
        self._room_after_s = 0.0
        self._changed_at_s: float | None = None
        self._closed = False

    def look(self, batch: Batch | None) -> None:
        """Begin what has become due; called between two batches, with the one just published."""
        now_s = self._loop.time()
        if self.urgent or (batch is not None and batch.line and not batch.only_beats):
            self._changed_at_s = now_s
        if self._work is not None or self._closed or self._ledger.failed:
            return
        due = self._ledger.wants_checkpoint and now_s >= self._retry_after_s
        if self.urgent and now_s >= self._retry_after_s:
            self._checkpoint(rotate=False)
        elif due and self._ledger.has_spare:
            self._checkpoint(rotate=True)
        elif (due or self._ledger.wants_room) and now_s >= self._room_after_s:
            self._run(self._ledger.prepare_segment, self._note_room)
        elif self._changed_at_s is not None and self._timer is None:
            wait_s = max(self._idle_s / 4, self._idle_after_s - now_s)
            self._timer = self._loop.call_later(wait_s, self._idle)

    def halt(self) -> None:
        """Begin nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Begin nothing more and wait for what runs."""
        self.halt()
        if self._work is not None:
            await asyncio.wait([self._work])

    def _idle(self) -> None:
        """Write a checkpoint if nothing has changed for a while, else look again later."""
        self._timer = None
        if self._closed or self._changed_at_s is None or self._ledger.failed:
            return
        quiet_s = self._loop.time() - self._changed_at_s
        if self._work is None and self._resting.is_set() and quiet_s >= self._idle_s / 4:
            self._checkpoint(rotate=False)
        else:
            self._timer = self._loop.call_later(self._idle_s / 4, self._idle)

    def _checkpoint(self, *, rotate: bool) -> None:
        try:
            begun = self._ledger.begin_checkpoint(rotate=rotate)
        except CommitFailed as err:
            self._fail(err)
            return
        changed_at_s, self._changed_at_s = self._changed_at_s, None
        urgent, self.urgent = self.urgent, False
        started_s = self._loop.time()

        def note(failure: CommitFailed | None) -> None:
            if failure is None:
                self.error = None
                self.is_owed &= not urgent
                cost_s = self._loop.time() - started_s
                self._idle_after_s = started_s + max(self._idle_s, COST_FACTOR * cost_s)
            else:
                self._changed_at_s = self._changed_at_s or changed_at_s
                self.urgent |= urgent
                self._fail(failure)

        self._run(lambda: self._ledger.finish_checkpoint(begun), note)

    def _note_room(self, failure: CommitFailed | None) -> None:
        self.room_error = failure
        if failure is not None:
            self._room_after_s = self._loop.time() + ROOM_FACTOR * self._idle_s
            self._look_after(self._room_after_s)

    def _run(self, work: Callable[[], None], note: Callable[[CommitFailed | None], None]) -> None:
        def finished(done: asyncio.Future[None]) -> None:
            self._work = None
            failure = done.exception()
            if failure is not None and not isinstance(failure, CommitFailed):
                raise failure
            note(failure)
            if self._resting.is_set():  # else the batch in flight ends with a look
                self.look(None)

        self._work = self._loop.run_in_executor(self._threads, work)
        self._work.add_done_callback(finished)

    def _fail(self, error: CommitFailed) -> None:
        """Keep *error* for whoever asks, and leave the disk alone for a while."""
        self.error = error
        self._retry_after_s = self._idle_after_s = self._loop.time() + COST_FACTOR * self._idle_s
        self._look_after(self._retry_after_s)

    def _look_after(self, when_s: float) -> None:
        """Look again then, whether or not anybody commits: an idle ledger gets well by itself."""

        def look() -> None:
            if self._resting.is_set():  # else the batch in flight ends with a look
                self.look(None)

        self._loop.call_at(when_s + _A_MOMENT_S, look)
