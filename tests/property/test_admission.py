"""The laws of admission: never over, monotone, exact, complete in what it refuses with."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ledger import refusal as refusals
from ledger.admission import AdmissionPolicy, Admitted, Demand, evaluate
from ledger.drawdown import drawdown_put
from ledger.errors import CODES
from ledger.facts import Facts
from ledger.postings import change
from ledger.refusal import Refusal
from ledger.reservation import Reservation
from ledger.resources import Resources, by_pool
from ledger.state import Put, State
from ledger.tables import RESERVATIONS, Claim, Namespace, Node, Ticket
from tests.property.walk import SPACES, Step, amounts, nodes, start_state, steps, walk
from tests.unit.ledger.samples import FACTS, NOW, do, rows_of

maybe = st.none() | st.integers(0, 80)
facts_drawn = st.builds(
    Facts,
    sequence=st.just(7),
    observed_monotonic_ms=st.sampled_from([NOW.monotonic_ms, NOW.monotonic_ms - 20_000]),
    capabilities=st.sampled_from([(), ("a",)]),
    storage_free_bytes=maybe,
    storage_written_bytes=maybe,
    storage_reserve_bytes=st.integers(0, 20),
    sandboxes_memory_bytes=maybe,
)
demands = st.builds(Demand, st.sampled_from(SPACES), amounts(), st.sampled_from([(), (), ("a",)]))
modest = st.builds(Demand, st.sampled_from(SPACES), amounts(Resources(800, 8, 8, 3, 1)))
policies = st.builds(AdmissionPolicy, st.integers(1, 12), st.integers(1, 12))


def reached(node: Node, plan: list[Step]) -> State:
    state = start_state(node)
    list(walk(state, plan))
    return state


def refused(state: State, facts: Facts, demand: Demand) -> Refusal | None:
    """Return why *demand* does not fit, or None; implications are tested, so a no is no failure."""
    decision = evaluate(state, facts, demand, NOW, AdmissionPolicy())
    return decision if isinstance(decision, Refusal) else None


def promised(node: Node) -> dict[str, int]:
    devices = {f"gpu_memory_bytes/{device}": size for device, size in node.gpu_allocatable}
    return by_pool(node.effective_allocatable, None) | devices


def charged(state: State) -> Counter[str]:
    """Return what entries hold of each pool, from the rows alone."""
    sums: Counter[str] = Counter()
    for entry in state.reservations():
        sums.update(by_pool(entry.charged, entry.gpu_device))
    return sums


GROWING = ("reserve", "reserve", "reserve", "start", "run", "stop", "release", "claim", "ticket")


@given(nodes(), steps(GROWING))
def test_a_steady_host_is_never_over_committed(node: Node, plan: list[Step]) -> None:
    state = start_state(node)
    limits = promised(node)
    for _ in walk(state, plan):
        assert all(amount <= limits.get(pool, 0) for pool, amount in charged(state).items())
        assert all(
            amount >= 0
            for (account, _), amount in state.balances().items()
            if account != "capacity"
        )


@given(nodes(), steps())
def test_an_admission_leaves_room_whatever_happened_before(node: Node, plan: list[Step]) -> None:
    """Even when capacity shrank or retiring memory grew: what is admitted fits what is left."""
    state = start_state(node)
    for made in walk(state, plan):
        if made.operation == "reserve" and made.puts and isinstance(made.result, Reservation):
            now = state.node()
            assert now is not None
            limits, sums = promised(now), charged(state)
            for pool in by_pool(made.result.charged, made.result.gpu_device):
                assert sums[pool] <= limits[pool]


@given(nodes(), steps(), facts_drawn, demands, policies)
def test_a_decision_changes_nothing(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> None:
    state = reached(node, plan)
    rows, balances = rows_of(state), state.balances()
    first = evaluate(state, facts, demand, NOW, policy)
    assert evaluate(state, facts, demand, NOW, policy) == first
    assert evaluate(state.fork(), facts, demand, NOW, policy) == first
    assert (rows_of(state), state.balances()) == (rows, balances)


@given(nodes(), steps(), facts_drawn, modest, st.data())
def test_less_is_admitted_where_more_was(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, data: st.DataObject
) -> None:
    state = reached(node, plan)
    if refused(state, facts, demand):
        return
    less = data.draw(amounts(demand.requests))
    assert not refused(state, facts, replace(demand, requests=less))


@given(nodes(), steps(), facts_drawn, modest, st.integers(0, 31))
def test_a_release_never_turns_a_yes_into_a_no(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, which: int
) -> None:
    state = reached(node, plan)
    entries = list(state.reservations())
    if not entries or refused(state, facts, demand):
        return
    gone = entries[which % len(entries)]
    puts = (Put(RESERVATIONS, gone.id, None), *drawdown_put(state, gone, None))
    do(state, change(state, "release", puts))
    assert not refused(state, facts, demand)


@given(nodes(), steps(), facts_drawn, modest, amounts(), st.integers(0, 9))
def test_a_larger_host_never_turns_a_yes_into_a_no(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, more: Resources, gpu: int
) -> None:
    state = reached(node, plan)
    if refused(state, facts, demand):
        return
    now = state.node()
    assert now is not None
    larger = replace(
        now,
        effective_allocatable=now.effective_allocatable.plus(replace(more, gpu_memory_bytes=0)),
        gpu_allocatable=tuple((device, size + gpu) for device, size in now.gpu_allocatable),
    )
    do(state, change(state, "observe-node", (Put("nodes", "node", larger),)))
    assert not refused(state, facts, demand)


def expected_gates(  # noqa: C901 - the contract's gates, one after another
    state: State, facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> set[tuple[str, str]]:
    """Return every (gate, dimension) that is short, worked out from the rows alone."""
    rows, space, found = rows_of(state), demand.namespace, set()
    node, quota = rows["nodes"]["node"], rows["namespaces"][space]
    assert isinstance(node, Node)
    assert isinstance(quota, Namespace)
    entries = [row for row in rows["reservations"].values() if isinstance(row, Reservation)]
    mine = [row for row in entries if row.namespace == space]
    taken, drawn = charged(state), Resources()
    others: Counter[str] = Counter()
    claim = None
    for row in (*rows["claims"].values(), *rows["tickets"].values()):
        if isinstance(row, Claim) and row.namespace == space:
            claim = row
        elif isinstance(row, Claim):
            others.update(by_pool(row.amount.minus(row.drawdown), row.gpu_device))
        elif isinstance(row, Ticket):
            others.update(by_pool(row.held, row.gpu_device))
    for row in mine:
        drawn = drawn.plus(row.charged) if row.phase != "retiring" else drawn
    if len(entries) >= policy.entry_cap:
        found.add(("entries", "entries"))
    if len(mine) >= policy.namespace_entry_cap:
        found.add(("namespace-entries", "entries"))
    limits = promised(node)
    for name in Resources.__dataclass_fields__:
        need, ceiling = getattr(demand.requests, name), getattr(quota.quota, name)
        if not need:
            continue
        if ceiling is not None and getattr(drawn, name) + need > ceiling:
            found.add(("namespace-quota", name))
        if (
            claim
            and claim.hard
            and 0 < getattr(claim.amount, name) < need + getattr(claim.drawdown, name)
        ):
            found.add(("namespace-claim", name))
        pools = [pool for pool in limits if pool.partition("/")[0] == name] or [name]
        if name == "gpu_memory_bytes" and not node.gpu_allocatable:
            continue
        if all(need + taken[pool] + others[pool] > limits.get(pool, 0) for pool in pools):
            found.add(("node", name))
    disk, memory = demand.requests.ephemeral_storage_bytes, demand.requests.memory_bytes
    name = "ephemeral_storage_bytes"
    if disk and facts.storage_free_bytes is not None:
        unwritten = max(0, taken[name] + others[name] - (facts.storage_written_bytes or 0))
        if unwritten + disk > max(0, facts.storage_free_bytes - facts.storage_reserve_bytes):
            found.add(("node-storage-free", name))
    used = facts.sandboxes_memory_bytes
    if memory and used is not None and memory + used > node.effective_allocatable.memory_bytes:
        found.add(("node-memory-use", "memory_bytes"))
    return found


@given(nodes(), steps(), facts_drawn, demands, policies)
def test_every_failing_gate_and_no_other_is_listed(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> None:
    state = reached(node, plan)
    decision = evaluate(state, facts, demand, NOW, policy)
    expected = expected_gates(state, facts, demand, policy)
    if isinstance(decision, Admitted):
        assert expected == set()
        return
    assert {(s.gate, s.dimension) for s in decision.shortfalls} == expected
    assert len(decision.shortfalls) == len(expected)


@given(nodes(), steps(), facts_drawn, demands, policies)
def test_a_refusal_is_complete_and_agrees_with_its_code(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> None:
    state = reached(node, plan)
    decision = evaluate(state, facts, demand, NOW, policy)
    if isinstance(decision, Admitted):
        return
    row = CODES[decision.code]
    assert decision.reasons or decision.shortfalls
    assert decision.retryable == row.retryable
    assert (decision.retry_after_s is not None) == row.retryable
    assert decision.retry_after_s is None or 1 <= decision.retry_after_s <= 60
    assert row.waitable or not row.retryable
    for short in decision.shortfalls:
        assert short.short_by == short.requested - short.available > 0
        assert short.available == max(0, short.limit - short.committed)
        assert short.limit >= 0
    gates = {short.gate for short in decision.shortfalls}
    never = any(s.gate == "node" and s.requested > s.limit for s in decision.shortfalls)
    if decision.reasons:
        assert decision.code == "node_selection_error"
        assert not any(word in decision.message for word in ("capacity", "exhausted", "quota"))
    elif "namespace-quota" in gates:
        assert decision.code == "namespace_quota_exceeded"
    elif "namespace-claim" in gates:
        assert decision.code == "namespace_claim_exceeded"
    else:
        assert (decision.code == "request_exceeds_node") == never
        assert decision.summary in refusals.SUMMARIES.values()
        assert decision.message.startswith(decision.summary + ": ")


@given(nodes(), steps(), demands)
def test_waiting_for_everything_to_end_is_enough_where_it_is_said_to_be(
    node: Node, plan: list[Step], demand: Demand
) -> None:
    """A retryable refusal becomes a yes on an empty host, and one that is not stays a no."""
    state = reached(node, plan)
    now = state.node()
    assert now is not None
    refusal = refused(state, FACTS, demand)
    later = refused(start_state(now), FACTS, demand)
    if refusal and refusal.retryable:
        assert later is None
    if refusal and refusal.code == "request_exceeds_node":
        assert later is not None
