"""The steps of a launch that touch the host, and the words for how a run ended.

Every call here blocks and runs in a worker thread; the ledger's commits around them are the
caller's. Nothing is undone here: whatever fails is buried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.daemon.runs import CANCELLED, FAILED, SUCCEEDED
from axern.errors import ProgramError
from axern.host import process
from axern.runtime import adopt, launch
from axern.runtime.oci import SandboxSpec

if TYPE_CHECKING:
    from axern.daemon.runs import RunSpec
    from axern.runtime.layout import Layout
    from axern.runtime.teardown import Evidence
    from axern.settings import Settings
    from ledger.errors import AxernError
    from ledger.reservation import CgroupIdentity, ProcessIdentity, Reservation

OWN_FAILURE = 125
_HOSTNAME_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `exit_code` None where the workload never ran or nobody saw it end."""

    status: str
    exit_code: int | None
    cli_exit_code: int
    diagnostic_code: str | None = None
    message: str | None = None
    finished_wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A sandbox that is there: by what its monitor and its cgroup are known again."""

    monitor: ProcessIdentity
    cgroup: CgroupIdentity


def sandbox_spec(spec: RunSpec, reservation: Reservation) -> SandboxSpec:
    """Return what the runtime floor needs to know of a run."""
    return SandboxSpec(
        sandbox_id=spec.id,
        runtime=spec.runtime_class,
        argv=spec.command,
        env=tuple(spec.env.items()),
        cwd=spec.cwd,
        rootfs=spec.rootfs,
        rootfs_readonly=spec.rootfs_readonly,
        lane=reservation.lane or 0,
        hostname=spec.id[:_HOSTNAME_LENGTH],
    )


def create(spec: SandboxSpec, layout: Layout, settings: Settings) -> Found:
    """Make everything of the sandbox up to its first process, which waits for `start`.

    Raises:
        AxernError: Whatever refused; see `runtime.launch.create`.
    """
    created = launch.create(spec, layout, timeout_s=settings.runtime_timeout_ms / 1000)
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


def exited(exit_code: int, finished_wall_ms: int) -> Outcome:
    """Return the outcome of a workload that ended by itself."""
    status = SUCCEEDED if exit_code == 0 else FAILED
    diagnostic = None if exit_code == 0 else "process-exited"
    return Outcome(status, exit_code, exit_code, diagnostic, finished_wall_ms=finished_wall_ms)


def stopped(reason: str, exit_code: int | None, finished_wall_ms: int | None) -> Outcome:
    """Return the outcome of a workload that was asked to end for *reason*."""
    return Outcome(
        CANCELLED if reason == CANCELLED else FAILED,
        exit_code,
        OWN_FAILURE if exit_code is None else exit_code,
        None if reason == CANCELLED else reason,
        f"stopped: {reason}",
        finished_wall_ms,
    )


def failed(message: str, cli_exit_code: int = OWN_FAILURE) -> Outcome:
    """Return the outcome of a run that never started."""
    return Outcome(FAILED, None, cli_exit_code, "runtime-start-error", message)


def outcome_of(error: AxernError | OSError) -> Outcome:
    """Return the outcome of a launch that ended with *error*; the host's own has no words for it.

    Such as a full disk, or no file descriptor left.
    """
    if isinstance(error, OSError):
        return failed(f"the host refused: {error.strerror or error}")
    code = error.exit_code if isinstance(error, ProgramError) else OWN_FAILURE
    return failed(f"{error.message}; {error.hint}" if error.hint else error.message, code)


def evidence_text(evidence: Evidence) -> str:
    """Return what a burial proved, as one line for the journal."""
    return (
        f"boot {evidence.boot_id}: exit {evidence.exit_code}, killed {evidence.killed}, "
        f"unmounted {len(evidence.unmounted)}, removed {len(evidence.removed)}, nothing left"
    )


def _wall_identity(layout: Layout, sandbox_id: str) -> CgroupIdentity:
    wall = layout.sandbox(sandbox_id).wall
    return wall.identity() or wall.create()
