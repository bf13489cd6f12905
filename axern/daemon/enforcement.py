"""What is enforced of a run: its spec and its entry as the limits of a control group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axern.host import cgroup_values
from axern.host.cgroup_values import CgroupLimits, CgroupOptions
from ledger.resources import DIMENSIONS, OptionalResources, Resources

if TYPE_CHECKING:
    from axern.daemon.runs import RunSpec

Json = dict[str, Any]


def limits_of(spec: RunSpec) -> CgroupLimits | None:
    """Return the limits of the run's control group, or None where nothing of it is enforced.

    They follow from the run's spec alone, which is durable before its entry, so that every later
    daemon finds the same, whatever its configuration says by then.
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
        ),
    )


def view(spec: RunSpec) -> Json | None:
    """Return the limits as the kernel holds them, None for no cap; None where it holds nothing."""
    held = limits_of(spec)
    if held is None:
        return None
    storage = spec.limits.get("ephemeral_storage_bytes")
    return {
        "cpu_milli": spec.limits.get("cpu_milli"),
        "memory_bytes": held.memory_max_bytes,
        "ephemeral_storage_bytes": None if storage is None else cgroup_values.pages_down(storage),
        "pids": held.pids_max,
    }
