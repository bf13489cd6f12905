"""What is enforced of a run: its spec and its entry as the limits of a control group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axern.host import cgroup_values, disk
from axern.host.cgroup_values import CgroupLimits, CgroupOptions, IoMax
from ledger.resources import DIMENSIONS, OptionalResources, Resources

if TYPE_CHECKING:
    from axern.daemon.runs import RunSpec
    from axern.settings import Settings

Json = dict[str, Any]


def of_node(settings: Settings) -> Json:
    """Return the fields of a run's spec that come from the configuration of today."""
    return {
        "pids_max": settings.pids_max,
        "memory_high_percent": settings.memory_high_percent,
        "io_read_max_bytes_s": settings.io_read_max_bytes_s,
        "io_write_max_bytes_s": settings.io_write_max_bytes_s,
    }


def limits_of(spec: RunSpec, filestore: str) -> CgroupLimits | None:
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


def _io_max(spec: RunSpec, filestore: str) -> IoMax | None:
    most = (spec.io_read_max_bytes_s, spec.io_write_max_bytes_s)
    return None if most == (None, None) else IoMax(disk.disk_of(filestore), *most)


def view(spec: RunSpec) -> Json | None:
    """Return the limits as the kernel holds them, None for no cap; None where it holds nothing."""
    if not spec.enforced or spec.pids_max is None:
        return None
    memory, storage = (spec.limits.get(f"{name}_bytes") for name in ("memory", "ephemeral_storage"))
    return {
        "cpu_milli": spec.limits.get("cpu_milli"),
        "memory_bytes": None if memory is None else cgroup_values.pages_down(memory),
        "ephemeral_storage_bytes": None if storage is None else cgroup_values.pages_down(storage),
        "pids": cgroup_values.pids_of(spec.pids_max, spec.runtime_class),
    }
