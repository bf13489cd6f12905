"""The other rows of the ledger and the list of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.quick import quick
from ledger.reservation import Owner, ProcessIdentity, Reservation
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResourceSpec

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Node:
    """What the node can promise, as last observed: one row, keyed `node`.

    `effective_allocatable` already has the CPU overcommit ratio in it. `gpu_devices` and
    `gpu_reserve` are bytes by device; the vectors' own GPU field is zero.
    """

    capacity: Resources
    system_reserve: Resources
    effective_allocatable: Resources
    cpu_overcommit_ratio: str
    gpu_allocatable: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A tenant and the ceiling on its requests; None in `quota` is unlimited.

    `sandbox_slots` in `quota` bounds the number of sandboxes.
    """

    name: str
    quota: OptionalResources = OptionalResources()
    created_wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class LimitRange:
    """What one request of a namespace may be, and what stands in for what it omits.

    `minimum` bounds requests, `maximum` requests and limits. `ratios` has for each dimension by
    name how many times its request a limit may be, an exact decimal of 1 or more. None and what
    is not there are unbounded. Source: docs/decisions/0029-namespaces.md.
    """

    namespace: str
    default_requests: OptionalResources = OptionalResources()
    default_limits: OptionalResources = OptionalResources()
    minimum: OptionalResources = OptionalResources()
    maximum: OptionalResources = OptionalResources()
    ratios: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """A namespace's guaranteed floor, which is its ceiling too; a namespace has one at most.

    `drawdown` is what the entries under it hold, those that retire too; the account
    `claimed:<ns>` holds what is left of `amount`. A dimension of `amount` that is 0 is not claimed:
    it has no floor and no ceiling. `hard` refuses above the ceiling, advisory only records it.
    GPU memory is claimed on one device, and only what is held there is drawn.
    Source: docs/decisions/0028-claims.md.
    """

    id: str
    namespace: str
    amount: Resources
    drawdown: Resources
    hard: bool
    created_wall_ms: int
    gpu_device: str | None = None
    expires_boottime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A desired number of replicas; its spec document is kept beside the ledger, as a run's is."""

    name: str
    namespace: str
    version: int
    replicas: int
    created_wall_ms: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that waits; the head of the queue may hold capacity in the account `held`.

    `id` is that of the reservation to come, `gpu_device` where GPU memory is held. What else the
    reservation is made of stands in its `Wait`.
    """

    id: str
    namespace: str
    owner_uid: int
    requests: Resources
    held: Resources
    sequence: int
    created_wall_ms: int
    gpu_device: str | None = None
    expires_boottime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """What a ticket becomes once there is room, and its place in the queue; keyed like the ticket.

    `priority` is 0 to 9, the higher the sooner; `aging_boottime_ms` is since when it grows older,
    `bypasses` how often others took what it waits for while it was the head. The other fields are
    those of the reservation; `ttl_ms` and `max_lifetime_ms` count from its grant.
    Source: docs/decisions/0031-queue.md.
    """

    owner: Owner
    spec: ResourceSpec
    limits: OptionalResources
    digest: str
    enforced: bool
    priority: int
    aging_boottime_ms: int
    bypasses: int = 0
    runtime: str | None = None
    requires: tuple[str, ...] = ()
    request_id: str | None = None
    owner_process: ProcessIdentity | None = None
    ttl_ms: int | None = None
    max_lifetime_ms: int | None = None
    token_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """That nothing of the queue is granted, and nobody in it grows older: one row, keyed `node`."""

    by: str
    since_wall_ms: int
    since_boottime_ms: int


@quick
@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A granted request, or one that waits, so that its retry finds the same entry for 24 hours.

    `digest` is the SHA-256 of the body; the same id with another digest is a conflict.
    """

    digest: str
    reservation_id: str
    created_boottime_ms: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The last persisted heartbeat of an entry, on CLOCK_MONOTONIC of the ledger's boot."""

    monotonic_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Why the node takes nothing new: one row, keyed `node`; without it the node is open.

    `state` is `draining`, which ends by `undrain`, or `retired`, which never ends. `by` and
    `reason` are for whoever is refused.
    """

    state: str
    reason: str
    by: str
    since_wall_ms: int


Port = tuple[str, int, int]
"""(protocol, port of the host, port of the sandbox)."""


@dataclass(frozen=True, slots=True)
class Network:
    """What the sandbox of a reservation has of a network; who has none has no row.

    Keyed by the reservation's id. `mode` is `bridge` or `host`; `ports` are published.
    """

    mode: str
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Nested:
    """That a lease, whose id is the key, draws *amount* from the lease `parent_id`.

    Its reservation is charged too; this row gives the same back, since the parent holds it already.
    Source: docs/decisions/0032-leases.md.
    """

    parent_id: str
    namespace: str
    amount: Resources
    gpu_device: str | None = None


Row = (
    Node
    | Namespace
    | Claim
    | Service
    | Reservation
    | Ticket
    | RequestRecord
    | Beat
    | Standing
    | LimitRange
    | Wait
    | Pause
    | Network
    | Nested
)

NODES = "nodes"
NAMESPACES = "namespaces"
CLAIMS = "claims"
SERVICES = "services"
RESERVATIONS = "reservations"
TICKETS = "tickets"
REQUESTS = "requests"
BEATS = "beats"
STANDINGS = "standings"
LIMIT_RANGES = "limit_ranges"
WAITS = "waits"
PAUSES = "pauses"
NETWORKS = "networks"
NESTED = "nested"

ROW_TYPES: Mapping[str, type[Row]] = {
    NODES: Node,
    NAMESPACES: Namespace,
    CLAIMS: Claim,
    SERVICES: Service,
    RESERVATIONS: Reservation,
    TICKETS: Ticket,
    REQUESTS: RequestRecord,
    BEATS: Beat,
    STANDINGS: Standing,
    LIMIT_RANGES: LimitRange,
    WAITS: Wait,
    PAUSES: Pause,
    NETWORKS: Network,
    NESTED: Nested,
}
"""Every table of the ledger and the type of its rows; a row's key is its id or name."""

OPEN, DRAINING, RETIRED = "open", "draining", "retired"
"""How a node stands; `OPEN` is the absence of a row."""
NO_NETWORK, BRIDGE, HOST_NETWORK = "none", "bridge", "host"
"""What a sandbox may have of a network; `NO_NETWORK` is the absence of a row."""
NODE_KEY = "node"
DEFAULT_NAMESPACE = "default"


def request_key(uid: int, request_id: str) -> str:
    """Return the key of a request record: ids of different users never meet."""
    return f"{uid}:{request_id}"
