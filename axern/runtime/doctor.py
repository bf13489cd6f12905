"""What is wrong between the ledger and the host, and what to do about it: a pure comparison.

Both directions: entries whose owner is silent or gone, or whose sandbox is not as the ledger has
it; and what is on the host without an entry. A finding says what was seen, never what is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.findings import PROBLEM, WARNING, Finding
from ledger.reservation import (
    EXPIRED,
    RESERVED,
    RETIRING,
    RUNNING,
    STALE,
    STARTING,
    STOPPING,
)

if TYPE_CHECKING:
    from axern.runtime.traces import Traces
    from ledger.reservation import Reservation

STALE_OWNER = "stale-owner"
EXPIRED_ENTRY = "expired-entry"
ORPHANED_LEASE = "orphaned-lease"
ORPHANED_SANDBOX = "orphaned-sandbox"
DRIFTING_MONITOR = "drifting-monitor"
DRIFTING_CGROUP = "drifting-cgroup"
DRIFTING_MOUNT = "drifting-mount"
DRIFTING_NETWORK = "drifting-network"
DRIFTING_PHASE = "drifting-phase"
DRIFTING_PROCESS = "drifting-process"
DRIFTING_CHARGE = "drifting-charge"
DRIFTING_RECORD = "drifting-record"
LEAKED_SANDBOX = "leaked-sandbox"
LEAKED_FILES = "leaked-files"
LEAKED_RUN = "leaked-run"

CODES = {
    STALE_OWNER: WARNING,
    EXPIRED_ENTRY: WARNING,
    ORPHANED_LEASE: WARNING,
    ORPHANED_SANDBOX: PROBLEM,
    DRIFTING_MONITOR: PROBLEM,
    DRIFTING_CGROUP: PROBLEM,
    DRIFTING_MOUNT: PROBLEM,
    DRIFTING_NETWORK: PROBLEM,
    DRIFTING_PHASE: PROBLEM,
    DRIFTING_PROCESS: PROBLEM,
    DRIFTING_CHARGE: PROBLEM,
    DRIFTING_RECORD: WARNING,
    LEAKED_SANDBOX: PROBLEM,
    LEAKED_FILES: WARNING,
    LEAKED_RUN: WARNING,
}
"""Each kind of finding with its severity."""

SECOND_LOOK_S = 1.0
"""Between two looks; what a launch or a burial leaves for a moment is gone by the second."""

ADMISSION_S = 60.0
"""Longer than an admission takes: until then a run folder may be that of one that is under way."""

_LIVE = (RUNNING, STOPPING)
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry with what was observed of it; None where that could not be known.

    `owner_alive` is that of a lease's process, `monitor_alive` that of the identity in the row.
    """

    row: Reservation
    liveness: str
    owner_alive: bool | None = None
    monitor_alive: bool | None = None
    on_bridge: bool = False


def examine(
    entries: Iterable[Entry], host: Mapping[str, Traces], ledger_dir: str
) -> tuple[Finding, ...]:
    """Return every finding, those of entries first.

    Args:
        entries: All entries of the ledger.
        host: The traces of each entry, and of everything else that is there.
        ledger_dir: Where the ledger is, for who has to look into it.
    """
    listed = tuple(entries)
    known = {entry.row.id for entry in listed}
    found: list[Finding] = []
    for entry in listed:
        found.extend(_of_entry(entry, host.get(entry.row.id), ledger_dir))
    for name in sorted(host.keys() - known):
        found.extend(_leaks(host[name]))
    return tuple(found)


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of *second* that *first* has too: what was no moment in between.

    Numbers in the words may have changed; the kind and the entry are what counts.
    """
    seen = {(finding.code, finding.id) for finding in first}
    return tuple(finding for finding in second if (finding.code, finding.id) in seen)


def _of_entry(entry: Entry, traces: Traces | None, ledger_dir: str) -> Iterator[Finding]:
    row = entry.row
    yield from _owner(entry)
    if row.phase != RETIRING and row.charged != row.requests:
        yield _finding(
            DRIFTING_CHARGE,
            row.id,
            f"it is {row.phase} and charged {row.charged}, but requested {row.requests}",
            f"python -m ledger check {ledger_dir}",
        )
    if row.is_sandbox and traces is not None:
        yield from _sandbox(entry, traces)


def _owner(entry: Entry) -> Iterator[Finding]:
    row = entry.row
    release = f"axern reservations release {row.id}"
    if row.is_sandbox:
        release += " --force --reason TEXT"
    if entry.owner_alive is False:
        pid = row.owner_process.pid if row.owner_process else 0
        words = f"its owner, process {pid}, is gone, and it is still charged"
        yield _finding(ORPHANED_LEASE, row.id, words, release)
    elif entry.liveness == EXPIRED and row.phase != RETIRING:
        yield _finding(EXPIRED_ENTRY, row.id, "its time is over, and it is still charged", release)
    elif entry.liveness == STALE:
        words = f"nothing was heard of its owner, uid {row.owner.uid}, for the stale window"
        yield _finding(STALE_OWNER, row.id, words, release)


def _sandbox(entry: Entry, traces: Traces) -> Iterator[Finding]:
    row = entry.row
    force = f"axern reservations release {row.id} --force --reason TEXT"
    if row.phase == RESERVED and traces.kernel:
        yield _finding(
            DRIFTING_PHASE, row.id, f"it is reserved, but there is {_some(traces.kernel)}", force
        )
    if row.phase in _LIVE and row.monitor is not None:
        yield from _started(entry, traces, force)
    if row.phase in (STARTING, *_LIVE) and traces.strays:
        pids = ", ".join(map(str, traces.strays[:_MOST_NAMED]))
        words = f"in {traces.workload.path}, but in no group of its own there: process {pids}"
        yield _finding(DRIFTING_PROCESS, row.id, words, force)
    yield from _record(row, traces, force)


def _started(entry: Entry, traces: Traces, force: str) -> Iterator[Finding]:
    """Compare one that the ledger says was started and has not ended."""
    row, group = entry.row, traces.workload
    if traces.exit_file is not None:
        words = f"it is {row.phase}, but its monitor has recorded the end in {traces.exit_file}"
        yield _finding(DRIFTING_PHASE, row.id, words, force)
        return
    if not traces.kernel:
        words = f"it is {row.phase}, but the kernel has nothing of it, and no exit was recorded"
        yield _finding(ORPHANED_SANDBOX, row.id, words, force)
        return
    if row.cgroup is not None and group.inode != row.cgroup.inode:
        there = "is not there" if group.inode is None else f"has inode {group.inode}"
        words = f"{group.path} {there}, and was made with inode {row.cgroup.inode}"
        yield _finding(DRIFTING_CGROUP, row.id, words, force)
    elif not group.populated:
        words = f"it is {row.phase}, but no process is in {group.path}"
        yield _finding(DRIFTING_PHASE, row.id, words, force)
    if not traces.mounts:
        words = f"it is {row.phase}, but no root file system is mounted for it in {traces.folder}"
        yield _finding(DRIFTING_MOUNT, row.id, words, force)
    if entry.on_bridge and traces.interface is None:
        words = f"it is {row.phase} and on the bridge, but has no interface on the host"
        yield _finding(DRIFTING_NETWORK, row.id, words, force)
    pid = row.monitor.pid if row.monitor else 0
    if entry.monitor_alive is False:
        words = f"its monitor, process {pid}, is gone, and no exit was recorded"
        yield _finding(DRIFTING_MONITOR, row.id, words, force)
    elif entry.monitor_alive and pid not in traces.monitor.pids:
        words = f"its monitor, process {pid}, is not in {traces.monitor.path}"
        yield _finding(DRIFTING_MONITOR, row.id, words, force)


def _record(row: Reservation, traces: Traces, force: str) -> Iterator[Finding]:
    if row.phase in (RESERVED, STARTING, RUNNING) and traces.has_exit_record:
        words = f"it is {row.phase}, but {traces.run_folder} has a record of its end"
        yield _finding(DRIFTING_RECORD, row.id, words, force)
    elif not traces.has_spec:
        where = traces.run_folder or "its run folder, which is gone,"
        words = f"{where} has no spec, so that nobody can tell what it runs"
        yield _finding(DRIFTING_RECORD, row.id, words, force)


def _leaks(traces: Traces) -> Iterator[Finding]:
    """Name what there is of a sandbox that has no entry."""
    release = f"axern reservations release {traces.sandbox_id}"
    there = (*traces.kernel, *traces.files)
    if traces.kernel:
        runs = f"processes run ({traces.workload.processes}); " if traces.runs else ""
        words = f"no entry, but {runs}{_some(there)}"
        if traces.runs:
            release += " --force --reason TEXT"
        yield _finding(LEAKED_SANDBOX, traces.sandbox_id, words, release)
    elif traces.files:
        yield _finding(LEAKED_FILES, traces.sandbox_id, f"no entry, but {_some(there)}", release)
    if is_orphaned_run(traces):
        words = f"no entry and no record of an end, but {traces.run_folder}"
        yield _finding(LEAKED_RUN, traces.sandbox_id, words, release)


def is_orphaned_run(traces: Traces) -> bool:
    """Tell whether its run folder speaks of a run that was never admitted, or whose end is lost."""
    return traces.run_folder_age_s > ADMISSION_S and not traces.has_exit_record


def _some(names: tuple[str, ...]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _finding(code: str, reservation_id: str, found: str, remedy: str) -> Finding:
    return Finding(code, CODES[code], reservation_id, found, remedy)
