"""Random walks of the pure ledger: small hosts, small demands, every operation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from ledger import claims, namespaces, transitions
from ledger.capacity import node_of
from ledger.claims import ClaimProposal, ClaimUpdate, Host
from ledger.errors import AxernError
from ledger.postings import change
from ledger.reservation import EXTERNAL, RUN
from ledger.resources import DIMENSIONS, OptionalResources, Resources
from ledger.state import HEADROOM, Change, Put, State, genesis
from ledger.tables import TICKETS, Node, Ticket
from tests.unit.ledger.samples import CGROUP, FACTS, MONITOR, NOW, POLICY, do, proposal

SPACES = ("default", "team-a", "team-b")
DEVICES = ("gpu-0", "gpu-1")
MOST = Resources(4000, 40, 40, 12, 8)


def amounts(most: Resources = MOST) -> st.SearchStrategy[Resources]:
    """Draw a demand, each dimension up to the one in *most*."""
    return st.builds(Resources, *(st.integers(0, amount) for amount in most.amounts()))


def quotas() -> st.SearchStrategy[OptionalResources]:
    """Draw ceilings, most of them absent."""
    return st.builds(
        OptionalResources, *(st.none() | st.integers(0, amount) for amount in MOST.amounts())
    )


def nodes() -> st.SearchStrategy[Node]:
    """Draw a host that a handful of demands fill."""
    sizes = st.lists(st.integers(1, 16), max_size=len(DEVICES))
    host = st.builds(Resources, *(st.integers(0, 3 * amount) for amount in MOST.amounts()))
    return st.builds(
        lambda capacity, reserve, ratio, gpus: node_of(
            replace(capacity, gpu_memory_bytes=0),
            replace(reserve, gpu_memory_bytes=0),
            ratio,
            tuple(zip(DEVICES, gpus, strict=False)),
        ),
        host,
        amounts(Resources(100, 2, 2, 0, 1)),
        st.sampled_from(["1", "1.5", "0.9", "2.333"]),
        sizes,
    )


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: `which` chooses the entry it is for, from those that exist."""

    kind: str
    which: int
    namespace: str
    amount: Resources
    flag: bool
    quota: OptionalResources
    node: Node


KINDS = (
    *("reserve",) * 5,
    *("start", "run", "stop", "retire", "release", "renew", "beat"),
    *("observe", "quota", "claim", "ticket"),
)


def steps(kinds: tuple[str, ...] = KINDS) -> st.SearchStrategy[list[Step]]:
    """Draw a walk of the operations *kinds*."""
    step = st.builds(
        Step,
        st.sampled_from(kinds),
        st.integers(0, 31),
        st.sampled_from(SPACES),
        amounts(),
        st.booleans(),
        quotas(),
        nodes(),
    )
    return st.lists(step, max_size=30)


def start_state(node: Node) -> State:
    """Return a ledger with *node* and a few namespaces."""
    state = genesis(NOW)
    do(state, transitions.observe_node(state, node))
    for name in SPACES[1:]:
        do(state, namespaces.create(state, name, NOW, "uid:0"))
    return state


def walk(state: State, plan: list[Step]) -> Iterator[Change]:
    """Perform what *plan* says and is allowed; yield each change after it was applied."""
    for number, step in enumerate(plan):
        try:
            made = OPERATIONS[step.kind](state, step, number)
        except AxernError:
            continue
        if made is not None:
            do(state, made)
            yield made


def _reserve(state: State, step: Step, number: int) -> Change:
    wanted = proposal(
        f"r{number}",
        step.amount,
        namespace=step.namespace,
        kind=EXTERNAL if step.which % 4 == 0 else RUN,
        ttl_ms=60_000 if step.flag else None,
        request_id=f"q{step.which % 3}" if step.which % 2 else None,
        digest=str(step.which % 5),
    )
    return transitions.reserve(state, wanted, FACTS, NOW, POLICY)


def _on_entry(operation: Callable[[State, str, Step], Change]) -> Callable[..., Change | None]:
    def perform(state: State, step: Step, _number: int) -> Change | None:
        keys = [entry.id for entry in state.reservations()]
        return operation(state, keys[step.which % len(keys)], step) if keys else None

    return perform


def fits_headroom(state: State, amount: Resources, device: str | None) -> bool:
    """Tell whether *amount* can be set aside without going below zero anywhere."""
    pools = {
        f"gpu_memory_bytes/{device}" if name == "gpu_memory_bytes" else name: getattr(amount, name)
        for name in Resources.__dataclass_fields__
    }
    return all(state.balance(HEADROOM, pool) >= need for pool, need in pools.items() if need)


def _claim(state: State, step: Step, number: int) -> Change | None:
    host = Host(FACTS, NOW, POLICY)
    there = state.claim_of(step.namespace)
    amounts = {each.name: getattr(step.amount, each.name) for each in DIMENSIONS}
    if there is None:
        asked = ClaimProposal(f"c{number}", step.namespace, amounts, step.flag, None)
        return claims.create(state, asked, host, "uid:0")
    if step.which % 4 == 0:
        return claims.release(state, there.id, "uid:0")
    return claims.update(state, there.id, ClaimUpdate(amounts, step.flag), host, "uid:0")


def _ticket(state: State, step: Step, _number: int) -> Change | None:
    if state.row(TICKETS, "head"):
        return change(state, "dequeue", (Put(TICKETS, "head", None),))
    device = DEVICES[step.which % len(DEVICES)]
    if not fits_headroom(state, step.amount, device):
        return None
    row = Ticket("head", step.namespace, 1, step.amount, step.amount, 1, 0, device)
    return change(state, "enqueue", (Put(TICKETS, "head", row),))


OPERATIONS: dict[str, Callable[[State, Step, int], Change | None]] = {
    "reserve": _reserve,
    "start": _on_entry(lambda state, key, _: transitions.start(state, key)),
    "run": _on_entry(lambda state, key, _: transitions.run(state, key, MONITOR, CGROUP)),
    "stop": _on_entry(lambda state, key, _: transitions.stop(state, key, "asked", "me")),
    "retire": _on_entry(
        lambda state, key, step: transitions.retire(state, key, "exit", step.amount.memory_bytes)
    ),
    "release": _on_entry(lambda state, key, _: transitions.release(state, key, "gone")),
    "renew": _on_entry(lambda state, key, step: transitions.renew(state, key, step.which, NOW)),
    "beat": _on_entry(lambda state, key, step: transitions.persist_beats(state, {key: step.which})),
    "observe": lambda state, step, _: transitions.observe_node(state, step.node),
    "quota": lambda state, step, _: namespaces.set_quota(
        state,
        step.namespace,
        {each.name: getattr(step.quota, each.name) for each in DIMENSIONS},
        "uid:0",
    ),
    "claim": _claim,
    "ticket": _ticket,
}
