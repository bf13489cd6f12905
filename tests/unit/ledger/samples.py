"""Values that tests of the ledger start from: a host, an observation, a proposal."""

from dataclasses import replace

from ledger import transitions
from ledger.admission import AdmissionPolicy
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.facts import Facts
from ledger.postings import change
from ledger.reservation import (
    EXTERNAL,
    RUN,
    CgroupIdentity,
    Owner,
    ProcessIdentity,
    Reservation,
)
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import Change, Put, State, genesis
from ledger.tables import (
    CLAIMS,
    NAMESPACES,
    RESERVATIONS,
    ROW_TYPES,
    TICKETS,
    Claim,
    Namespace,
    Node,
    Row,
    Ticket,
)
from ledger.transitions import Proposal

KIB, MIB, GIB = 1024, 1024**2, 1024**3
POLICY = AdmissionPolicy()
NOW = Now("boot-1", monotonic_ms=100_000, boottime_ms=200_000, wall_ms=1_700_000_000_000)
FACTS = Facts(sequence=7, observed_monotonic_ms=NOW.monotonic_ms, capabilities=("runtime/runc",))
HOST = Resources(4000, 16 * GIB, 100 * GIB, 0, 64)
MONITOR = ProcessIdentity("boot-1", 4242, 99)
CGROUP = CgroupIdentity("boot-1", "/axern/sandboxes/x", 77)


def later(now: Now, seconds: float) -> Now:
    """Return *now* moved on by *seconds*, on every clock."""
    ms = round(seconds * 1000)
    return replace(
        now,
        monotonic_ms=now.monotonic_ms + ms,
        boottime_ms=now.boottime_ms + ms,
        wall_ms=now.wall_ms + ms,
    )


def node(
    capacity: Resources = HOST, ratio: str = "1", gpus: tuple[tuple[str, int], ...] = ()
) -> Node:
    """Return a host without a reserve."""
    return node_of(capacity, Resources(), ratio, gpus)


def ask(cpu: int = 0, memory: int = 0, storage: int = 0, gpu: int = 0, slots: int = 1) -> Resources:
    """Return a demand; a sandbox takes one slot."""
    return Resources(cpu, memory, storage, gpu, slots)


def proposal(
    key: str,
    requests: Resources,
    *,
    namespace: str = "default",
    request_id: str | None = None,
    digest: str = "d",
    kind: str = RUN,
    ttl_ms: int | None = None,
    max_lifetime_ms: int | None = None,
    uid: int = 1000,
    requires: tuple[str, ...] = (),
) -> Proposal:
    """Return a proposal for *requests* with no limits; leases are `kind=EXTERNAL`."""
    return Proposal(
        id=key,
        namespace=namespace,
        owner=Owner(kind, uid, "someone"),
        spec=ResourceSpec(),
        resolved=ResolvedSpec(requests, OptionalResources()),
        digest=digest,
        enforced=kind != EXTERNAL,
        runtime=None if kind == EXTERNAL else "runc",
        requires=requires,
        request_id=request_id,
        ttl_ms=ttl_ms,
        max_lifetime_ms=max_lifetime_ms,
    )


def do(state: State, made: Change) -> object:
    """Apply *made* to *state*, as a commit of one operation would, and return its result."""
    state.apply(made)
    state.generation += 1
    return made.result


def host_state(row: Node | None = None) -> State:
    """Return a new ledger in which the host was observed once."""
    state = genesis(NOW)
    do(state, transitions.observe_node(state, row or node()))
    return state


def reserve(state: State, wanted: Proposal, now: Now = NOW, facts: Facts = FACTS) -> Reservation:
    """Reserve *wanted* in *state* and return the entry; raises what the transition raises."""
    made = transitions.reserve(state, wanted, facts, now, POLICY)
    do(state, made)
    assert isinstance(made.result, Reservation)
    return made.result


def add_namespace(state: State, name: str, quota: OptionalResources | None = None) -> None:
    """Create the namespace *name*, or give it another quota."""
    row = Namespace(name, quota or OptionalResources())
    do(state, change(state, "namespace", (Put(NAMESPACES, name, row),)))


def add_claim(
    state: State,
    namespace: str,
    amount: Resources,
    *,
    hard: bool = True,
    device: str | None = None,
    expires_ms: int | None = None,
) -> Claim:
    """Give *namespace* a claim, whether it fits or not; what it holds already is not under it."""
    row = Claim(f"claim-{namespace}", namespace, amount, Resources(), hard, 0, device, expires_ms)
    do(state, change(state, "claim", (Put(CLAIMS, row.id, row),)))
    return row


def add_ticket(state: State, held: Resources, expires_ms: int | None = None) -> Ticket:
    """Put one waiting request at the head of the queue, with *held* set aside for it."""
    row = Ticket("ticket-1", "default", 1000, held, held, 1, 0, expires_boottime_ms=expires_ms)
    do(state, change(state, "ticket", (Put(TICKETS, row.id, row),)))
    return row


def rows_of(state: State) -> dict[str, dict[str, Row]]:
    """Return every row by table and key, the form in which a checker reads a state."""
    return {table: dict(state.rows(table)) for table in ROW_TYPES}


def entry(state: State, key: str) -> Reservation:
    """Return the row of *key* as it is now."""
    row = state.row(RESERVATIONS, key)
    assert isinstance(row, Reservation)
    return row
