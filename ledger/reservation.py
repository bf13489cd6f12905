"""The reservation: one workload's hold on the node, its phases and its liveness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import StateConflict
from ledger.quick import quick
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResourceSpec

if TYPE_CHECKING:
    from ledger.clock import Now

RESERVED = "reserved"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
RETIRING = "retiring"
RELEASED = "released"

TRANSITIONS = {
    RESERVED: frozenset({STARTING, STOPPING, RETIRING, RELEASED}),
    STARTING: frozenset({RUNNING, STOPPING, RETIRING}),
    RUNNING: frozenset({STOPPING, RETIRING}),
    STOPPING: frozenset({RETIRING}),
    RETIRING: frozenset({RELEASED}),
}
"""What may follow each phase; a pair that is not here raises. `released` is never stored.

From `starting` on something may exist in the kernel, so the way out leads through `retiring`,
which is left only with evidence that nothing does.
"""
PHASES = tuple(TRANSITIONS)

RUN = "run"
SERVICE_REPLICA = "service-replica"
EXTERNAL = "external"
OWNER_KINDS = (RUN, SERVICE_REPLICA, EXTERNAL)

RUNTIMES = ("runsc", "runc")
LANES = 4096
"""How many lanes there are, each with an id range and a project id."""
SANDBOX_LANES = LANES - 1
"""Those that reservations get; the last one is that of self-tests, which are in no ledger."""


@quick
@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a reservation: `kind` is one of `OWNER_KINDS`, `uid` the user that asked for it."""

    kind: str
    uid: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Name one process for ever: a recycled pid differs in start time, a reboot in boot id.

    `start_ticks` is field 22 of /proc/PID/stat, in clock ticks since boot.
    """

    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class CgroupIdentity:
    """Name one cgroup: a folder re-created under the same path has another inode."""

    boot_id: str
    path: str
    inode: int


@quick
@dataclass(frozen=True, slots=True)
class Reservation:
    """One entry of the ledger.

    `spec` is what the user wrote, `requests` and `limits` what it resolved to. `charged` is what
    the accounts hold for it now; only `retiring` may make it differ from `requests`.
    `lane` and everything below `runtime` belong to sandboxes and are None for an external lease.
    `expires_boottime_ms` moves with each renewal, up to `expires_limit_boottime_ms`, and nearer
    when a workload with a time limit starts; both are on CLOCK_BOOTTIME of the ledger's current
    boot. `requires` are the capability keys that admission
    asked for; `reason` is why it is stopping or retiring; `claim_id` is the claim that it draws
    from, or drew from while that lasted.
    """

    id: str
    namespace: str
    owner: Owner
    spec: ResourceSpec
    requests: Resources
    limits: OptionalResources
    charged: Resources
    phase: str
    created_wall_ms: int
    created_boottime_ms: int
    enforced: bool
    gpu_device: str | None = None
    claim_id: str | None = None
    request_id: str | None = None
    runtime: str | None = None
    lane: int | None = None
    owner_process: ProcessIdentity | None = None
    monitor: ProcessIdentity | None = None
    cgroup: CgroupIdentity | None = None
    expires_boottime_ms: int | None = None
    expires_limit_boottime_ms: int | None = None
    token_sha256: str | None = None
    requires: tuple[str, ...] = ()
    started_wall_ms: int | None = None
    reason: str | None = None

    @property
    def is_sandbox(self) -> bool:
        """Tell whether Axern itself runs the workload."""
        return self.owner.kind != EXTERNAL


def require_transition(reservation: Reservation, phase: str) -> None:
    """Do nothing if *reservation* may go to *phase*.

    Raises:
        StateConflict: The table has no such pair.
    """
    if phase not in TRANSITIONS[reservation.phase]:
        raise StateConflict(
            f"reservation {reservation.id} is {reservation.phase} and can't become {phase}",
            hint=f"look at it with: axern reservations inspect {reservation.id}",
        )


@dataclass(frozen=True, slots=True)
class LivenessPolicy:
    """When a silent owner is stale, and when one that never beat has expired; milliseconds."""

    stale_after_ms: int = 120_000
    legacy_window_ms: int = 45 * 60_000


ACTIVE = "active"
STALE = "stale"
EXPIRED = "expired"
UNOBSERVED = "unobserved"


def liveness(
    reservation: Reservation, beat_monotonic_ms: int | None, now: Now, policy: LivenessPolicy
) -> str:
    """Return `active`, `stale` or `expired`: a reason to look at the owner, never a proof of death.

    Args:
        reservation: The entry.
        beat_monotonic_ms: Its last heartbeat on CLOCK_MONOTONIC of this boot, or None for never.
        now: The clocks.
        policy: The windows.
    """
    deadline = reservation.expires_boottime_ms
    if deadline is not None and now.boottime_ms >= deadline:
        return EXPIRED
    if beat_monotonic_ms is None:
        age_ms = now.boottime_ms - reservation.created_boottime_ms
        return EXPIRED if age_ms >= policy.legacy_window_ms and deadline is None else ACTIVE
    if now.monotonic_ms - beat_monotonic_ms >= policy.stale_after_ms:
        return STALE
    return ACTIVE
