"""Group commit for asyncio: what arrives while a flush is under way shares the next one.

On a fast disk the flush runs on the event loop, which saves a hop between threads. On a slow one
it runs in a thread, and a short wait after each flush gathers the callers that it has answered.

After a failed flush the ledger is resealed in a thread before anyone is told "not done", so that
what was told stays true through a crash. While the disk refuses that too, each caller gets
CommitFailed at once, and whoever comes when a pause is over lets it be tried again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from ledger.clock import Now
from ledger.errors import (
    DISK_RETRY_AFTER_S,
    AxernError,
    CommitFailed,
    InvariantViolation,
    LedgerBusy,
)
from ledger.staging import Batch, Group, Operation
from ledger.state import Change, State
from ledger.store import Ledger

QUEUE_LIMIT = 4096
"""Operations that may wait, those of groups counted one by one."""
BUSY_RETRY_AFTER_S = 1
SLOW_FLUSH_S = 0.001
"""From this mean on a flush is worth a thread. Source: docs/decisions/0005-ledger-format.md."""
GATHER_SHARE = 0.25
"""How long to gather after a slow flush, as a share of the mean flush."""
IDLE_S = 1.0
"""The least time between two checkpoints that are written because nothing happens."""
COST_FACTOR = 20
"""The same in terms of what the last one cost, so that they take a twentieth of a core at most."""
ROOM_FACTOR = 10
"""How many times `IDLE_S` to wait before room for a segment or the ballast is tried again."""
_A_MOMENT_S = 0.001
RESEAL_PAUSE_S = 0.1
"""The pause after the first reseal that the disk refused; each further one doubles it."""
RESEAL_LONGEST_PAUSE_S = 10.0
_NEW_SAMPLE = 0.1
_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
Caller = tuple[Operation | Group, "asyncio.Future[object]"]


class Committer:
    """The queue in front of a ledger; belongs to one event loop, which owns the ledger too.

    One batch is in flight at a time. Closing it leaves the ledger open. Each of `watchers` is set
    when a commit was published.
    """

    def __init__(
        self,
        ledger: Ledger,
        clock: Callable[[], Now],
        *,
        queue_limit: int = QUEUE_LIMIT,
        idle_s: float = IDLE_S,
        slow_flush_s: float = SLOW_FLUSH_S,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._queue_limit = queue_limit
        self._slow_flush_s = slow_flush_s
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="ledger")
        self._queue: list[Caller] = []
        self._waiting = 0
        self._resting = asyncio.Event()
        self._resting.set()
        self._upkeep = _Upkeep(ledger, self._threads, self._resting, idle_s)
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_target = 0
        self._mean_flush_s = 0.0
        self._reseal_after_s = 0.0
        self._reseal_pause_s = RESEAL_PAUSE_S
        self._closing = False
        self._bug: BaseException | None = None
        self.watchers: set[asyncio.Event] = set()

    @property
    def checkpoint_error(self) -> CommitFailed | None:
        """Return why the last checkpoint could not be written, or None if it was."""
        return self._upkeep.error

    @property
    def upkeep_error(self) -> CommitFailed | None:
        """Return what could not be done beside commits, which go on: a checkpoint, a segment."""
        if self._upkeep.is_owed and self._upkeep.error is None:
            return CommitFailed("a flush has failed, and no checkpoint has followed it yet")
        return self._upkeep.error or self._upkeep.room_error

    async def submit(self, operation: Operation | Group) -> object:
        """Perform *operation* durably, together with what else waits, and return its result.

        Raises:
            LedgerBusy: Too many wait, or the committer is being closed; nothing is changed.
            CommitFailed: The batch is not durable, and so this operation is not done.
            AxernError: What the operation raised.
        """
        if self._bug is not None:
            raise InvariantViolation("the ledger has stopped after a bug") from self._bug
        size = len(operation.operations) if isinstance(operation, Group) else 1
        if self._closing or self._waiting + size > self._queue_limit:
            what = "is being closed" if self._closing else f"has {self._waiting} operations waiting"
            raise LedgerBusy(
                f"the ledger {what}",
                hint="try again in a moment",
                retry_after_s=BUSY_RETRY_AFTER_S,
            )
        future: asyncio.Future[object] = self._loop.create_future()
        self._queue.append((operation, future))
        self._waiting += size
        if self._resting.is_set():
            self._resting.clear()
            self._loop.call_soon(self._start)
        elif self._gathering is not None and len(self._queue) >= self._gather_target:
            self._gathering.cancel()
            self._start()
        return await future

    async def reseal(self) -> None:
        """Let a ledger that has failed take commits again; does nothing if it has not.

        It waits its turn like a commit, and whoever comes meanwhile waits behind it. A checkpoint
        that runs beside goes on; the one that a reseal wants begins after it.

        Raises:
            LedgerBusy: Too many wait, or the committer is being closed.
            CommitFailed: The disk still refuses, or has refused a moment ago.
        """
        await self.submit(_nothing)
        if self._ledger.failed:
            raise CommitFailed(
                "the ledger takes no commits: its disk still refuses a new segment",
                hint="look at the disk of the ledger: df, dmesg",
                retry_after_s=DISK_RETRY_AFTER_S,
            )

    async def close(self) -> None:
        """Finish what was submitted, then stop; the caller closes the ledger afterwards."""
        self._closing = True
        await self._resting.wait()
        await self._upkeep.close()
        self._threads.shutdown()

    def _start(self) -> None:
        """Take all that waits and make it durable; a ledger that has failed is resealed before."""
        self._gathering = None
        callers, self._queue, self._waiting = self._queue, [], 0
        if not callers:
            self._upkeep.look(None)
            self._resting.set()
        elif self._may_reseal():
            self._in_thread(callers, self._reseal, lambda _: self._commit(callers))
        else:
            self._commit(callers)

    def _commit(self, callers: list[Caller]) -> None:
        """Stage what *callers* ask for and flush it, here or in a thread."""
        try:
            batch = self._ledger.stage([operation for operation, _ in callers], self._clock())
            if not batch.line or self._mean_flush_s < self._slow_flush_s:
                self._flushed(callers, batch, self._flush(batch))
                return
        except BaseException as err:  # noqa: BLE001 - whatever it is, it is a bug
            self._stop(callers, err)
            return
        self._in_thread(
            callers, partial(self._flush, batch), partial(self._flushed, callers, batch)
        )

    def _in_thread(
        self, callers: list[Caller], work: Callable[[], _Result], then: Callable[[_Result], None]
    ) -> None:
        """Do *work* in a thread, *then* go on here with its result."""

        def finished(done: asyncio.Future[_Result]) -> None:
            try:
                then(done.result())
            except BaseException as err:  # noqa: BLE001 - whatever it is, it is a bug
                self._stop(callers, err)

        self._loop.run_in_executor(self._threads, work).add_done_callback(finished)

    def _flush(self, batch: Batch) -> CommitFailed | None:
        started = time.perf_counter()
        try:
            self._ledger.flush(batch)
        except CommitFailed as err:
            return err
        if batch.line:
            taken = time.perf_counter() - started
            mean = self._mean_flush_s or taken
            self._mean_flush_s = mean + _NEW_SAMPLE * (taken - mean)
        return None

    def _flushed(self, callers: list[Caller], batch: Batch, failure: CommitFailed | None) -> None:
        """Answer *callers*; where the flush has failed, only after a reseal was tried."""
        if failure is not None and self._may_reseal():
            self._in_thread(callers, self._reseal, lambda _: self._finish(callers, batch, failure))
        else:
            self._finish(callers, batch, failure)

    def _may_reseal(self) -> bool:
        return self._ledger.failed and self._loop.time() >= self._reseal_after_s

    def _reseal(self) -> None:
        """Try to let the ledger take commits again; after a refusal leave the disk alone."""
        try:
            self._ledger.reseal()
        except CommitFailed as err:
            _log.warning("the ledger takes no commits: %s", err)
            self._reseal_after_s = self._loop.time() + self._reseal_pause_s
            self._reseal_pause_s = min(2 * self._reseal_pause_s, RESEAL_LONGEST_PAUSE_S)
        else:
            _log.warning("a flush has failed; the ledger goes on in a new segment")
            self._reseal_pause_s = RESEAL_PAUSE_S
            self._upkeep.urgent = self._upkeep.is_owed = True

    def _finish(self, callers: list[Caller], batch: Batch, failure: CommitFailed | None) -> None:
        """Publish *batch*, tell each caller, and go on with what has arrived since.

        A batch that failed is not done for anyone: a refusal in it may rest on a change in it.
        """
        if failure is None:
            self._ledger.publish(batch)
            for watcher in self.watchers:
                watcher.set()
        for (_, future), outcome in zip(callers, batch.outcomes, strict=True):
            if future.done():
                continue
            if failure is not None:
                future.set_exception(failure.anew())
            elif isinstance(outcome, AxernError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        self._upkeep.look(batch if failure is None else None)
        if self._mean_flush_s >= self._slow_flush_s:
            # Callers in a closed loop come back at once: give them a moment, or each flush takes
            # only those who came during the one before.
            self._gather_target = len(callers) + len(self._queue)
            self._gathering = self._loop.call_later(GATHER_SHARE * self._mean_flush_s, self._start)
        elif self._queue:
            self._loop.call_soon(self._start)
        else:
            self._resting.set()

    def _stop(self, callers: list[Caller], bug: BaseException) -> None:
        """Refuse everything from now on: the state can't be trusted after a bug."""
        self._bug = bug
        callers, self._queue, self._waiting = callers + self._queue, [], 0
        for _, future in callers:
            if not future.done():
                future.set_exception(bug)
        self._upkeep.halt()
        self._resting.set()


class _Upkeep:
    """What is done beside commits, one thing at a time: checkpoints, and segments made ahead."""

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


def _nothing(_view: State) -> Change:
    """Change nothing: an operation that only waits its turn."""
    return Change("nothing")
