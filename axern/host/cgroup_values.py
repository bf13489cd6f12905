"""What a sandbox's resources become in the kernel's own units and texts; pure.

Rounding is always down, so that nobody gets more than was asked for. What was written is what must
be read back, so that each text here is the kernel's own form of the value.
Source: Documentation/admin-guide/cgroup-v2.rst, "Controllers"; docs/decisions/0017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.resources import OptionalResources, Resources

PAGE_BYTES = 4096
"""The kernel counts memory in pages; x86-64 and the usual arm64 have this size."""
MAX = "max"
_MILLI = 1000
_PERIOD_US = 100_000
_LONG_PERIOD_US = 200_000
_LEAST_QUOTA_US = 1000
"""kernel/sched/core.c, min_cfs_quota_period: 1 ms; shorter quotas are refused."""
_LEAST_WEIGHT, _MOST_WEIGHT = 1, 10_000
UNCAPPED = f"{MAX} {_PERIOD_US}"
"""What `cpu.max` holds without a cap."""
RUNSC_PIDS = 256
"""Threads that gVisor's own kernel may need beside those of the workload."""

MEMORY_MAX = "memory.max"
MEMORY_HIGH = "memory.high"
MEMORY_LOW = "memory.low"
MEMORY_SWAP_MAX = "memory.swap.max"
MEMORY_OOM_GROUP = "memory.oom.group"
CPU_WEIGHT = "cpu.weight"
CPU_MAX = "cpu.max"
PIDS_MAX = "pids.max"
IO_MAX = "io.max"


@dataclass(frozen=True, slots=True)
class CpuMax:
    """A cap on CPU time: microseconds in each period of microseconds."""

    quota_us: int
    period_us: int

    def text(self) -> str:
        """Return the line of `cpu.max`."""
        return f"{self.quota_us} {self.period_us}"


@dataclass(frozen=True, slots=True)
class IoMax:
    """A cap on what is read from and written to one disk, in bytes a second; None is no cap."""

    device: str
    read_bytes_s: int | None
    write_bytes_s: int | None

    def text(self) -> str:
        """Return the line of `io.max`; *device* is `MAJOR:MINOR`."""
        read, write = _or_max(self.read_bytes_s), _or_max(self.write_bytes_s)
        return f"{self.device} rbps={read} wbps={write} riops={MAX} wiops={MAX}"


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """All that one sandbox's control group holds; None is no cap.

    `memory_low_bytes` is what the kernel leaves to it when the sandboxes together reach their
    wall. With `oom_group` whatever kills one process of it for memory kills all of them.
    """

    memory_max_bytes: int | None
    memory_high_bytes: int | None
    memory_low_bytes: int
    cpu_weight: int
    cpu_max: CpuMax | None
    pids_max: int
    oom_group: bool = True
    io_max: IoMax | None = None


@dataclass(frozen=True, slots=True)
class CgroupOptions:
    """What the node's configuration and a run add to its resources.

    `pids_max` counts tasks. `memory_high_percent` of the limit is where the kernel begins to slow
    a workload down, 0 for nowhere. `io_max` is on the filestore's disk.
    """

    pids_max: int
    memory_high_percent: int = 0
    oom_group: bool = True
    io_max: IoMax | None = None


def pages_down(amount_bytes: int) -> int:
    """Return *amount_bytes* rounded down to whole pages."""
    return amount_bytes // PAGE_BYTES * PAGE_BYTES


def cpu_max_of(limit_milli: int) -> CpuMax:
    """Return the exact cap of *limit_milli*, which is 5 or more.

    The period is 100 ms, and 200 ms where the quota would be too short for the kernel.
    """
    quota_us = limit_milli * _PERIOD_US // _MILLI
    if quota_us >= _LEAST_QUOTA_US:
        return CpuMax(quota_us, _PERIOD_US)
    return CpuMax(limit_milli * _LONG_PERIOD_US // _MILLI, _LONG_PERIOD_US)


def cpu_weight_of(request_milli: int) -> int:
    """Return the weight of *request_milli*: in proportion from 10m to 100 cores, 1 to 10,000."""
    return min(max(request_milli // 10, _LEAST_WEIGHT), _MOST_WEIGHT)


def pids_of(most: int, runtime: str) -> int:
    """Return how many tasks a sandbox of *runtime* may have for a workload of *most*."""
    return most + (RUNSC_PIDS if runtime == "runsc" else 0)


def limits_of(
    requests: Resources, limits: OptionalResources, runtime: str, options: CgroupOptions
) -> CgroupLimits:
    """Return what the kernel is told for a sandbox with these resources, in *runtime*."""
    most = limits.memory_bytes
    memory_max = None if most is None else pages_down(most)
    percent = options.memory_high_percent
    return CgroupLimits(
        memory_max_bytes=memory_max,
        memory_high_bytes=pages_down(memory_max * percent // 100)
        if memory_max and percent
        else None,
        memory_low_bytes=pages_down(requests.memory_bytes),
        cpu_weight=cpu_weight_of(requests.cpu_milli),
        cpu_max=None if limits.cpu_milli is None else cpu_max_of(limits.cpu_milli),
        pids_max=pids_of(options.pids_max, runtime),
        oom_group=options.oom_group,
        io_max=options.io_max,
    )


def wall_files(limits: CgroupLimits) -> dict[str, str]:
    """Return every file of the sandbox's own group with its text, in the order of writing.

    Swap is off: memory that was swapped out would be memory beyond the limit.
    """
    return {
        MEMORY_OOM_GROUP: _flag(limits.oom_group),
        MEMORY_SWAP_MAX: "0",
        MEMORY_LOW: str(limits.memory_low_bytes),
        MEMORY_HIGH: _or_max(limits.memory_high_bytes),
        MEMORY_MAX: _or_max(limits.memory_max_bytes),
        CPU_WEIGHT: str(limits.cpu_weight),
        CPU_MAX: _cpu_text(limits),
        PIDS_MAX: str(limits.pids_max),
        **({} if limits.io_max is None else {IO_MAX: limits.io_max.text()}),
    }


def leaf_files(limits: CgroupLimits, runtime: str) -> dict[str, str]:
    """Return what the runtime must have made of the group below, where its processes are.

    With runc that is what a guest reads as its own limits in /sys/fs/cgroup; since the lower of
    two equal limits is the one that strikes, it has the same rule for whom to kill. runsc tells
    its guest the limit of the group above, and has none of its own that could strike first.
    """
    if runtime != "runc":
        return {MEMORY_MAX: MAX, CPU_MAX: UNCAPPED}
    return {
        MEMORY_OOM_GROUP: _flag(limits.oom_group),
        MEMORY_MAX: _or_max(limits.memory_max_bytes),
        CPU_MAX: _cpu_text(limits),
    }


def oci_resources(limits: CgroupLimits, runtime: str) -> dict[str, object]:
    """Return `linux.resources` of the OCI bundle, from which runc makes its leaf.

    The CPU cap comes later: under it runc's own work would take from seconds to minutes.

    Source: opencontainers/runtime-spec, config-linux.md, "Control groups".
    """
    if runtime != "runc":
        return {}
    resources: dict[str, object] = {"unified": {MEMORY_OOM_GROUP: _flag(limits.oom_group)}}
    if limits.memory_max_bytes is not None:
        # Memory and swap together: as much as memory alone, so that no swap is left.
        most = limits.memory_max_bytes
        resources["memory"] = {"limit": most, "swap": most}
    return resources


def _cpu_text(limits: CgroupLimits) -> str:
    return limits.cpu_max.text() if limits.cpu_max else UNCAPPED


def _or_max(amount: int | None) -> str:
    return MAX if amount is None else str(amount)


def _flag(value: bool) -> str:  # noqa: FBT001 - a value, no mode
    return "1" if value else "0"
