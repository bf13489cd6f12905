"""Release, look and examine without a daemon: by root, under both locks that a daemon would hold.

Each step is durable before the next, in the daemon's own order, so that a release which dies
anywhere leaves the entry charged, and the next one, or a daemon, goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from axern.errors import HostError
from axern.failpoint import failpoint
from axern.host.inventory import read_clocks
from axern.runtime import (
    confinement,
    doctor,
    held_limits,
    monitor,
    networking,
    outcome,
    quota_audit,
    record,
    remains,
    retirement,
    storage,
    teardown,
    traces,
    verdict,
)
from axern.runtime import evidence as proof
from axern.runtime.configured import layout_of, sole_user_of
from axern.runtime.traces import Traces
from ledger import reader, release, transitions
from ledger.clock import Now
from ledger.errors import CommitFailed, InvalidArgument, PermissionDenied
from ledger.release import Asked, Released
from ledger.reservation import EXPIRED, STOPPING, UNOBSERVED, Reservation
from ledger.store import Ledger

if TYPE_CHECKING:
    from axern.runtime.layout import Layout, SandboxPaths
    from axern.settings import Settings
    from ledger.findings import Finding
    from ledger.state import Change, State

HOLDER = "axern reservations release"
LOCK_TIMEOUT_S = 5.0


def now() -> Now:
    """Read all clocks."""
    clocks = read_clocks()
    return Now(clocks.boot_id, clocks.monotonic_ms, clocks.boottime_ms, clocks.realtime_ms)


@dataclass(frozen=True, slots=True)
class Desk:
    """What an offline release works on; made by `desk`, which holds both locks."""

    settings: Settings
    layout: Layout
    ledger: Ledger

    def release(self, word: str, asked: Asked, grace_s: float | None) -> Released:
        """Release the entry whose id begins with *word*; one that is gone is told as such.

        Args:
            word: An id or a unique beginning of it.
            asked: Who wants it, and whether what runs shall be stopped.
            grace_s: From TERM to KILL; None is what the configuration says.
        Raises:
            StateConflict: It runs, and *asked* has no force.
            NotProvedGone: Something of it resists; it stays charged.
            NotFound: No id begins so, as far as anything remembers.
            InvalidArgument: Several do.
            CommitFailed: The disk refused; it stays charged.
        """
        try:
            return self._release(word, asked, grace_s)
        except OSError as error:
            where = error.filename or self.settings.state_dir
            raise CommitFailed(
                f"{word} is not released, and stays charged: {where}: {error.strerror}",
                hint="make room on its file system, or mount it writable, and release it again",
            ) from error

    def stand(self, operation: Callable[[State, Now], Change]) -> None:
        """Change how the node stands: drain, undrain or retire, as in `ledger.standing`.

        Raises:
            AxernError: What *operation* raises; nothing is changed.
            CommitFailed: The disk refused; nothing is changed.
        """
        clock = now()
        self.ledger.commit(lambda view: operation(view, clock), clock)
        retirement.remember(self.settings.state_dir, self.ledger)

    def _release(self, word: str, asked: Asked, grace_s: float | None) -> Released:
        row = find_row(self.ledger.state, word)
        if row is None:
            return self._gone(word, asked)
        seen = traces.of(self.layout, row.id)
        runs = may_run(seen)
        moved = self._commit(partial(release.begin, reservation_id=row.id, asked=asked, runs=runs))
        failpoint("release.begun")
        if not row.is_sandbox:
            return _released(moved, asked, asked.note)
        if runs:
            self._stop(moved, grace_s)
            failpoint("release.stopped")
        return self._bury(moved, asked)

    def _stop(self, row: Reservation, grace_s: float | None) -> None:
        """End the workload, and let its monitor write down how."""
        wait_s = self.settings.stop_grace_ms / 1000 if grace_s is None else grace_s
        teardown.stop(self._runtime(row), self.layout, row.id, grace_s=wait_s)
        teardown.kill(self.layout, row.id)

    def _bury(self, row: Reservation, asked: Asked) -> Released:
        """Record the exit, bury, prove, release; as `daemon.course` does."""
        paths = self.layout.sandbox(row.id)
        ended = _read_exit(paths)
        code, at_ms = (ended.exit_code, ended.ended_at_ms) if ended else (None, None)
        if row.phase == STOPPING:
            how = outcome.stopped(row.reason or outcome.CANCELLED, code, at_ms)
        elif ended:
            how = outcome.exited(ended.exit_code, ended.ended_at_ms)
        else:
            how = outcome.failed("it ended unseen")
        how = verdict.judged(how, paths, row)
        wall_ms = now().wall_ms
        record.save_exit(paths.run_folder, record.of(how, row.started_wall_ms, wall_ms))
        failpoint("bury.exit_record")
        reason = how.diagnostic_code or how.status
        in_use_bytes = confinement.memory_bytes(paths)
        retire = partial(transitions.retire, reason=reason, memory_bytes=in_use_bytes)
        retired = self._commit(partial(retire, reservation_id=row.id))
        failpoint("release.retired")
        project = storage.project_for(row)
        evidence = teardown.bury(self._runtime(row), self.layout, row.id, project).text()
        if networking.network_of(self.ledger.state, row.id) is not None:
            networking.apply_once(self.settings, self.layout, self.ledger.state)
        why = retired.reason if release.is_note(retired.reason) else asked.note
        note = f"{why}; {evidence}"
        gone = partial(transitions.release, reservation_id=row.id, evidence=note, by=asked.by)
        last = self._commit(gone)
        failpoint("bury.released")
        monitor.discard_exit(paths)
        return _released(last, asked, note)

    def _gone(self, word: str, asked: Asked) -> Released:
        """Answer for what has no entry."""
        ledger, known = self.ledger, self.ledger.state.find_reservation
        return remains.release(
            self.layout,
            self.settings.ledger_dir,
            word,
            asked,
            ledger.generation,
            lambda name: known(name) is not None,
        )

    def _runtime(self, row: Reservation) -> str:
        return row.runtime or self.settings.default_runtime

    def _commit(self, operation: object) -> Reservation:
        return cast("Reservation", self.ledger.commit(operation, now()))  # type: ignore[arg-type]


@contextlib.contextmanager
def desk(
    settings: Settings, holder: str = HOLDER, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[Desk]:
    """Take both locks that a daemon holds for its whole life; nothing else moves until the end.

    Raises:
        PermissionDenied: Not root.
        LedgerBusy: A daemon, or another release, holds one of them; the message names it.
        NotFound: There is no ledger.
    """
    require_root("release without a daemon")
    layout = layout_of(settings)
    with (
        sole_user_of(settings.run_dir, holder, timeout_s),
        Ledger.open(
            settings.ledger_dir,
            now(),
            create=False,
            lock_timeout_s=timeout_s,
            holder=holder,
            remember_in=settings.run_dir,
        ) as ledger,
    ):
        layout.mount_filestore()
        yield Desk(settings, layout, ledger)


def evidence(settings: Settings, row: Reservation) -> dict[str, object]:
    """Return what the host has of *row*; for root, who alone may look.

    Raises:
        PermissionDenied: Not root.
    """
    require_root("look at a sandbox")
    return proof.collect(row, layout_of(settings), now())


def exit_of(settings: Settings, name: str) -> dict[str, object] | None:
    """Return how the run *name* ended, or None where no record says so."""
    return proof.exit_of(f"{settings.state_dir}/runs/{name}")


def examine(settings: Settings) -> dict[str, object]:
    """Compare the ledger's files with the host, twice, as the daemon's own doctor does.

    Nobody has heard owners while no daemon ran, so that none is called stale.

    Raises:
        PermissionDenied: Not root.
        NotFound: There is no ledger.
    """
    require_root("examine the host")
    layout = layout_of(settings)
    findings, generation = _look(layout, settings.ledger_dir)
    if findings:
        time.sleep(doctor.SECOND_LOOK_S)
        again, generation = _look(layout, settings.ledger_dir)
        findings = doctor.confirmed(findings, again)
    return {"findings": [asdict(finding) for finding in findings], "generation": generation}


def _look(layout: Layout, ledger_dir: str) -> tuple[tuple[Finding, ...], int]:
    snapshot, clock = reader.read(ledger_dir), now()
    same_boot = snapshot.state.clock.boot_id == clock.boot_id
    entries = [
        doctor.Entry(
            row,
            EXPIRED if same_boot and _is_over(row, clock) else UNOBSERVED,
            proof.is_alive(row.owner_process),
            proof.is_alive(row.monitor),
            networking.is_on_bridge(snapshot.state, row.id),
        )
        for row in snapshot.state.reservations()
    ]
    host = traces.Host(layout).all_traces(entry.row.id for entry in entries)
    rows = [entry.row for entry in entries]
    quotas = quota_audit.examine(
        rows,
        (row.lane for row in rows if row.lane is not None),
        quota_audit.look(layout.filestore),
    )
    limits = held_limits.examine(rows, layout)
    return (*doctor.examine(entries, host, ledger_dir), *quotas, *limits), snapshot.generation


def require_root(what: str) -> None:
    """Raise PermissionDenied unless this process is root's; *what* is what it wants to do."""
    if os.geteuid() != 0:
        raise PermissionDenied(
            f"only root may {what}", hint="no daemon runs that could do it: sudo, or start axernd"
        )


def find_row(state: State, word: str) -> Reservation | None:
    """Return the entry whose id begins with *word*, or None.

    Raises:
        InvalidArgument: Several do.
    """
    found = [row for row in state.reservations() if row.id.startswith(word)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} reservations have an id that begins with {word}",
            hint="give more of the id",
        )
    return found[0] if found else None


def may_run(seen: Traces) -> bool:
    """Tell whether a process of the sandbox lives, or its monitor may just be making one."""
    return seen.runs or (seen.monitor.populated and seen.exit_file is None)


def _is_over(row: Reservation, clock: Now) -> bool:
    return row.expires_boottime_ms is not None and clock.boottime_ms >= row.expires_boottime_ms


def _read_exit(paths: SandboxPaths) -> monitor.ExitRecord | None:
    with contextlib.suppress(HostError):
        return monitor.read_exit(paths)
    return None


def _released(row: Reservation, asked: Asked, evidence: str) -> Released:
    return Released(row.id, row, now().wall_ms, asked.by, evidence)
