"""The law of rooms: what is left at a gate is what the refusal there says, whatever the state."""

from hypothesis import given
from hypothesis import strategies as st

from ledger.admission import AdmissionPolicy, Demand, evaluate
from ledger.facts import Facts
from ledger.refusal import Refusal
from ledger.rooms import Gate, Ground, room_at
from ledger.tables import Node
from tests.property.test_admission import demands, facts_drawn, policies, reached
from tests.property.walk import Step, nodes, steps
from tests.unit.ledger.samples import NOW

EXPOSED = AdmissionPolicy(max_exposure=(("cpu_milli", 3, 2), ("memory_bytes", 1, 1)))


@given(nodes(), steps(), facts_drawn, demands, policies | st.just(EXPOSED))
def test_who_is_refused_asks_for_more_than_is_left_there(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> None:
    state = reached(node, plan)
    row = state.node()
    assert row is not None
    decision = evaluate(state, facts, demand, NOW, policy)
    if not isinstance(decision, Refusal):
        return
    for short in decision.shortfalls:
        gate = Gate(short.gate, demand.namespace, short.dimension)
        room = room_at(gate, Ground(state, row, facts, policy))
        assert room < short.requested
        # Of several devices it is the largest room, and a claim goes before the exposure's bound.
        if short.dimension != "gpu_memory_bytes" and short.gate != "node-exposure":
            assert max(0, room) == short.available


@given(nodes(), steps(), facts_drawn, demands, policies | st.just(EXPOSED))
def test_who_is_admitted_has_room_at_every_gate(
    node: Node, plan: list[Step], facts: Facts, demand: Demand, policy: AdmissionPolicy
) -> None:
    state = reached(node, plan)
    row = state.node()
    assert row is not None
    if isinstance(evaluate(state, facts, demand, NOW, policy), Refusal):
        return
    ground = Ground(state, row, facts, policy)
    for gate in ("node", "namespace-quota", "namespace-claim"):
        for name in demand.requests.__dataclass_fields__:
            amount = getattr(demand.requests, name)
            assert not amount or room_at(Gate(gate, demand.namespace, name), ground) >= amount
    assert room_at(Gate("entries", "", "entries"), ground) >= 1
    assert room_at(Gate("namespace-entries", demand.namespace, "entries"), ground) >= 1
