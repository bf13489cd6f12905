"""The steps of a launch that touch the host.

Every call here blocks and runs in a worker thread; the ledger's commits around them are the
caller's. Nothing is undone here: whatever fails is buried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import CgroupError
from axern.host import process
from axern.runtime import adopt, held_limits, launch, storage
from axern.runtime.oci import SandboxSpec

if TYPE_CHECKING:
    from axern.daemon.runs import RunSpec
    from axern.runtime.connection import Connection
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.reservation import CgroupIdentity, ProcessIdentity, Reservation

_HOSTNAME_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox that is there: by what its monitor and its cgroup are known again."""

    monitor: ProcessIdentity
    cgroup: CgroupIdentity


def sandbox_spec(
    spec: RunSpec, reservation: Reservation, layout: Layout, connection: Connection | None = None
) -> SandboxSpec:
    """Return what the runtime floor needs to know of a run; raises as `held_limits.of`."""
    return SandboxSpec(
        sandbox_id=spec.id,
        runtime=spec.runtime_class,
        argv=spec.command,
        env=tuple(spec.env.items()),
        cwd=spec.cwd,
        rootfs=spec.rootfs,
        rootfs_readonly=spec.rootfs_readonly,
        user=spec.user,
        stdin=spec.stdin,
        lane=reservation.lane or 0,
        quota=storage.quota_of(reservation),
        hostname=spec.id[:_HOSTNAME_LENGTH],
        gpu_device=reservation.gpu_device,
        limits=held_limits.of(spec, layout.filestore),
        connection=connection,
    )


def create(spec: SandboxSpec, layout: Layout, settings: Settings) -> Found:
    """Make everything of the sandbox up to its first process, which waits for `start`.

    Raises:
        AxernError: Whatever refused; see `runtime.launch.create`.
    """
    created = launch.create(
        spec,
        layout,
        timeout_s=settings.runtime_timeout_ms / 1000,
        log_max_bytes=settings.log_max_bytes,
    )
    return Found(created.monitor, _wall_identity(layout, spec.sandbox_id))


def start(spec: SandboxSpec, layout: Layout, settings: Settings) -> None:
    """Let the workload run; raises what `runtime.launch.start` raises."""
    launch.start(spec, layout, timeout_s=settings.runtime_timeout_ms / 1000)


def find(runtime: str, layout: Layout, sandbox_id: str) -> Found | None:
    """Return the sandbox if its workload was started and is still watched, else None."""
    paths = layout.sandbox(sandbox_id)
    watcher = adopt.find_monitor(paths)
    if watcher is None or not adopt.was_started(runtime, layout, sandbox_id):
        return None
    return Found(watcher, _wall_identity(layout, sandbox_id))


def is_alive(identity: ProcessIdentity) -> bool:
    """Tell whether exactly this process still runs."""
    return process.is_alive(identity)


def _wall_identity(layout: Layout, sandbox_id: str) -> CgroupIdentity:
    wall = layout.sandbox(sandbox_id).wall
    found = wall.identity()
    if found is None:
        raise CgroupError(f"{wall.folder} is gone", syscall="stat", path=wall.folder)
    return found
