"""What all may use together: counted right whatever happens, and bounded where that is wanted."""

from collections import Counter
from dataclasses import replace

import pytest

from ledger import transitions, why
from ledger.admission import AdmissionPolicy, Admitted, Demand, evaluate
from ledger.exposure import LIMITED, Exposure
from ledger.refusal import NODE_EXPOSURE, Refusal
from ledger.reservation import EXTERNAL, RETIRING
from ledger.resources import OptionalResources
from ledger.spec import ResolvedSpec
from ledger.state import State
from ledger.transitions import Proposal
from ledger.why import Case, Way
from tests.property.cases import questions
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    NOW,
    POLICY,
    add_claim,
    add_namespace,
    ask,
    do,
    host_state,
    proposal,
)

TWICE = AdmissionPolicy(max_exposure=(("memory_bytes", 2, 1),))


def with_limit(key: str, memory: int | None, *, kind: str = "run") -> Proposal:
    """Return a proposal of 1 GiB that may use *memory*; None is as much as there is."""
    wanted = proposal(key, ask(memory=GIB), kind=kind)
    return replace(wanted, resolved=ResolvedSpec(ask(memory=GIB), OptionalResources(None, memory)))


def decide(state: State, wanted: Proposal) -> Admitted | Refusal:
    return evaluate(state, FACTS, transitions.demand_of(wanted), NOW, TWICE)


def admit(state: State, wanted: Proposal) -> None:
    do(state, transitions.reserve(state, wanted, FACTS, NOW, TWICE))


def test_limits_together_are_bounded_and_requests_are_not_touched() -> None:
    state = host_state()  # 16 GiB
    for number in range(4):
        admit(state, with_limit(f"r{number}", 8 * GIB))
    decision = decide(state, with_limit("more", GIB))
    assert isinstance(decision, Refusal)
    (short,) = decision.shortfalls
    assert (short.gate, short.dimension) == (NODE_EXPOSURE, "memory_bytes")
    assert (short.requested, short.committed, short.limit) == (GIB, 32 * GIB, 32 * GIB)
    assert decision.code == "node_memory_capacity_exhausted"
    assert decision.hint == "give it a smaller limit: what all may use together is bounded"
    assert isinstance(
        evaluate(state, FACTS, transitions.demand_of(with_limit("x", GIB)), NOW, POLICY), Admitted
    )
    demand = transitions.demand_of(with_limit("more", GIB))
    told = why.explain(Case(state, FACTS, demand, NOW, TWICE), decision)
    assert told.would_fit_if == (Way(release=("r0",)),)
    assert [holder.amount for holder in told.holders] == [8 * GIB] * 3 + [8 * GIB]


def test_no_limit_is_the_whole_and_a_lease_is_its_request() -> None:
    state = host_state()
    admit(state, with_limit("whole", None))
    admit(state, with_limit("lease", None, kind=EXTERNAL))
    assert isinstance(decide(state, with_limit("fits", 15 * GIB)), Admitted)
    decision = decide(state, with_limit("another", None))
    assert isinstance(decision, Refusal)
    assert decision.shortfalls[0].committed == 17 * GIB
    do(state, transitions.start(state, "whole"))
    do(state, transitions.retire(state, "whole", "exit"))
    assert isinstance(decide(state, with_limit("another", None)), Admitted)


def test_a_limit_over_the_bound_never_fits() -> None:
    decision = decide(host_state(), with_limit("huge", 33 * GIB))
    assert isinstance(decision, Refusal)
    assert decision.code == "request_exceeds_node"
    assert not decision.retryable


def counted(state: State) -> tuple[Counter[str], Counter[str]]:
    limits: Counter[str] = Counter()
    unlimited: Counter[str] = Counter()
    for row in state.reservations():
        for name in LIMITED if row.phase != RETIRING else ():
            most = getattr(row.limits, name)
            if most is None and (row.owner.kind == EXTERNAL or name.startswith("ephemeral")):
                most = getattr(row.requests, name)
            if most is None:
                unlimited[name] += 1
            else:
                limits[name] += most
    return +limits, +unlimited


@pytest.mark.parametrize("seed", range(5))
def test_the_sums_are_those_of_the_rows_whatever_happened(seed: int) -> None:
    for number, question in enumerate(questions(seed)):
        state = question.state
        if number == 10:
            assert state._exposure is None  # nobody has asked, so nobody has paid
            state.exposure()
        if number > 10 and number % 3 == 0:
            fork = state.fork()
            for row in list(fork.reservations())[:2]:
                if row.phase in ("starting", "running", "stopping"):
                    do(fork, transitions.retire(fork, row.id, "exit"))
            made = fork.exposure()
            assert (+Counter(made.limits), +Counter(made.unlimited)) == counted(fork)
            state.merge(fork)
        kept = state.exposure() if number >= 10 else Exposure(state.reservations())
        assert (+Counter(kept.limits), +Counter(kept.unlimited)) == counted(state)


def test_a_demand_of_a_lease_has_no_limits() -> None:
    assert transitions.demand_of(with_limit("l", None, kind=EXTERNAL)).limits is None
    wanted = transitions.demand_of(with_limit("r", GIB))
    assert wanted == Demand("default", ask(memory=GIB), (), OptionalResources(None, GIB))


def test_what_is_claimed_goes_before_the_bound() -> None:
    state = host_state()
    add_namespace(state, "team")
    add_claim(state, "team", ask(memory=2 * GIB))
    for number in range(4):
        admit(state, with_limit(f"r{number}", 8 * GIB))
    within = Demand("team", ask(memory=GIB), (), OptionalResources(None, 2 * GIB))
    assert isinstance(evaluate(state, FACTS, within, NOW, TWICE), Admitted)
    beyond = replace(within, limits=OptionalResources(None, 2 * GIB + 1))
    for refused in (beyond, replace(within, limits=OptionalResources())):
        decision = evaluate(state, FACTS, refused, NOW, TWICE)
        assert isinstance(decision, Refusal)
        assert [short.gate for short in decision.shortfalls] == [NODE_EXPOSURE]
