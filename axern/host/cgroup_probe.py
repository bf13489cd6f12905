"""What the control groups of this host can enforce, found out by doing it with an empty group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from axern.errors import CapabilityMissing
from axern.host.cgroup import Cgroup, remove_folder
from axern.host.cgroup_files import apply
from axern.host.cgroup_tree import SANDBOXES, prepare, require_controller
from axern.host.cgroup_values import (
    CPU_MAX,
    CPU_WEIGHT,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_OOM_GROUP,
    MEMORY_SWAP_MAX,
    PIDS_MAX,
)

_PROBE = "probe"
_REMOVE_TIMEOUT_S = 2.0
_MEMORY_BYTES = 64 * 1024**2
_MEMORY = {
    MEMORY_OOM_GROUP: "1",
    MEMORY_LOW: str(_MEMORY_BYTES),
    MEMORY_HIGH: str(_MEMORY_BYTES),
    MEMORY_MAX: str(_MEMORY_BYTES),
    MEMORY_SWAP_MAX: "0",
}
_CPU = {CPU_WEIGHT: "50", CPU_MAX: "150000 100000"}
_PIDS = {PIDS_MAX: "64"}
_LOCAL_EVENTS = "memory_localevents"


def memory(root: Cgroup) -> str:
    """Prove that memory limits are taken below *root*; return what was proved.

    Raises:
        CapabilityMissing: They are not, and why.
        HostError: It could not be told.
    """
    _require_events_of_children()
    with _group(root, "memory") as group:
        apply(group, _MEMORY)
    return f"memory.max, swap.max, low, high and oom.group were read back in {group.folder}"


def cpu(root: Cgroup) -> str:
    """Prove that CPU weights and caps are taken below *root*; as `memory`."""
    with _group(root, "cpu") as group:
        apply(group, _CPU)
    return f"cpu.weight and cpu.max were read back in {group.folder}"


def pids(root: Cgroup) -> str:
    """Prove that a cap on tasks is taken below *root*; as `memory`."""
    with _group(root, "pids") as group:
        apply(group, _PIDS)
    return f"pids.max was read back in {group.folder}"


@contextmanager
def _group(root: Cgroup, controller: str) -> Iterator[Cgroup]:
    require_controller(root, controller)  # before all of them, so that each is told of itself
    prepare(root)
    group = root.child(SANDBOXES).child(_PROBE)
    group.create()
    try:
        yield group
    finally:
        remove_folder(group.folder, _REMOVE_TIMEOUT_S)


def _require_events_of_children() -> None:
    """Refuse a mount on which a group's events leave out those of the groups below it.

    Who was killed for memory is read one level above the killed process.
    """
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        lines = [line for line in file if " - cgroup2 " in line]
    with contextlib.suppress(IndexError):
        if _LOCAL_EVENTS in lines[0].rsplit(" ", 1)[1].strip().split(","):
            raise CapabilityMissing(
                f"cgroup2 is mounted with {_LOCAL_EVENTS}, which hides who was killed for memory",
                syscall="mountinfo",
                path="/proc/self/mountinfo",
                hint=f"mount cgroup2 without {_LOCAL_EVENTS}",
            )
