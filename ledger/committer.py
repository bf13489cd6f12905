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
    CommitFailed,
    InvariantViolation,
    LedgerBusy,
)
from ledger.staging import Batch, Group, Operation
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.upkeep import IDLE_S, Upkeep

QUEUE_LIMIT = 4096
"""Operations that may wait, those of groups counted one by one."""
BUSY_RETRY_AFTER_S = 1
SLOW_FLUSH_S = 0.001
"""From this mean on a flush is worth a thread. Source: docs/decisions/0005-ledger-format.md."""
GATHER_SHARE = 0.25
"""How long to gather after a slow flush, as a share of the mean flush."""
RESEAL_PAUSE_S = 0.1
"""The pause after the first reseal that the disk refused; each further one doubles it."""
RESEAL_LONGEST_PAUSE_S = 10.0
_NEW_SAMPLE = 0.1
_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
Told = Callable[[object], None]
"""Hears what came of an operation: its result, or the error that says why it is not done."""
Caller = tuple[Operation | Group, Told]


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
        self._upkeep = Upkeep(ledger, self._threads, self._resting, idle_s)
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_target = 0
        self._mean_flush_s = 0.0
        self._reseal_after_s = 0.0
        self._reseal_pause_s = RESEAL_PAUSE_S
        self._closing = False
        self._bug: BaseException | None = None
        self.watchers: set[asyncio.Event] = set()
        self.on_granted: Callable[[list[Change]], None] | None = None

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
        future: asyncio.Future[object] = self._loop.create_future()
        self.enqueue(operation, partial(_settle, future))
        return await future

    def enqueue(self, operation: Operation | Group, told: Told) -> None:
        """Perform *operation* as `submit` does, and let *told* hear what came of it.

        It is called once, later and never from within this call, as soon as the outcome holds, and
        must not raise.

        Raises:
            LedgerBusy: Too many wait, or the committer is being closed; nothing is changed.
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
        self._queue.append((operation, told))
        self._waiting += size
        if self._resting.is_set():
            self._resting.clear()
            self._loop.call_soon(self._start)
        elif self._gathering is not None and len(self._queue) >= self._gather_target:
            self._gathering.cancel()
            self._gathering = None
            self._loop.call_soon(self._start)

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
            if batch.granted and self.on_granted is not None:
                self.on_granted(batch.granted)
        arrived = len(self._queue)
        for (_, told), outcome in zip(callers, batch.outcomes, strict=True):
            self._tell(told, outcome if failure is None else failure.anew())
        self._upkeep.look(batch if failure is None else None)
        if self._mean_flush_s >= self._slow_flush_s and len(self._queue) < len(callers) + arrived:
            # Callers in a closed loop come back at once: give them a moment, or each flush takes
            # only those who came during the one before.
            self._gather_target = len(callers) + arrived
            self._gathering = self._loop.call_later(GATHER_SHARE * self._mean_flush_s, self._start)
        elif self._queue:
            self._loop.call_soon(self._start)
        else:
            self._resting.set()

    def _stop(self, callers: list[Caller], bug: BaseException) -> None:
        """Refuse everything from now on: the state can't be trusted after a bug."""
        self._bug = bug
        callers, self._queue, self._waiting = callers + self._queue, [], 0
        for _, told in callers:
            self._tell(told, bug)
        self._upkeep.halt()
        self._resting.set()

    def _tell(self, told: Told, outcome: object) -> None:
        """Let one caller hear its outcome; a bug in what it does with it concerns nobody else."""
        try:
            told(outcome)
        except Exception:  # noqa: BLE001 - the others wait for theirs
            _log.exception("a caller of the ledger could not take its outcome")


def _settle(future: asyncio.Future[object], outcome: object) -> None:
    if future.done():  # nobody waits any more
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _nothing(_view: State) -> Change:
    """Change nothing: an operation that only waits its turn."""
    return Change("nothing")
