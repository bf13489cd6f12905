"""What is enforced of a run, from its spec alone, and which of it the kernel no longer holds."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from axern.errors import HostError
from axern.host import cgroup_values, disk
from axern.host.cgroup_values import CgroupOptions, IoMax
from axern.runtime import confinement, record
from axern.runtime.record import HeldSpec
from ledger.findings import PROBLEM, Finding
from ledger.reservation import RUNNING
from ledger.resources import DIMENSIONS, OptionalResources, Resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from axern.host.cgroup_values import CgroupLimits
    from axern.runtime.layout import Layout
    from ledger.reservation import Reservation

DRIFTING_LIMIT = "drifting-limit"
CODES = {DRIFTING_LIMIT: PROBLEM}


def of(spec: HeldSpec, filestore: str) -> CgroupLimits | None:
    """Return the limits of the run's control group, or None where nothing of it is enforced.

    They follow from the run's spec alone, which is durable before its entry, so that every later
    daemon finds the same, whatever its configuration says by then; only the disk of *filestore* is
    looked up.

    Raises:
        HostError: What is read and written is to be limited, and *filestore* is on no disk.
    """
    if not spec.enforced or spec.pids_max is None:
        return None
    return cgroup_values.limits_of(
        Resources(**{each.name: spec.requests.get(each.name) or 0 for each in DIMENSIONS}),
        OptionalResources(**{each.name: spec.limits.get(each.name) for each in DIMENSIONS}),
        spec.runtime_class,
        CgroupOptions(
            pids_max=spec.pids_max,
            memory_high_percent=spec.memory_high_percent,
            oom_group=not spec.oom_kill_one,
            io_max=_io_max(spec, filestore),
        ),
    )


def _io_max(spec: HeldSpec, filestore: str) -> IoMax | None:
    most = (spec.io_read_max_bytes_s, spec.io_write_max_bytes_s)
    return None if most == (None, None) else IoMax(disk.disk_of(filestore), *most)


def examine(rows: Iterable[Reservation], layout: Layout) -> tuple[Finding, ...]:
    """Look at the limits of every running sandbox and return those that were changed."""
    return tuple(finding for row in rows for finding in _of_entry(row, layout))


def _of_entry(row: Reservation, layout: Layout) -> Iterator[Finding]:
    """Yield what is wrong; a group that can't be read is told by others.

    Who is being stopped has no CPU cap any more, so that it can die.
    """
    if not row.enforced or row.phase != RUNNING:
        return
    paths = layout.sandbox(row.id)
    kept = record.decode(record.spec_path(paths.run_folder), HeldSpec)
    with contextlib.suppress(HostError):
        limits = of(kept, layout.filestore) if kept else None
        if limits is None or os.path.lexists(paths.exit_file):
            return
        if broken := confinement.broken(limits, row.runtime or "", paths):
            words = f"{'; '.join(broken)}: a daemon puts it right within seconds"
            remedy = "systemctl start axernd.service"
            yield Finding(DRIFTING_LIMIT, PROBLEM, row.id, words, remedy)
