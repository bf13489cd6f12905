"""Published ports: read and written alike, and never held by two."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import invariants, published, rights, tables, transitions, why
from ledger.admission import AdmissionPolicy, Admitted, evaluate
from ledger.clock import Now
from ledger.errors import AdmissionRefused, InvalidArgument
from ledger.facts import Facts
from ledger.refusal import PUBLISHED_PORT
from ledger.reservation import RUN, Owner
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import State
from ledger.tables import Network, Node, Port
from ledger.transitions import Proposal

NOW = Now("boot", 1000, 1000, 1000)
FACTS = Facts(1, 1000, ("network",))
WHOLE = Resources(8000, 2**34, 2**34, 0, 10)
POLICY = AdmissionPolicy()
PORTS = st.tuples(st.sampled_from(("tcp", "udp")), st.integers(1, 65_535), st.integers(1, 65_535))


def node_state() -> State:
    state = State.load(NOW, 0, {tables.NAMESPACES: {"default": tables.Namespace("default")}}, {})
    node = Node(WHOLE, Resources(), WHOLE, "1")
    state.apply(transitions.observe_node(state, node))
    return state


def proposal(key: str, *ports: Port, uid: int = 7) -> Proposal:
    return Proposal(
        id=key,
        namespace="default",
        owner=Owner(RUN, uid),
        spec=ResourceSpec(),
        resolved=ResolvedSpec(Resources(100, 2**20, 0, 0, 1), OptionalResources()),
        digest="",
        enforced=True,
        runtime="runc",
        network=Network("bridge", ports),
    )


def reserve(state: State, wanted: Proposal) -> None:
    state.apply(transitions.reserve(state, wanted, FACTS, NOW, POLICY))


def end(state: State, key: str) -> None:
    for step in (transitions.retire(state, key, "over"), None):
        if step is not None:
            state.apply(step)
    state.apply(transitions.release(state, key, "gone"))


@given(PORTS)
def test_reading_and_writing_are_inverse(port: Port) -> None:
    assert published.parse(published.spelled(port)) == port


@pytest.mark.parametrize(
    "text", ["", "80", "0:80", "80:0", "65536:1", "1:65536", "a:b", "80:80/sctp", " 80:80", "٨:1"]
)
def test_what_is_no_port_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no published port") as caught:
        published.parse(text)
    assert caught.value.hint == "for example 8080:80 or 5353:53/udp"


def test_one_port_twice_in_one_request_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="port tcp/80 is published twice"):
        published.require_distinct((("tcp", 80, 1), ("udp", 80, 1), ("tcp", 80, 2)))


def test_a_port_that_is_held_is_refused_with_its_holder_and_what_would_help() -> None:
    state = node_state()
    reserve(state, proposal("a", ("tcp", 8080, 80)))
    reserve(state, proposal("b", ("udp", 8080, 80)))
    with pytest.raises(AdmissionRefused) as caught:
        reserve(state, proposal("c", ("tcp", 8081, 80), ("tcp", 8080, 81)))
    refusal = caught.value.refusal
    assert refusal.code == "published_port_taken"
    assert refusal.retryable
    assert refusal.waitable
    assert [(each.gate, each.dimension) for each in refusal.shortfalls] == [
        (PUBLISHED_PORT, "tcp/8080")
    ]
    assert refusal.message == (
        "published port taken: published-port tcp/8080: requested 1, committed 1 of 1, short by 1"
    )
    demand = transitions.demand_of(proposal("c", ("tcp", 8080, 81)))
    told = why.explain(why.Case(state, FACTS, demand, NOW, POLICY), refusal)
    assert [holder.id for holder in told.holders] == ["a"]
    assert [way.release for way in told.would_fit_if] == [("a",)]
    other = why.explain(
        why.Case(state, FACTS, demand, NOW, POLICY, viewer=rights.by_default(8)), refusal
    )
    assert [(holder.kind, holder.id) for holder in other.holders] == [(why.OTHERS, None)]


def test_with_a_lack_of_capacity_the_code_is_that_of_capacity() -> None:
    state = node_state()
    reserve(state, proposal("a", ("tcp", 8080, 80)))
    large = replace(
        proposal("b", ("tcp", 8080, 80)),
        resolved=ResolvedSpec(Resources(7950, 2**20, 0, 0, 1), OptionalResources()),
    )
    decision = evaluate(state, FACTS, transitions.demand_of(large), NOW, POLICY)
    assert not isinstance(decision, Admitted)
    assert decision.code == "node_cpu_capacity_exhausted"
    assert {each.dimension for each in decision.shortfalls} == {"cpu_milli", "tcp/8080"}


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.lists(PORTS, max_size=4)), max_size=12))
def test_no_two_ever_hold_the_same_port(steps: list[tuple[str, list[Port]]]) -> None:
    state = node_state()
    for key, ports in steps:
        if state.find_reservation(key) is not None:
            end(state, key)
            continue
        distinct = tuple({published.name_of(port): port for port in ports}.values())
        held = published.holders(state)
        free = not any(published.name_of(port) in held for port in distinct)
        if free:
            reserve(state, proposal(key, *distinct))
        else:
            with pytest.raises(AdmissionRefused) as caught:
                reserve(state, proposal(key, *distinct))
            assert caught.value.refusal.code == "published_port_taken"
        assert invariants.check(state.all_rows(), state.balances()) == []
    assert len(dict(state.rows(tables.NETWORKS))) == sum(1 for _ in state.reservations())


def test_control_two_holders_are_a_contradiction() -> None:
    state = node_state()
    reserve(state, proposal("a", ("tcp", 8080, 80)))
    reserve(state, proposal("b"))
    rows = {name: dict(table) for name, table in state.all_rows().items()}
    rows[tables.NETWORKS]["b"] = Network("bridge", (("tcp", 8080, 99),))
    codes = [each.code for each in invariants.check(rows, state.balances())]
    assert codes == ["port-shared"]
    rows[tables.NETWORKS] = {"nobody": Network("bridge"), "a": Network("vlan")}
    codes = [each.code for each in invariants.check(rows, state.balances())]
    assert codes == ["network-of-nobody", "unknown-network"]
