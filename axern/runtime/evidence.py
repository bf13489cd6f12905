"""What proves how things stand with one entry, as seen now: the object that is shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axern.host import process
from axern.runtime import record
from axern.runtime import traces as observed
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from axern.runtime.layout import Layout
    from axern.runtime.traces import Group
    from ledger.clock import Now
    from ledger.reservation import ProcessIdentity, Reservation

Json = dict[str, Any]


def collect(
    row: Reservation, layout: Layout, now: Now, beat_monotonic_ms: int | None = None
) -> Json:
    """Look at the host and return what there is of *row*; None where nothing can be known.

    Raises:
        HostError: The kernel can't be asked.
    """
    deadline_ms = row.expires_boottime_ms
    view: Json = {
        "last_heartbeat_age_ms": None
        if beat_monotonic_ms is None
        else now.monotonic_ms - beat_monotonic_ms,
        "deadline_in_ms": None if deadline_ms is None else deadline_ms - now.boottime_ms,
        "owner_process": _process(row.owner_process),
        "monitor": _process(row.monitor),
    }
    if not row.is_sandbox:
        return view
    seen = observed.of(layout, row.id)
    made = row.cgroup
    return view | {
        "cgroup": _group(seen.workload)
        | {"inode_matches": made and seen.workload.inode == made.inode},
        "monitor_cgroup": _group(seen.monitor),
        "stray_pids": list(seen.strays),
        "legacy_cgroups": list(seen.legacy_groups),
        "mounts": list(seen.mounts),
        "sandbox_folder": seen.folder,
        "runtime_files": list(seen.runtime_files),
        "store": seen.store,
        "store_bytes": observed.usage_bytes(seen),
        "exit_file": seen.exit_file,
        "exit_code": seen.exit_code,
        "run_folder": seen.run_folder,
        "has_spec": seen.has_spec,
        "has_exit_record": seen.has_exit_record,
    }


def exit_of(run_folder: str) -> Json | None:
    """Return how the run in *run_folder* ended; its message may quote the command and is left out.

    None while it has not, and for what is no run.
    """
    ended = record.decode(record.exit_path(run_folder), record.RunExit)
    if ended is None:
        return None
    return {
        "status": ended.status,
        "exit_code": ended.exit_code,
        "diagnostic_code": ended.diagnostic_code,
        "finished_at": format_rfc3339(ended.finished_wall_ms),
    }


def is_alive(identity: ProcessIdentity | None) -> bool | None:
    """Tell whether a process that an entry names still runs; None where it names none."""
    return None if identity is None else process.is_alive(identity)


def _process(identity: ProcessIdentity | None) -> Json | None:
    if identity is None:
        return None
    return {
        "pid": identity.pid,
        "start_ticks": identity.start_ticks,
        "boot_id": identity.boot_id,
        "alive": process.is_alive(identity),
    }


def _group(group: Group) -> Json:
    return {
        "path": group.path,
        "exists": group.inode is not None,
        "inode": group.inode,
        "populated": group.populated,
        "processes": group.processes,
    }
