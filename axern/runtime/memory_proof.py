"""Proves on this very host that a memory limit kills a sandbox of a runtime as a whole.

A real sandbox allocates more than it may. Nothing of it is in the ledger, so it is bounded in size
and time, and it is always buried. Source: docs/decisions/0017-kernel-limits.md.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from axern.errors import CapabilityMissing
from axern.host.cgroup import Cgroup
from axern.host.cgroup_files import read_counters, read_number
from axern.host.cgroup_values import CgroupOptions, limits_of
from axern.runtime import self_test
from axern.runtime.layout import Layout
from axern.runtime.oci import SandboxSpec
from axern.runtime.verdict import MEMORY_EVENTS
from ledger.resources import OptionalResources, Resources
from ledger.units import format_bytes

LIMIT_BYTES = 128 * 1024**2
SLACK_BYTES = 16 * 1024**2
"""What the kernel may have charged beyond the limit when it struck."""
END_TIMEOUT_S = 120.0
"""From its start to its end, a second on most hosts; gVisor under emulation takes a minute."""
_PIDS_MAX = 512
_ALLOCATE = f"dd if=/dev/zero of=/dev/null bs={2 * LIMIT_BYTES} count=1"
"""One allocation at once: under emulation, writing it bit by bit takes minutes."""
_HOGS = {
    "runc": ("sh", "-c", f"sleep 1000 & exec {_ALLOCATE}"),
    "runsc": tuple(_ALLOCATE.split()),
}
"""More than one process on the host, of which one takes too much; gVisor has several by itself."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the counters of the sandbox's group held when it had ended; None for no such counter."""

    events: dict[str, int]
    peak_bytes: int | None
    swap_bytes: int | None
    populated: bool


def prove(runtime: str, layout: Layout) -> str:
    """Let a sandbox of *runtime* go beyond its limit, and return how it was killed.

    Raises:
        CapabilityMissing: It was not killed as it must be.
        AxernError: It could not be told, such as for a runtime that does not answer.
    """
    what = f"a {runtime} sandbox that allocates more than its limit"
    with self_test.running(_spec(runtime, layout), layout) as paths:
        self_test.wait_ended(what, paths, END_TIMEOUT_S)
        paths.wall.wait_empty(self_test.TIMEOUT_S)
        seen = observe(paths.wall)
    if wrong := faults(seen):
        raise CapabilityMissing(
            f"a memory limit does not hold for {runtime}: {'; '.join(wrong)}",
            syscall="memory.max",
            hint=f"use another version of {runtime}, or report this with the kernel's version",
        )
    return (
        f"{seen.events['oom_kill']} processes over a limit of {format_bytes(LIMIT_BYTES)} were "
        "killed together, no swap used"
    )


def observe(wall: Cgroup) -> Seen:
    """Read the counters that tell how a sandbox ended."""
    return Seen(
        read_counters(wall, MEMORY_EVENTS),
        read_number(wall, "memory.peak"),
        read_number(wall, "memory.swap.current"),
        wall.is_populated(),
    )


def faults(seen: Seen) -> tuple[str, ...]:
    """Name what is not as it must be after a kill for memory; empty if all is."""
    found = []
    if not seen.events.get("oom_group_kill"):
        found.append(f"it ended, but not by a kill of its group: memory.events {seen.events}")
    if seen.peak_bytes is not None and seen.peak_bytes > LIMIT_BYTES + SLACK_BYTES:
        found.append(f"it had {seen.peak_bytes} bytes at its peak, with a limit of {LIMIT_BYTES}")
    if seen.swap_bytes:
        found.append(f"{seen.swap_bytes} bytes of it were swapped out")
    if seen.populated:
        found.append("processes of it survived")
    return tuple(found)


def _spec(runtime: str, layout: Layout) -> SandboxSpec:
    name = f"probe-memory-{runtime}-{secrets.token_hex(4)}"
    limits = limits_of(
        Resources(cpu_milli=1000, memory_bytes=LIMIT_BYTES),
        OptionalResources(memory_bytes=LIMIT_BYTES),
        runtime,
        CgroupOptions(pids_max=_PIDS_MAX),
    )
    return replace(
        self_test.spec_of(runtime, layout, name, _HOGS[runtime]),
        rootfs_readonly=True,
        limits=limits,
    )
