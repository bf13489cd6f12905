"""The course of one sandbox's life, from its reservation to its burial; it can go on anywhere.

It reads its phase from the ledger and carries on from there, so that a new sandbox and one that
is adopted take the same way. Every end leads through the same last steps: exit record,
`retiring`, burial with proof, release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from axern.daemon import launcher
from axern.daemon.crew import Crew
from axern.daemon.deadline import Deadlines
from axern.daemon.limit_hits import LimitHits
from axern.daemon.networks import Networks
from axern.daemon.runs import wall_ms
from axern.errors import HostError, NotProvedGone
from axern.failpoint import failpoint
from axern.runtime import confinement, monitor, record, segments, storage, teardown, verdict
from axern.runtime import outcome as ending
from ledger import transitions
from ledger.errors import AxernError, CommitFailed, LedgerBusy, StateConflict
from ledger.release import is_note
from ledger.reservation import RESERVED, RETIRING, STOPPING, Reservation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from axern.daemon.launcher import Found
    from axern.daemon.life import Life
    from axern.daemon.runs import RunSpec, RunStore
    from axern.runtime.layout import Layout, SandboxPaths
    from axern.runtime.outcome import Outcome
    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.state import Change, State
    from ledger.store import Ledger

Result = TypeVar("Result")

USER_CANCELLED = ending.CANCELLED
MONITOR_LOST = "monitor-lost"

_RETRY_S = 0.5
_RETRY_BURIAL_S = (0.1, 0.5, 2.0, 5.0)
_UNKNOWABLE_RETRY_S = 2.0
_MONITOR_RECHECK_S = 1.0
"""How long a monitor may be gone before its exit file must be there."""

_log = logging.getLogger(__name__)


class Course:
    """The steps of every life; it keeps nothing of any sandbox."""

    def __init__(
        self,
        ledger: Ledger,
        committer: Committer,
        layout: Layout,
        runs: RunStore,
        settings: Settings,
        clock: Callable[[], Now],
    ) -> None:
        self.crew = Crew(settings.launch_workers)
        self._ledger = ledger
        self._committer = committer
        self._layout = layout
        self._runs = runs
        self._settings = settings
        self._clock = clock
        self._closing = False
        self._deadlines = Deadlines(ledger, clock, settings.stop_grace_ms)
        self._hits = LimitHits(layout.filestore)
        self.networks = Networks(ledger, layout, settings)

    def close(self) -> None:
        """Begin no launch from now on; the next daemon does."""
        self._closing = True

    async def leave(self) -> None:
        """Wait for the crew, and hear nothing any more."""
        await self.crew.leave()
        await self.networks.close()
        self._hits.close()

    async def run(self, life: Life) -> None:
        """Live *life* to its end."""
        reservation = self._reservation(life)
        if storage.project_for(reservation) is not None:
            self._hits.listen()
        if reservation.phase == STOPPING:
            grace_ms = self._settings.stop_grace_ms
            reason = reservation.reason or USER_CANCELLED
            life.stop(reason, "daemon", self._clock().monotonic_ms + grace_ms)
        self._deadlines.watch(life)
        outcome = None
        has_record = await self._insist(life, self._runs.has_ended, reservation.id)
        if not has_record and reservation.phase != RETIRING:
            outcome = await self._until_ended(life, reservation)
        await self._end(life, outcome)

    async def _until_ended(self, life: Life, reservation: Reservation) -> Outcome:
        outcome: Outcome | None = None
        if reservation.monitor is None:
            spec = await self._insist(life, self._runs.spec, reservation.id)
            if reservation.phase != RESERVED:
                outcome = await self._resume(life, reservation, spec)
            elif spec is None:
                outcome = ending.failed("the run's spec is missing")
            else:
                outcome = await self._launch(life, spec)
        return outcome or await self._watch(life)

    def _reservation(self, life: Life) -> Reservation:
        return self._ledger.state.reservation(life.reservation_id)

    async def _launch(self, life: Life, spec: RunSpec) -> Outcome | None:
        """Make and start the sandbox; return how it failed, or None when it runs."""
        async with self._launch_slot(life):
            if life.must_stop():
                return self._stopped(life)
            try:
                reservation = await self._commit(partial(transitions.start, reservation_id=spec.id))
            except StateConflict:  # it was cancelled in the ledger, and this life hears it next
                return self._stopped(life)
            failpoint("launch.starting")
            try:
                network = await self.networks.connection(reservation)
                sandbox = launcher.sandbox_spec(spec, reservation, self._layout, network)
                self._hits.follow(storage.project_for(reservation))
                call = (sandbox, self._layout, self._settings)
                created = await self.crew.launch(launcher.create, *call)
                if life.must_stop():
                    return self._stopped(life)
                await self.crew.launch(launcher.start, *call)
            except (AxernError, OSError) as error:
                # What a runtime says may quote the command line, which belongs in no log.
                why = error if isinstance(error, HostError) else type(error).__name__
                _log.warning("sandbox %s: not started: %s", spec.id, why)
                return ending.outcome_of(error)
        await self._running(life, created, spec)
        return None

    @contextlib.asynccontextmanager
    async def _launch_slot(self, life: Life) -> AsyncIterator[None]:
        """Wait for a turn at launching, in which nothing exists yet and nothing is half done.

        A life that must stop has its turn at once; when the daemon closes there are no turns.
        """
        slots = self.crew.launch_slots
        turn = asyncio.ensure_future(slots.acquire())
        try:
            while not life.must_stop() and (self._closing or not turn.done()):
                life.woken.clear()
                life.resting.set()
                woken = asyncio.ensure_future(life.woken.wait())
                waits = {woken} if turn.done() else {woken, turn}
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
            life.resting.clear()
            yield
        finally:
            if not turn.cancel() and not turn.cancelled():
                slots.release()

    async def _running(self, life: Life, found: Found, spec: RunSpec | None) -> None:
        timeout_ms = spec.timeout_ms if spec else None
        ends_ms = None if timeout_ms is None else self._clock().boottime_ms + timeout_ms
        await self._commit(
            partial(
                transitions.run,
                reservation_id=life.reservation_id,
                monitor=found.monitor,
                cgroup=found.cgroup,
                started_wall_ms=wall_ms(),
                ends_boottime_ms=ends_ms,
            )
        )
        failpoint("launch.running")
        self._deadlines.watch(life)
        life.moved.notify()

    async def _resume(
        self, life: Life, reservation: Reservation, spec: RunSpec | None
    ) -> Outcome | None:
        """Find out how far the launch had come when the daemon before this one ended.

        As long as that can't be known, it stays as it is, and charged.
        """
        paths = self._layout.sandbox(life.reservation_id)
        runtime = reservation.runtime or self._settings.default_runtime
        while True:
            try:
                found = await self.crew.do(launcher.find, runtime, self._layout, reservation.id)
            except (AxernError, OSError) as error:
                _log.warning("sandbox %s: can't tell if it runs: %s", reservation.id, error)
                if life.must_stop():
                    return self._stopped(life)
                await life.pause(_UNKNOWABLE_RETRY_S)
                continue
            ended = _read_exit(paths)
            if found is not None and ended is None:
                await self._running(life, found, spec)
                return None
            if ended is not None:
                return self._ended(life, ended)
            if life.must_stop():
                return self._stopped(life)
            return ending.failed("the daemon ended during the launch; nothing was started")

    async def _watch(self, life: Life) -> Outcome:
        """Wait until the workload has ended, ending it where that was asked for."""
        paths = self._layout.sandbox(life.reservation_id)
        asked = monitor_suspected = False
        while True:
            life.woken.clear()
            ended = _read_exit(paths)
            if ended is not None:
                return self._ended(life, ended)
            timeout_s = self._settings.tick_ms / 1000
            if life.must_stop():
                if not asked:
                    await self._ask_to_end(life)
                    asked = True
                left_ms = life.kill_at_ms - self._clock().monotonic_ms
                if left_ms <= 0 and await self._kill(life):
                    return self._after_kill(life, _read_exit(paths))
                timeout_s = min(timeout_s, max(left_ms / 1000, _RETRY_S if left_ms <= 0 else 0.01))
            if not self._monitor_lives(life):
                if monitor_suspected and await self._kill(life):
                    return self._after_kill(life, _read_exit(paths))
                monitor_suspected, timeout_s = True, min(timeout_s, _MONITOR_RECHECK_S)
            await life.rest(timeout_s)

    def _monitor_lives(self, life: Life) -> bool:
        watcher = self._reservation(life).monitor
        try:
            return watcher is not None and launcher.is_alive(watcher)
        except OSError as error:  # no descriptor to ask with: that says nothing of the monitor
            _log.warning("sandbox %s: its monitor: %s", life.reservation_id, error)
            return True

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
        if life.kill_at_ms > self._clock().monotonic_ms and reservation.runtime is not None:
            # Beside the watch: a runtime that hangs must not hold up the kill.
            terminating = self._terminate(reservation.runtime, reservation.id)
            life.errand = asyncio.create_task(terminating)

    async def _terminate(self, runtime: str, sandbox_id: str) -> None:
        with contextlib.suppress(OSError):  # as for a runtime that can't: SIGKILL follows
            await self.crew.do(teardown.terminate, runtime, self._layout, sandbox_id)

    async def _kill(self, life: Life) -> bool:
        """Kill all of it; return False where something survives, which is tried again.

        One process that the kernel can't end must not take down the daemon.
        """
        life.ending = True
        try:
            await self.crew.do(teardown.kill, self._layout, life.reservation_id)
        except (HostError, OSError) as error:
            _log.warning("sandbox %s: %s", life.reservation_id, error)
            return False
        return True

    def _stopped(self, life: Life) -> Outcome:
        return ending.stopped(self._reason(life), None, None)

    def _ended(self, life: Life, ended: monitor.ExitRecord) -> Outcome:
        """Return how it ended; what ended before it was asked to has ended by itself.

        A deadline may have passed, or somebody may have asked, while nobody watched.
        """
        if self._reservation(life).phase == STOPPING:
            return ending.stopped(self._reason(life), ended.exit_code, ended.ended_at_ms)
        return ending.exited(ended.exit_code, ended.ended_at_ms)

    def _after_kill(self, life: Life, ended: monitor.ExitRecord | None) -> Outcome:
        """Return how it ended once all of it was killed, with or without a word of its monitor."""
        if ended is not None:
            return self._ended(life, ended)
        if life.must_stop():
            return self._stopped(life)
        return ending.Outcome(
            ending.FAILED,
            None,
            ending.OWN_FAILURE,
            MONITOR_LOST,
            "the monitor ended without an exit record",
        )

    def _reason(self, life: Life) -> str:
        """Return why it was asked to end; what the ledger has of it came before anything heard."""
        row = self._reservation(life)
        committed = row.reason if row.phase == STOPPING else None
        return committed or life.stop_reason or USER_CANCELLED

    async def _end(self, life: Life, outcome: Outcome | None) -> None:
        """Record the exit, bury, prove, release: each step safe to repeat after a crash."""
        life.ending = True
        reservation = self._reservation(life)
        paths = self._layout.sandbox(reservation.id)
        await self._record(life, reservation, outcome)
        failpoint("bury.exit_record")
        reason = (outcome.diagnostic_code or outcome.status) if outcome else "ended"
        in_use_bytes = await self.crew.do(confinement.memory_bytes, paths)
        retired = await self._commit(
            partial(
                transitions.retire,
                reservation_id=reservation.id,
                reason=reason,
                memory_bytes=in_use_bytes,
            )
        )
        life.moved.notify()
        evidence = await self._bury(life, reservation)
        if is_note(retired.reason):
            evidence = f"{retired.reason}; {evidence}"
        await self._commit(
            partial(transitions.release, reservation_id=reservation.id, evidence=evidence)
        )
        life.evidence = evidence
        failpoint("bury.released")
        monitor.discard_exit(paths)

    async def _record(self, life: Life, reservation: Reservation, outcome: Outcome | None) -> None:
        """Make the exit record durable, however long the disk takes to have room for it."""
        if outcome is None:
            ended = _read_exit(self._layout.sandbox(reservation.id))
            outcome = self._ended(life, ended) if ended else ending.failed("it ended unseen")
        paths = self._layout.sandbox(reservation.id)
        await self.crew.do(segments.doubt_if_full, paths.log)
        hit = self._hits.end(storage.project_for(reservation))
        outcome = await self._insist(life, verdict.judged, outcome, paths, reservation, hit)
        written = record.of(outcome, reservation.started_wall_ms, wall_ms())
        await self._insist(life, self._runs.save_exit, reservation.id, written)

    async def _insist(self, life: Life, call: Callable[..., Result], *arguments: object) -> Result:
        """Call until the disk lets it, however long that takes; a full one is told of once."""
        told = False
        while True:
            try:
                return await self.crew.do(call, *arguments)
            except OSError as error:
                if not told:
                    _log.warning("sandbox %s: its run's record: %s", life.reservation_id, error)
                told = True
                await life.pause(_RETRY_S)

    async def _bury(self, life: Life, reservation: Reservation) -> str:
        """Bury until it is proved, however long that takes: until then it stays charged."""
        runtime = reservation.runtime or self._settings.default_runtime
        attempt = 0
        while True:
            try:
                call = (runtime, self._layout, reservation.id, storage.project_for(reservation))
                evidence = await self.crew.bury(teardown.bury, *call)
                await self.networks.leave(reservation)
            except (NotProvedGone, HostError, OSError) as error:
                _log.warning("sandbox %s: %s", reservation.id, error)
                pause_s = _RETRY_BURIAL_S[min(attempt, len(_RETRY_BURIAL_S) - 1)]
                attempt += 1
                await life.pause(pause_s)
            else:
                return evidence.text()

    async def _commit(self, operation: Callable[[State], Change]) -> Reservation:
        """Commit, however long that takes: what happened on the host can't be taken back."""
        while True:
            try:
                return cast("Reservation", await self._committer.submit(operation))
            except (CommitFailed, LedgerBusy) as error:
                _log.warning("the ledger can't take a step of a sandbox: %s", error)
                await asyncio.sleep(_RETRY_S)


def _read_exit(paths: SandboxPaths) -> monitor.ExitRecord | None:
    """Return how the monitor says that it ended; a file that can't be read says nothing."""
    try:
        return monitor.read_exit(paths)
    except (HostError, OSError) as error:
        _log.warning("sandbox %s: its exit file: %s", paths.sandbox_id, error)
        return None
