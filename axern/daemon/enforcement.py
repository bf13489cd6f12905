"""What of today's configuration a run keeps for good, and its limits as they are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axern.host import cgroup_values

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
