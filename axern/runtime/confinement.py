"""The walls of one sandbox: limits of its control group, proved before its workload runs.

The group of the sandbox holds every limit; what a runtime makes below it only repeats some of
them. All is read back twice: when it was written, with nothing inside, and again once the runtime
has made its own group and processes, before the first instruction of the workload.
Source: docs/decisions/0017-kernel-limits.md.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from axern.errors import HostError, ProcessError
from axern.host import cgroup_files
from axern.host.cgroup_tree import MEMORY_CURRENT, share_out
from axern.host.cgroup_values import CPU_MAX, UNCAPPED, leaf_files, wall_files

if TYPE_CHECKING:
    from axern.host.cgroup import Cgroup
    from axern.host.cgroup_values import CgroupLimits
    from axern.runtime.layout import SandboxPaths
    from axern.runtime.oci import SandboxSpec
    from ledger.reservation import ProcessIdentity

_log = logging.getLogger(__name__)


def erect(spec: SandboxSpec, paths: SandboxPaths) -> None:
    """Make the sandbox's group, with all its limits but the CPU cap where they are enforced.

    What a runtime does to make a sandbox takes a good part of a second of CPU time, for which one
    that may have a hundredth of a core would wait a minute; so the cap comes in `close`.

    Raises:
        CapabilityMissing: A controller is not enabled there.
        CgroupError: The kernel refused a value, or made another of it.
    """
    paths.wall.create()
    if spec.limits is not None:
        files = _of_wall(spec.limits, paths.wall)
        del files[CPU_MAX]
        cgroup_files.apply(paths.wall, files)
        share_out(paths.wall)


def close(spec: SandboxSpec, paths: SandboxPaths, init: ProcessIdentity) -> None:
    """Cap the CPU time of a created sandbox, and require all of its limits; raises as `require`."""
    if spec.limits is not None:
        for group, files in (
            (paths.wall, _of_wall(spec.limits, paths.wall)),
            (paths.workload, leaf_files(spec.limits, spec.runtime)),
        ):
            cgroup_files.apply(group, {CPU_MAX: files[CPU_MAX]})
    require(spec, paths, init)


def loosen(paths: SandboxPaths) -> None:
    """Lift the CPU cap of a sandbox that is about to be killed: to die takes CPU time, too."""
    for group in (paths.wall, paths.workload):
        with contextlib.suppress(HostError):
            cgroup_files.apply(group, {CPU_MAX: UNCAPPED})


def require(spec: SandboxSpec, paths: SandboxPaths, init: ProcessIdentity) -> None:
    """Do nothing if every limit holds and every process of the created sandbox is below them.

    Raises:
        CgroupError: A limit is not what it must be.
        ProcessError: A process is elsewhere.
    """
    if spec.limits is None:
        return
    cgroup_files.require(paths.wall, _of_wall(spec.limits, paths.wall))
    cgroup_files.require(paths.workload, leaf_files(spec.limits, spec.runtime))
    inside = paths.workload.pids()
    astray = paths.wall.pids(paths.workload, paths.stdin_holder)
    if init.pid not in inside or astray:
        raise ProcessError(
            f"the first process {init.pid} must be in {paths.workload.folder}, which has "
            f"{list(inside)}, and nothing beside it, where {list(astray)} are",
            syscall="cgroup.procs",
            path=paths.workload.folder,
        )


def broken(limits: CgroupLimits, runtime: str, paths: SandboxPaths) -> tuple[str, ...]:
    """Name each limit of a running sandbox that holds another value than it must.

    Raises:
        HostError: A group is missing or can't be read.
    """
    return (
        *cgroup_files.mismatches(paths.wall, _of_wall(limits, paths.wall)),
        *cgroup_files.mismatches(paths.workload, leaf_files(limits, runtime)),
    )


def mend(limits: CgroupLimits, runtime: str, paths: SandboxPaths) -> None:
    """Write every limit of a running sandbox again, and read it back; raises as `erect`."""
    cgroup_files.apply(paths.wall, _of_wall(limits, paths.wall))
    cgroup_files.apply(paths.workload, leaf_files(limits, runtime))


def _of_wall(limits: CgroupLimits, wall: Cgroup) -> dict[str, str]:
    return wall_files(limits) | cgroup_files.without_huge_pages(wall)


def memory_bytes(paths: SandboxPaths) -> int:
    """Return what the sandbox's group has charged now; 0 without one, and where nothing counts."""
    try:
        return cgroup_files.read_number(paths.wall, MEMORY_CURRENT) or 0
    except HostError as error:
        _log.warning("%s: %s", paths.wall.folder, error)
        return 0
