"""One coroutine a sandbox, from its reservation to its burial; after a restart it goes on.

A life reads its phase from the ledger and carries on from there, so that a new sandbox and one
that is adopted take the same way. Every end leads through the same last steps: exit record,
`retiring`, burial with proof, release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from axern.daemon import launcher
from axern.daemon.life import Ending, Life
from axern.daemon.runs import CANCELLED, FAILED, RunExit, wall_ms
from axern.errors import HostError, NotProvedGone
from axern.failpoint import failpoint
from axern.runtime import monitor, teardown
from ledger import transitions
from ledger.errors import AxernError, CommitFailed, LedgerBusy
from ledger.reservation import RESERVED, RETIRING, STARTING, STOPPING, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from axern.daemon.launcher import Outcome
    from axern.daemon.runs import RunSpec, RunStore
    from axern.runtime.layout import Layout, SandboxPaths
    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.state import Change, State
    from ledger.store import Ledger

Result = TypeVar("Result")

USER_CANCELLED = CANCELLED
EXPIRED = "expired"
MONITOR_LOST = "monitor-lost"

_RETRY_BURIAL_S = (0.1, 0.5, 2.0, 5.0)
_RETRY_COMMIT_S = 0.5
_MONITOR_RECHECK_S = 1.0
"""How long a monitor may be gone before its exit file must be there."""

_log = logging.getLogger(__name__)


class Lives:
    """All sandboxes that are not released yet, each with its coroutine."""

    def __init__(
        self,
        ledger: Ledger,
        committer: Committer,
        layout: Layout,
        runs: RunStore,
        settings: Settings,
        clock: Callable[[], Now],
    ) -> None:
        self._ledger = ledger
        self._committer = committer
        self._layout = layout
        self._runs = runs
        self._settings = settings
        self._clock = clock
        self._lives: dict[str, Life] = {}
        self._launches = ThreadPoolExecutor(settings.launch_workers, "launch")
        # Apart, so that what resists its burial keeps nobody from being launched.
        self._burials = ThreadPoolExecutor(settings.launch_workers, "burial")
        self._closing = False
        self.failed = asyncio.Event()

    def begin(self, reservation_id: str) -> Life:
        """Let the sandbox live on from its phase in the ledger; one that does already is kept."""
        life = self._lives.get(reservation_id)
        if life is None:
            life = Life(reservation_id)
            self._lives[reservation_id] = life
            life.task = asyncio.create_task(self._guarded(life), name=f"life {reservation_id}")
        return life

    def find(self, reservation_id: str) -> Life | None:
        """Return the life of a sandbox that is not released, or None."""
        return self._lives.get(reservation_id)

    def all(self) -> tuple[Life, ...]:
        """Return every life."""
        return tuple(self._lives.values())

    def stop(self, reservation_id: str, reason: str, by: str, grace_ms: int) -> None:
        """Ask a sandbox to end; a later call may only shorten the grace. Unknown ids are over."""
        life = self._lives.get(reservation_id)
        if life is None:
            return
        if life.stop_reason is None:
            life.stop_reason, life.stop_by, life.grace_ms = reason, by, grace_ms
        life.grace_ms = min(life.grace_ms, grace_ms)
        life.woken.set()

    def wake(self, reservation_id: str) -> None:
        """Let a sandbox look at its exit file; an empty id wakes all."""
        lives = self._lives.values() if not reservation_id else [self._lives.get(reservation_id)]
        for life in lives:
            if life is not None:
                life.woken.set()

    async def close(self, timeout_s: float) -> None:
        """Start nothing new, let what is half done come to rest, leave the sandboxes running."""
        self._closing = True
        self.wake("")
        waits = [
            asyncio.create_task(_first(life.resting.wait(), life.over.wait()))
            for life in self._lives.values()
        ]
        if waits:
            await asyncio.wait(waits, timeout=timeout_s)
        for task in (*waits, *(life.task for life in self._lives.values() if life.task)):
            task.cancel()
        for pool in (self._launches, self._burials):
            pool.shutdown(wait=True, cancel_futures=True)

    async def _guarded(self, life: Life) -> None:
        try:
            await self._live(life)
        except asyncio.CancelledError:
            raise
        except BaseException:
            _log.exception("sandbox %s: its life ended by a bug", life.reservation_id)
            self.failed.set()
            raise
        finally:
            self._lives.pop(life.reservation_id, None)
            life.over.set()
            life.moved.notify()

    async def _live(self, life: Life) -> None:
        reservation = self._reservation(life)
        spec = self._runs.spec(reservation.id)
        outcome: Outcome | None = None
        if reservation.phase in (RESERVED, STARTING):
            if spec is None:
                outcome = launcher.failed("the run's spec is missing", 125)
            elif reservation.phase == RESERVED:
                outcome = await self._launch(life, spec)
            else:
                outcome = await self._resume(life, spec)
        if outcome is None and self._reservation(life).phase != RETIRING:
            outcome = await self._watch(life)
        await self._end(life, outcome)

    def _reservation(self, life: Life) -> Reservation:
        return self._ledger.state.reservation(life.reservation_id)

    async def _launch(self, life: Life, spec: RunSpec) -> Outcome | None:
        """Make and start the sandbox; return how it failed, or None when it runs."""
        if self._closing:
            await self._rest(life)
        if life.must_stop():
            return _stopped(life)
        reservation = await self._commit(partial(transitions.start, reservation_id=spec.id))
        failpoint("launch.starting")
        try:
            sandbox = launcher.sandbox_spec(spec, reservation)
            created = await self._to_launch(launcher.create, sandbox, self._layout, self._settings)
            if life.must_stop():
                return _stopped(life)
            await self._to_launch(launcher.start, sandbox, self._layout, self._settings)
        except (AxernError, OSError) as error:
            # The message may quote the command line, which belongs in no log.
            _log.warning("sandbox %s: not started: %s", spec.id, type(error).__name__)
            return launcher.outcome_of(error)
        await self._running(life, created)
        return None

    async def _running(self, life: Life, found: launcher.Found) -> None:
        await self._commit(
            partial(
                transitions.run,
                reservation_id=life.reservation_id,
                monitor=found.monitor,
                cgroup=found.cgroup,
                started_wall_ms=wall_ms(),
            )
        )
        failpoint("launch.running")
        life.moved.notify()

    async def _resume(self, life: Life, spec: RunSpec) -> Outcome | None:
        """Find out how far the launch had come when the daemon before this one ended."""
        ended = _read_exit(self._layout.sandbox(spec.id))
        if ended is not None:
            return _ended(life, ended)
        try:
            found = await self._to_launch(launcher.find, spec.runtime_class, self._layout, spec.id)
        except (AxernError, OSError) as error:
            return launcher.outcome_of(error)
        if found is None:
            return launcher.failed("the daemon ended during the launch; nothing was started", 125)
        await self._running(life, found)
        return None

    async def _watch(self, life: Life) -> Outcome:
        """Wait until the workload has ended, ending it where that was asked for."""
        paths = self._layout.sandbox(life.reservation_id)
        ending = Ending()
        monitor_suspected = False
        while True:
            life.woken.clear()
            ended = _read_exit(paths)
            if ended is not None:
                return _ended(life, ended)
            reservation = self._reservation(life)
            if reservation.phase == STOPPING and life.stop_reason is None:
                life.stop_reason, life.grace_ms = reservation.reason, self._settings.stop_grace_ms
            timeout_s = self._settings.tick_ms / 1000
            if life.must_stop():
                timeout_s = await self._press(life, ending, timeout_s)
            if not self._monitor_lives(reservation):
                if monitor_suspected:
                    await self._kill(life)
                    ended = _read_exit(paths)
                    return _ended(life, ended) if ended else _monitor_lost()
                monitor_suspected, timeout_s = True, min(timeout_s, _MONITOR_RECHECK_S)
            life.resting.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(life.woken.wait(), timeout_s)
            life.resting.clear()

    async def _press(self, life: Life, ending: Ending, timeout_s: float) -> float:
        """Ask the workload to end, and kill it when its grace is over; return when to look again.

        Safe to repeat: it asks once and kills once, however often it is called.
        """
        now_ms = self._clock().monotonic_ms
        if ending.deadline_ms is None:
            await self._ask_to_end(life)
            ending.deadline_ms = now_ms + life.grace_ms
        left_ms = min(ending.deadline_ms, now_ms + life.grace_ms) - now_ms
        if left_ms > 0:
            return left_ms / 1000
        if ending.killed:
            return timeout_s
        ending.killed = True
        await self._kill(life)
        return 0.0

    def _monitor_lives(self, reservation: Reservation) -> bool:
        return reservation.monitor is not None and launcher.is_alive(reservation.monitor)

    async def _ask_to_end(self, life: Life) -> None:
        reservation = await self._commit(
            partial(
                transitions.stop,
                reservation_id=life.reservation_id,
                reason=life.stop_reason or USER_CANCELLED,
                by=life.stop_by,
            )
        )
        life.moved.notify()
        if life.grace_ms > 0 and reservation.runtime is not None:
            with contextlib.suppress(OSError):  # as for a runtime that can't: SIGKILL follows
                await self._to_grave(
                    teardown.terminate, reservation.runtime, self._layout, reservation.id
                )

    async def _kill(self, life: Life) -> None:
        """Kill all of it; what survives stays charged, and its burial tries for as long as needed.

        One process that the kernel can't end must not take down the daemon.
        """
        try:
            await self._to_grave(teardown.kill, self._layout, life.reservation_id)
        except (HostError, OSError) as error:
            _log.warning("sandbox %s: %s", life.reservation_id, error)

    async def _end(self, life: Life, outcome: Outcome | None) -> None:
        """Record the exit, bury, prove, release: each step safe to repeat after a crash."""
        reservation = self._reservation(life)
        if outcome is None:
            ended = _read_exit(self._layout.sandbox(reservation.id))
            outcome = _ended(life, ended) if ended else launcher.failed("it ended unseen", 125)
        record = RunExit(
            status=outcome.status,
            exit_code=outcome.exit_code,
            cli_exit_code=outcome.cli_exit_code,
            started_wall_ms=reservation.started_wall_ms,
            finished_wall_ms=outcome.finished_wall_ms or wall_ms(),
            diagnostic_code=outcome.diagnostic_code,
            message=outcome.message,
        )
        await self._record(reservation.id, record)
        failpoint("bury.exit_record")
        await self._commit(
            partial(
                transitions.retire,
                reservation_id=reservation.id,
                reason=outcome.diagnostic_code or outcome.status,
            )
        )
        evidence = await self._bury(reservation)
        await self._commit(
            partial(transitions.release, reservation_id=reservation.id, evidence=evidence)
        )
        failpoint("bury.released")
        monitor.discard_exit(self._layout.sandbox(reservation.id))

    async def _record(self, run_id: str, record: RunExit) -> None:
        """Make the exit record durable, however long the disk takes to have room for it."""
        while True:
            try:
                return await self._to_grave(self._runs.save_exit, run_id, record)
            except OSError as error:
                _log.warning("sandbox %s: its exit record can't be stored: %s", run_id, error)
                await asyncio.sleep(_RETRY_COMMIT_S)

    async def _bury(self, reservation: Reservation) -> str:
        """Bury until it is proved, however long that takes: until then it stays charged."""
        runtime = reservation.runtime or self._settings.default_runtime
        attempt = 0
        while True:
            try:
                evidence = await self._to_grave(
                    teardown.bury, runtime, self._layout, reservation.id
                )
            except (NotProvedGone, HostError, OSError) as error:
                _log.warning("sandbox %s: %s", reservation.id, error)
                pause_s = _RETRY_BURIAL_S[min(attempt, len(_RETRY_BURIAL_S) - 1)]
                attempt += 1
                await asyncio.sleep(pause_s)
            else:
                return launcher.evidence_text(evidence)

    async def _rest(self, life: Life) -> None:
        """Stay as it is until the daemon has ended; the next one goes on from here."""
        life.resting.set()
        await asyncio.Event().wait()

    async def _commit(self, operation: Callable[[State], Change]) -> Reservation:
        """Commit, however long that takes: what happened on the host can't be taken back."""
        while True:
            try:
                return cast("Reservation", await self._committer.submit(operation))
            except (CommitFailed, LedgerBusy) as error:
                _log.warning("the ledger can't take a step of a sandbox: %s", error)
                await asyncio.sleep(_RETRY_COMMIT_S)

    async def _to_launch(self, call: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._launches, partial(call, *arguments))

    async def _to_grave(self, call: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._burials, partial(call, *arguments))


async def _first(*waits: Coroutine[object, object, object]) -> None:
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _read_exit(paths: SandboxPaths) -> monitor.ExitRecord | None:
    """Return how the monitor says that it ended; a file that can't be read says nothing."""
    try:
        return monitor.read_exit(paths)
    except HostError as error:
        _log.warning("sandbox %s: %s", paths.sandbox_id, error)
        return None


def _stopped(life: Life) -> Outcome:
    return launcher.stopped(life.stop_reason or USER_CANCELLED, None, None)


def _ended(life: Life, ended: monitor.ExitRecord) -> Outcome:
    if life.stop_reason is not None:
        return launcher.stopped(life.stop_reason, ended.exit_code, ended.ended_at_ms)
    return launcher.exited(ended.exit_code, ended.ended_at_ms)


def _monitor_lost() -> Outcome:
    return launcher.Outcome(
        FAILED, None, 125, MONITOR_LOST, "the monitor ended without an exit record"
    )
