"""Claims: guarded create and grow, drawdown, shrink, expiry, hard and advisory, GPU devices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ledger import claims, invariants, namespaces, standing, transitions
from ledger.admission import Admitted, Demand, evaluate
from ledger.claims import ClaimProposal, ClaimUpdate, Host
from ledger.errors import AdmissionRefused, InvalidArgument, NotFound, StateConflict
from ledger.reclaim import EndClaim, plan
from ledger.refusal import Refusal
from ledger.reservation import LivenessPolicy
from ledger.resources import OptionalResources, Resources
from ledger.rights import ROOT
from ledger.state import State
from ledger.tables import Claim
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    NOW,
    POLICY,
    add_namespace,
    ask,
    do,
    host_state,
    later,
    node,
    proposal,
    reserve,
    rows_of,
)

HOST = Host(FACTS, NOW, POLICY)
ADMIN = "uid:0"


@pytest.fixture
def state() -> State:
    found = host_state()
    add_namespace(found, "team")
    return found


def create(
    state: State, amounts: Mapping[str, int], *, hard: bool = True, ttl_ms: int | None = None
) -> Claim:
    asked = ClaimProposal("c1", "team", amounts, hard, ttl_ms)
    row = do(state, claims.create(state, asked, HOST, ADMIN))
    assert isinstance(row, Claim)
    assert invariants.check(rows_of(state), state.balances()) == []
    return row


def update(state: State, wanted: ClaimUpdate) -> Claim:
    row = do(state, claims.update(state, "c1", wanted, HOST, ADMIN))
    assert isinstance(row, Claim)
    assert invariants.check(rows_of(state), state.balances()) == []
    return row


def shorts(refused: AdmissionRefused) -> list[tuple[str, str, int]]:
    return [(s.gate, s.dimension, s.short_by) for s in refused.refusal.shortfalls]


def fits(state: State, requests: Resources, namespace: str = "default") -> bool:
    decision = evaluate(state, FACTS, Demand(namespace, requests), NOW, POLICY)
    return isinstance(decision, Admitted)


def test_a_claim_is_an_admission(state: State) -> None:
    reserve(state, proposal("r", ask(cpu=1500)))
    with pytest.raises(AdmissionRefused) as refused:
        create(state, {"cpu_milli": 2501, "memory_bytes": 17 * GIB})
    assert shorts(refused.value) == [("node", "cpu_milli", 1), ("node", "memory_bytes", GIB)]
    assert refused.value.code == "request_exceeds_node"
    assert state.claim_of("team") is None
    create(state, {"cpu_milli": 2500})
    assert not fits(state, ask(cpu=1))
    assert fits(state, ask(cpu=2500), "team")


def test_what_is_held_already_moves_under_it(state: State) -> None:
    reserve(state, proposal("r", ask(cpu=3000), namespace="team"))
    row = create(state, {"cpu_milli": 4000})
    assert row.drawdown == ask(cpu=3000)
    assert fits(state, ask(cpu=1000), "team")
    do(state, transitions.retire(state, "r", "exit"))
    assert not fits(state, ask(cpu=1001), "team")
    do(state, transitions.release(state, "r", "gone"))
    assert fits(state, ask(cpu=4000), "team")


def test_asking_again_changes_nothing_and_for_something_else_is_a_conflict(state: State) -> None:
    row = create(state, {"cpu_milli": 1000})
    again = claims.create(state, ClaimProposal("c2", "team", {"cpu_milli": 1000}), HOST, ADMIN)
    assert (again.puts, again.result) == ((), row)
    with pytest.raises(StateConflict, match="has the claim c1 already"):
        claims.create(state, ClaimProposal("c2", "team", {"cpu_milli": 999}), HOST, ADMIN)
    with pytest.raises(NotFound, match="nowhere"):
        claims.create(state, ClaimProposal("c2", "nowhere", {"cpu_milli": 9}), HOST, ADMIN)
    with pytest.raises(InvalidArgument, match="must claim something"):
        claims.create(state, ClaimProposal("c2", "default", {"cpu_milli": 0}), HOST, ADMIN)


def test_a_hard_ceiling_names_claim_limit_drawdown_and_shortfall(state: State) -> None:
    create(state, {"cpu_milli": 1000})
    reserve(state, proposal("r", ask(cpu=700), namespace="team"))
    decision = evaluate(state, FACTS, Demand("team", ask(cpu=301)), NOW, POLICY)
    assert isinstance(decision, Refusal)
    assert (decision.code, decision.retryable) == ("namespace_claim_exceeded", False)
    (short,) = decision.shortfalls
    assert (short.claim_id, short.limit, short.committed, short.short_by) == ("c1", 1000, 700, 1)


def test_what_is_not_claimed_has_neither_floor_nor_ceiling(state: State) -> None:
    create(state, {"cpu_milli": 1000})
    reserve(state, proposal("r", ask(cpu=500, memory=GIB), namespace="team"))
    assert fits(state, ask(memory=15 * GIB))
    reserve(state, proposal("s", ask(memory=15 * GIB)))
    assert not fits(state, ask(cpu=1, memory=1), "team")
    assert fits(state, ask(cpu=500), "team")


def test_an_advisory_claim_may_be_overdrawn(state: State) -> None:
    create(state, {"cpu_milli": 1000}, hard=False)
    reserve(state, proposal("r", ask(cpu=1500), namespace="team"))
    row = state.claim_of("team")
    assert row is not None
    assert claims.overdrawn(row) == ("cpu_milli",)
    with pytest.raises(StateConflict, match=r"holds more .*: CPU 1500m of 1$"):
        update(state, ClaimUpdate({}, hard=True))
    update(state, ClaimUpdate({"cpu_milli": 1500}, hard=True))
    assert not fits(state, ask(cpu=1), "team")


def test_it_grows_only_into_what_is_free_and_shrinks_down_to_what_is_drawn(state: State) -> None:
    create(state, {"cpu_milli": 1000})
    reserve(state, proposal("r", ask(cpu=700), namespace="team"))
    reserve(state, proposal("s", ask(cpu=2000)))
    with pytest.raises(AdmissionRefused) as refused:
        update(state, ClaimUpdate({"cpu_milli": 2001}))
    assert shorts(refused.value) == [("node", "cpu_milli", 1)]
    update(state, ClaimUpdate({"cpu_milli": 2000}))
    with pytest.raises(StateConflict, match="CPU 699m of 700m drawn"):
        update(state, ClaimUpdate({"cpu_milli": 699}))
    assert update(state, ClaimUpdate({"cpu_milli": 700})).amount == Resources(700)
    assert fits(state, ask(cpu=1300))
    with pytest.raises(InvalidArgument, match="must claim something"):
        update(state, ClaimUpdate({"cpu_milli": 0}))


def test_a_draining_node_lets_nothing_grow(state: State) -> None:
    create(state, {"cpu_milli": 1000})
    do(state, standing.drain(state, standing.Wish(ROOT, "new disks"), NOW))
    with pytest.raises(AdmissionRefused, match="new disks"):
        update(state, ClaimUpdate({"cpu_milli": 1001}))
    assert update(state, ClaimUpdate({"cpu_milli": 900})).amount == Resources(900)
    do(state, claims.release(state, "c1", ADMIN))
    with pytest.raises(NotFound, match="no claim has the id c1") as caught:
        claims.release(state, "c1", ADMIN)
    assert caught.value.hint == "list them with: axern claim list"


def test_no_more_is_claimed_than_the_quota_lets_be_held(state: State) -> None:
    do(state, namespaces.set_quota(state, "team", {"cpu_milli": 800}, ADMIN))
    with pytest.raises(AdmissionRefused) as refused:
        create(state, {"cpu_milli": 1000})
    assert refused.value.code == "namespace_quota_exceeded"
    create(state, {"cpu_milli": 800})
    assert state.namespace("team").quota == OptionalResources(800)


def test_it_ends_by_its_deadline_alone(state: State) -> None:
    create(state, {"cpu_milli": 1000}, ttl_ms=5_000)
    reserve(state, proposal("r", ask(cpu=700), namespace="team"))
    soon, late = later(NOW, 4.999), later(NOW, 5)
    assert claims.expire(state, "c1", soon).puts == ()
    assert plan(state, {}, soon, LivenessPolicy()) == ()
    assert plan(state, {}, late, LivenessPolicy()) == (EndClaim("c1"),)
    prolonged = update(state, ClaimUpdate({}, ttl_ms=6_000))
    assert prolonged.expires_boottime_ms == NOW.boottime_ms + 6_000
    assert claims.expire(state, "c1", late).puts == ()
    lasting = update(state, ClaimUpdate({}, lasting=True))
    assert lasting.expires_boottime_ms is None
    update(state, ClaimUpdate({}, ttl_ms=5_000))
    do(state, claims.expire(state, "c1", late))
    assert state.claim_of("team") is None
    assert claims.expire(state, "c1", late).puts == ()
    assert fits(state, ask(cpu=3300))
    do(state, transitions.release(state, "r", "never started"))
    assert invariants.check(rows_of(state), state.balances()) == []


def test_gpu_memory_is_claimed_on_one_device() -> None:
    state = host_state(node(gpus=(("g0", 8), ("g1", 10))))
    add_namespace(state, "team")
    assert create(state, {"gpu_memory_bytes": 8}, hard=False).gpu_device == "g0"
    first = reserve(state, proposal("a", ask(gpu=8), namespace="team"))
    second = reserve(state, proposal("b", ask(gpu=8), namespace="team"))
    assert (first.gpu_device, second.gpu_device) == ("g0", "g1")
    row = state.claim_of("team")
    assert row is not None
    assert row.drawdown.gpu_memory_bytes == 8
    do(state, transitions.release(state, "a", "never started"))
    assert not fits(state, ask(gpu=8))
    assert fits(state, ask(gpu=8), "team")
    update(state, ClaimUpdate({}, hard=True))
    reserve(state, proposal("c", ask(gpu=8), namespace="team"))
    do(state, transitions.release(state, "b", "never started"))
    assert not fits(state, ask(gpu=1), "team")  # g1 is free, and not its own


def test_a_hard_claim_stays_on_a_device_that_has_shrunk() -> None:
    state = host_state(node(gpus=(("g0", 8), ("g1", 10))))
    add_namespace(state, "team")
    create(state, {"gpu_memory_bytes": 8})
    do(state, transitions.observe_node(state, node(gpus=(("g0", 4), ("g1", 10)))))
    assert not fits(state, ask(gpu=6), "team")
    update(state, ClaimUpdate({}, hard=False))
    assert fits(state, ask(gpu=6), "team")  # on g1, and not drawn from the claim


def test_a_claim_on_a_device_that_is_held_in_part() -> None:
    state = host_state(node(gpus=(("g0", 8), ("g1", 10))))
    add_namespace(state, "team")
    reserve(state, proposal("a", ask(gpu=6), namespace="team"))
    reserve(state, proposal("b", ask(gpu=9)))
    row = create(state, {"gpu_memory_bytes": 8})
    assert (row.gpu_device, row.drawdown.gpu_memory_bytes) == ("g0", 6)
    with pytest.raises(AdmissionRefused) as refused:
        update(state, ClaimUpdate({"gpu_memory_bytes": 9}))
    assert shorts(refused.value) == [("node", "gpu_memory_bytes", 1)]


def test_a_host_without_devices_has_no_gpu_memory_to_claim(state: State) -> None:
    with pytest.raises(AdmissionRefused, match="capability gpu is absent"):
        create(state, {"gpu_memory_bytes": 8})
