"""The tree of control groups that Axern was given: controllers, the wall around all sandboxes, use.

    <root>/daemon              the daemon, where it would else sit in the root itself
    <root>/monitors/<id>       who watches a sandbox
    <root>/sandboxes           the wall: together they never get more than the node can promise
    <root>/sandboxes/<id>      one sandbox, with all its limits

Source: Documentation/admin-guide/cgroup-v2.rst, "Controlling Controllers", "No Internal Process
Constraint", "Memory Interface Files".
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from axern.errors import CapabilityMissing, CgroupError, HostError
from axern.host.cgroup import PROCS, Cgroup
from axern.host.cgroup_files import apply, read_counters, read_number
from axern.host.cgroup_values import MEMORY_MAX, pages_down
from axern.host.control_files import open_folder, read_at, write_at

CONTROLLERS = ("memory", "cpu", "pids")
"""Without one of these nothing is started."""
OPTIONAL_CONTROLLERS = ("io", "hugetlb")
AVAILABLE = "cgroup.controllers"
ENABLED = "cgroup.subtree_control"
DAEMON = "daemon"
SANDBOXES = "sandboxes"
MEMORY_CURRENT = "memory.current"
MEMORY_STAT = "memory.stat"
MEMORY_RECLAIM = "memory.reclaim"
_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the groups above allow all of Axern: bytes and milli-cores, None for no cap."""

    memory_bytes: int | None
    cpu_milli: int | None


def prepare(root: Cgroup) -> None:
    """Make `sandboxes` below *root* with every controller enabled down to it; safe to repeat.

    The process that asks is moved to `daemon` if it is in *root* itself, since a group that has
    processes of its own can't share out anything.

    Raises:
        CapabilityMissing: A controller can't be had; the message says why.
        HostError: The kernel refused something else.
    """
    sandboxes = root.child(SANDBOXES)
    sandboxes.create()
    _settle(root)
    for group in (*_ancestors(root), root, sandboxes):
        share_out(group)


def share_out(group: Cgroup) -> None:
    """Enable every controller that there is for the groups below *group*; safe to repeat.

    Raises:
        CapabilityMissing: One of `CONTROLLERS` can't be enabled.
    """
    with open_folder(group.folder) as folder_fd:
        enabled = read_at(folder_fd, ENABLED).split()
        missing = [name for name in CONTROLLERS if name not in enabled]
        available = read_at(folder_fd, AVAILABLE).split() if missing else []
        for name in missing:
            if name not in available:
                raise _absent(group, name)
            try:
                write_at(folder_fd, ENABLED, f"+{name}")
            except HostError as error:
                raise _not_enabled(group, name, error) from error
        for name in OPTIONAL_CONTROLLERS:
            if name not in enabled:
                with contextlib.suppress(HostError):
                    write_at(folder_fd, ENABLED, f"+{name}")


def require_controller(root: Cgroup, controller: str) -> None:
    """Do nothing if the mount that *root* is in has *controller*.

    Raises:
        CapabilityMissing: It has not; the message says where it is.
    """
    mount = next(_ancestors(root))
    with open_folder(mount.folder) as folder_fd:
        if controller not in read_at(folder_fd, AVAILABLE).split():
            raise _absent(mount, controller)


def identity(root: Cgroup) -> str:
    """Name the folder of all sandboxes and what is enabled there; cheap, changes nothing."""
    group = root.child(SANDBOXES)
    made = group.identity()
    if made is None:
        return f"{group.folder} is not there"
    with open_folder(group.folder) as folder_fd:
        # Runtimes enable what else there is, which changes nothing for us.
        enabled = [name for name in CONTROLLERS if name in read_at(folder_fd, ENABLED).split()]
    return f"{made.boot_id} {group.folder} {made.inode} {' '.join(enabled)}"


def ceiling(root: Cgroup) -> Ceiling:
    """Return the lowest caps on *root* and on the groups above it; raises HostError."""
    groups = (*_ancestors(root), root)
    memory = [read_number(group, MEMORY_MAX) for group in groups]
    cpu = [_cpu_milli(group) for group in groups]
    return Ceiling(
        min((most for most in memory if most is not None), default=None),
        min((most for most in cpu if most is not None), default=None),
    )


def memory_in_use_bytes(root: Cgroup) -> int | None:
    """Return what all sandboxes use, clean file cache left out; None where nothing counts it.

    Clean cache goes when somebody needs the room. What the removed groups have left there counts
    too, since the kernel moves it up to this one.

    Raises:
        HostError: It can't be read.
    """
    group = root.child(SANDBOXES)
    current = read_number(group, MEMORY_CURRENT)
    if current is None:
        return None
    return max(0, current - clean_cache_bytes(read_counters(group, MEMORY_STAT)))


def clean_cache_bytes(stat: dict[str, int]) -> int:
    """Return the bytes of file cache that need no writing before they can go.

    The lists of file pages have no shared memory and no tmpfs, which could only be swapped out.
    """
    listed = stat.get("active_file", 0) + stat.get("inactive_file", 0)
    return max(0, listed - stat.get("file_dirty", 0) - stat.get("file_writeback", 0))


def raise_wall(root: Cgroup, memory_bytes: int) -> bool:
    """Let all sandboxes together have at most *memory_bytes*; return whether that holds now.

    A wall below what is in use would kill somebody at once: then the wall stays as it was, new
    work is refused by what is in use, and the next call tries again.

    Raises:
        HostError: The kernel refused.
    """
    group = root.child(SANDBOXES)
    wanted = pages_down(memory_bytes)
    there = read_number(group, MEMORY_MAX)
    if there == wanted:
        return True
    lowered = there is None or wanted < there
    if lowered and wanted < (read_number(group, MEMORY_CURRENT) or 0):
        return False
    apply(group, {MEMORY_MAX: str(wanted)})
    return True


def reclaim(root: Cgroup, amount_bytes: int) -> None:
    """Ask the kernel to take back up to *amount_bytes* from the sandboxes; it may find less.

    Raises:
        HostError: It can't be asked. A kernel before 5.19 has no way to ask, which is no error.
    """
    try:
        with open_folder(root.child(SANDBOXES).folder) as folder_fd:
            write_at(folder_fd, MEMORY_RECLAIM, str(amount_bytes))
    except HostError as error:
        if error.errno not in (errno.EAGAIN, errno.ENOENT, errno.EINTR):
            raise


def _ancestors(root: Cgroup) -> Iterator[Cgroup]:
    """Yield the groups above *root*, that of the mount first."""
    parts = root.path.split("/")
    for count in range(len(parts)):
        yield Cgroup(root.hierarchies, "/".join(parts[:count]))


def _cpu_milli(group: Cgroup) -> int | None:
    try:
        with open_folder(group.folder) as folder_fd:
            quota, _, period = read_at(folder_fd, "cpu.max").strip().partition(" ")
    except HostError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
    return int(quota) * _MILLI // int(period) if quota.isdecimal() else None


def _settle(root: Cgroup) -> None:
    with open_folder(root.folder) as folder_fd:
        inside = read_at(folder_fd, PROCS).split()
    if str(os.getpid()) in inside:
        daemon = root.child(DAEMON)
        daemon.create()
        daemon.add(os.getpid())


def _absent(group: Cgroup, controller: str) -> CapabilityMissing:
    legacy = [
        folder
        for folder in group.hierarchies.legacy
        if controller in os.path.basename(folder).split(",")
    ]
    if legacy:
        why = f"this host has it in version 1, at {legacy[0]}"
        hint = "boot with systemd.unified_cgroup_hierarchy=1, or cgroup_no_v1=all"
    else:
        why = "the kernel or the group above does not give it"
        hint = "under systemd let the unit have Delegate=yes; else add it in the group above"
    return CapabilityMissing(
        f"the {controller} controller of cgroup version 2 is not in {group.folder}: {why}",
        syscall="read",
        path=f"{group.folder}/{AVAILABLE}",
        hint=hint,
    )


def _not_enabled(group: Cgroup, controller: str, error: HostError) -> HostError:
    if error.errno == errno.EBUSY:
        return CapabilityMissing(
            f"the {controller} controller can't be enabled below {group.folder}: processes are in "
            "that very group",
            syscall="write",
            path=f"{group.folder}/{ENABLED}",
            hint="give the daemon a group of its own: DelegateSubgroup=daemon, or set cgroup_root",
        )
    return CgroupError(
        f"cannot enable {controller} below {group.folder}",
        syscall="write",
        path=f"{group.folder}/{ENABLED}",
        errno=error.errno,
    )
