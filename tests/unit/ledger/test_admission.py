"""Who is admitted, and everything that a refusal says."""

from dataclasses import replace

import pytest

from ledger import claims, transitions
from ledger import refusal as refusals
from ledger.admission import (
    AdmissionPolicy,
    Admitted,
    Demand,
    effective_allocatable,
    evaluate,
)
from ledger.claims import ClaimProposal
from ledger.errors import CODES, AdmissionRefused, NotFound
from ledger.facts import Facts
from ledger.refusal import Refusal, Shortfall
from ledger.reservation import SANDBOX_LANES
from ledger.resources import BY_NAME, OptionalResources, Resources
from ledger.state import State, genesis
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    HOST,
    NOW,
    POLICY,
    add_claim,
    add_namespace,
    add_ticket,
    ask,
    do,
    host_state,
    node,
    proposal,
    reserve,
)


def decide(
    state: State,
    requests: Resources,
    namespace: str = "default",
    facts: Facts | None = FACTS,
    policy: AdmissionPolicy = POLICY,
    requires: tuple[str, ...] = (),
) -> Admitted | Refusal:
    return evaluate(state, facts, Demand(namespace, requests, requires), NOW, policy)


def refusal(decision: Admitted | Refusal) -> Refusal:
    assert isinstance(decision, Refusal)
    return decision


def shorts(decision: Admitted | Refusal) -> list[tuple[str, str, int]]:
    return [(s.gate, s.dimension, s.short_by) for s in refusal(decision).shortfalls]


def cpu_host(milli: int, ratio: str, used: int) -> State:
    state = host_state(node(replace(HOST, cpu_milli=milli), ratio))
    reserve(state, proposal("used", ask(cpu=used)))
    return state


@pytest.mark.parametrize(
    ("used", "requested", "available"),
    [(1500, 400, None), (1500, 500, None), (1500, 600, 500), (2000, 1, 0), (1, 2000, 1999)],
)
def test_cpu_fits_up_to_the_effective_allocatable(
    used: int, requested: int, available: int | None
) -> None:
    decision = decide(cpu_host(1000, "2", used), ask(cpu=requested))
    if available is None:
        assert decision == Admitted(2, FACTS.sequence, None)
        return
    assert refusal(decision).code == "node_cpu_capacity_exhausted"
    assert refusal(decision).shortfalls == (
        Shortfall("node", "cpu_milli", requested, used, 2000, available, requested - available),
    )


def test_the_overcommit_ratio_is_floored() -> None:
    state = host_state(node(replace(HOST, cpu_milli=1001), "2.5"))
    row = state.node()
    assert row is not None
    assert effective_allocatable(row, BY_NAME["cpu_milli"], None) == 2502
    assert isinstance(decide(state, ask(cpu=2502)), Admitted)
    assert refusal(decide(state, ask(cpu=2503))).code == "request_exceeds_node"


def test_the_last_sandbox_slot() -> None:
    state = host_state()
    for number in range(63):
        reserve(state, proposal(f"r{number}", ask()))
    assert isinstance(decide(state, ask()), Admitted)
    reserve(state, proposal("r63", ask()))
    decision = refusal(decide(state, ask()))
    assert decision.code == "runtime_slot_capacity_exhausted"
    assert decision.summary == "runtime slot capacity exhausted"
    assert decision.shortfalls == (Shortfall("node", "sandbox_slots", 1, 64, 64, 0, 1),)


def test_slots_end_where_lanes_end() -> None:
    state = host_state(node(replace(HOST, sandbox_slots=10_000)))
    assert shorts(decide(state, ask(slots=5000))) == [("node", "sandbox_slots", 5000 - 4095)]


@pytest.mark.parametrize(
    ("requests", "code", "summary"),
    [
        (ask(cpu=1), "node_cpu_capacity_exhausted", "node CPU capacity exhausted"),
        (ask(memory=1), "node_memory_capacity_exhausted", "node memory capacity exhausted"),
        (
            ask(cpu=1, memory=1),
            "node_cpu_and_memory_capacity_exhausted",
            "node CPU and memory capacity exhausted",
        ),
        (
            ask(storage=1),
            "node_ephemeral_storage_capacity_exhausted",
            "node ephemeral storage capacity exhausted",
        ),
        (ask(gpu=1), "node_gpu_memory_capacity_exhausted", "node GPU memory capacity exhausted"),
        (
            ask(cpu=1, storage=1),
            "node_reservation_capacity_exhausted",
            "node reservation capacity exhausted",
        ),
    ],
)
def test_each_full_dimension_has_its_code(requests: Resources, code: str, summary: str) -> None:
    host = Resources(1000, GIB, GIB, 0, 64)
    state = host_state(node(host, gpus=(("g", GIB),)))
    reserve(state, proposal("all", ask(1000, GIB, GIB, GIB)))
    decision = refusal(decide(state, requests))
    assert (decision.code, decision.summary) == (code, summary)
    assert decision.message.startswith(summary + ": ")
    assert decision.diagnostic_code == "admission-blocked"
    assert (decision.retryable, decision.retry_after_s) == (True, 10)
    wanted = {name for name in BY_NAME if getattr(requests, name)} - {"sandbox_slots"}
    assert {s.dimension for s in decision.shortfalls} == wanted


def test_every_failing_dimension_is_listed() -> None:
    decision = refusal(decide(host_state(), ask(5000, 17 * GIB, 101 * GIB, 0, 65)))
    assert decision.code == "request_exceeds_node"
    assert [(s.dimension, s.short_by) for s in decision.shortfalls] == [
        ("cpu_milli", 1000),
        ("memory_bytes", GIB),
        ("ephemeral_storage_bytes", GIB),
        ("sandbox_slots", 1),
    ]


def test_what_can_never_fit_is_not_retryable() -> None:
    decision = refusal(decide(host_state(), ask(memory=2**50)))
    assert decision.code == "request_exceeds_node"
    assert decision.summary == "node memory capacity exhausted"
    assert (decision.retryable, decision.retry_after_s) == (False, None)


def test_what_can_never_fit_says_so_even_at_the_entry_cap() -> None:
    policy = AdmissionPolicy(entry_cap=0)
    decision = refusal(decide(host_state(), ask(memory=2**50), policy=policy))
    assert decision.code == "request_exceeds_node"
    assert decision.summary == "node memory capacity exhausted"
    assert [s.gate for s in decision.shortfalls] == ["entries", "node"]


@pytest.mark.parametrize(
    ("requested", "available"), [(200, None), (201, 200), (1000, 200), (1001, 200)]
)
def test_a_quota_is_a_ceiling(requested: int, available: int | None) -> None:
    state = host_state(node(ratio="3"))
    add_namespace(state, "team", OptionalResources(cpu_milli=1000))
    reserve(state, proposal("used", ask(cpu=800), namespace="team"))
    decision = decide(state, ask(cpu=requested), "team")
    if available is None:
        assert isinstance(decision, Admitted)
        return
    assert refusal(decision).code == "namespace_quota_exceeded"
    assert refusal(decision).message.startswith("namespace quota exceeded: ")
    assert refusal(decision).retry_after_s is None
    assert refusal(decision).shortfalls == (
        Shortfall("namespace-quota", "cpu_milli", requested, 800, 1000, 200, requested - 200),
    )


def test_the_namespace_comes_first_and_the_node_is_listed_too() -> None:
    state = host_state()
    quota = OptionalResources(cpu_milli=100, memory_bytes=GIB, sandbox_slots=0)
    add_namespace(state, "team", quota)
    decision = refusal(decide(state, ask(5000, 4 * GIB), "team"))
    assert decision.code == "namespace_quota_exceeded"
    assert decision.retryable is False
    assert shorts(decision) == [
        ("namespace-quota", "cpu_milli", 4900),
        ("namespace-quota", "memory_bytes", 3 * GIB),
        ("namespace-quota", "sandbox_slots", 1),
        ("node", "cpu_milli", 1000),
    ]


def test_a_quota_below_usage_stops_only_what_is_new() -> None:
    state = host_state()
    add_namespace(state, "team")
    reserve(state, proposal("used", ask(cpu=3000), namespace="team"))
    add_namespace(state, "team", OptionalResources(cpu_milli=2000))
    assert state.reservation("used").phase == "reserved"
    assert shorts(decide(state, ask(cpu=1), "team")) == [("namespace-quota", "cpu_milli", 1)]
    assert isinstance(decide(state, ask(memory=1), "team"), Admitted)


def test_retiring_frees_the_quota_but_not_the_node() -> None:
    state = host_state()
    add_namespace(state, "team", OptionalResources(memory_bytes=15 * GIB))
    reserve(state, proposal("r", ask(memory=15 * GIB), namespace="team"))
    do(state, transitions.start(state, "r"))
    do(state, transitions.retire(state, "r", "exit"))
    assert shorts(decide(state, ask(memory=2 * GIB), "team")) == [("node", "memory_bytes", GIB)]
    do(state, transitions.release(state, "r", "gone"))
    assert isinstance(decide(state, ask(memory=2 * GIB), "team"), Admitted)


def test_entry_caps() -> None:
    state = host_state()
    add_namespace(state, "team")
    reserve(state, proposal("a", ask()))
    reserve(state, proposal("b", ask(), namespace="team"))
    decision = decide(state, ask(), policy=AdmissionPolicy(entry_cap=2))
    assert shorts(decision) == [("entries", "entries", 1)]
    assert refusal(decision).code == "node_reservation_capacity_exhausted"
    policy = AdmissionPolicy(namespace_entry_cap=1)
    assert shorts(decide(state, ask(), "team", policy=policy)) == [
        ("namespace-entries", "entries", 1)
    ]
    assert isinstance(decide(state, ask(), policy=AdmissionPolicy(3, 2)), Admitted)


def test_held_capacity_is_nobody_elses() -> None:
    state = host_state()
    add_ticket(state, ask(cpu=3000))
    assert isinstance(decide(state, ask(cpu=1000)), Admitted)
    assert shorts(decide(state, ask(cpu=1001))) == [("node", "cpu_milli", 1)]


def test_a_claim_is_a_floor_and_a_ceiling() -> None:
    state = host_state()
    add_namespace(state, "team")
    add_claim(state, "team", ask(cpu=3000, memory=GIB, slots=10))
    assert shorts(decide(state, ask(cpu=1001))) == [("node", "cpu_milli", 1)]
    assert isinstance(decide(state, ask(cpu=3000), "team"), Admitted)
    decision = refusal(decide(state, ask(cpu=3001), "team"))
    assert decision.code == "namespace_claim_exceeded"
    assert decision.summary == "namespace claim exceeded"
    assert decision.retryable is False


def test_an_advisory_claim_is_no_ceiling() -> None:
    state = host_state()
    add_namespace(state, "team")
    add_claim(state, "team", ask(cpu=1000, slots=10), hard=False)
    reserve(state, proposal("r", ask(cpu=1500), namespace="team"))
    assert shorts(decide(state, ask(cpu=2501))) == [("node", "cpu_milli", 1)]
    assert isinstance(decide(state, ask(cpu=2500)), Admitted)


def test_a_claim_is_honoured_on_a_disk_that_it_fills() -> None:
    """What a namespace has claimed and not drawn is not counted against that same namespace."""
    state = host_state(node(replace(HOST, ephemeral_storage_bytes=10 * GIB)))
    add_namespace(state, "team")
    add_claim(state, "team", ask(storage=10 * GIB, slots=10))
    facts = replace(FACTS, storage_free_bytes=10 * GIB, storage_written_bytes=0)
    assert isinstance(decide(state, ask(storage=10 * GIB), "team", facts), Admitted)
    assert ("node-storage-free", "ephemeral_storage_bytes", GIB) in shorts(
        decide(state, ask(storage=GIB), facts=facts)
    )


@pytest.mark.parametrize(
    ("free", "written", "reserve_bytes", "fits"),
    [
        (30, 0, 0, True),
        (29, 0, 0, False),
        (29, 1, 0, True),
        (30, 0, 1, False),
        (15, 15, 0, True),
        (10, 25, 0, True),
        (9, 25, 0, False),
        (0, 0, 5, False),
    ],
)
def test_storage_is_compared_with_the_real_file_system(
    free: int, written: int, reserve_bytes: int, *, fits: bool
) -> None:
    state = host_state()
    reserve(state, proposal("r", ask(storage=20)))
    facts = replace(
        FACTS,
        storage_free_bytes=free,
        storage_written_bytes=written,
        storage_reserve_bytes=reserve_bytes,
    )
    decision = decide(state, ask(storage=10), facts=facts)
    if fits:
        assert isinstance(decision, Admitted)
        return
    assert [s.gate for s in refusal(decision).shortfalls] == ["node-storage-free"]
    assert refusal(decision).shortfalls[0].limit >= 0
    assert refusal(decision).code == "node_ephemeral_storage_capacity_exhausted"


def test_memory_is_compared_with_what_is_really_used() -> None:
    facts = replace(FACTS, sandboxes_memory_bytes=15 * GIB)
    assert isinstance(decide(host_state(), ask(memory=GIB), facts=facts), Admitted)
    decision = decide(host_state(), ask(memory=GIB + 1), facts=facts)
    assert shorts(decision) == [("node-memory-use", "memory_bytes", 1)]
    assert refusal(decision).code == "node_memory_capacity_exhausted"
    assert refusal(decision).retryable


def test_an_unobserved_or_stale_host_refuses() -> None:
    for decision in (decide(host_state(), ask(), facts=None), decide(genesis(NOW), ask())):
        assert refusal(decision).code == "node_selection_error"
        assert refusal(decision).message == "the host has not been observed yet"
    old = replace(FACTS, observed_monotonic_ms=NOW.monotonic_ms - 15_000)
    assert isinstance(decide(host_state(), ask(), facts=old), Admitted)
    older = replace(FACTS, observed_monotonic_ms=NOW.monotonic_ms - 15_001)
    assert refusal(decide(host_state(), ask(), facts=older)).reasons == (
        "the last observation of the host is 15 s old",
    )


def test_what_the_host_lacks_is_listed_without_a_capacity_word() -> None:
    decision = refusal(decide(host_state(), ask(gpu=1), requires=("runtime/nope", "x")))
    assert decision.code == "node_selection_error"
    assert decision.diagnostic_code == "node-selection-error"
    assert decision.reasons == (
        "capability runtime/nope is absent",
        "capability x is absent",
        "capability gpu is absent",
    )
    words = f"{decision.summary} {decision.message} {decision.hint}".lower()
    assert not any(word in words for word in ("capacity", "exhausted", "quota", "insufficient"))


def test_reasons_and_shortfalls_come_together() -> None:
    decision = refusal(decide(host_state(), ask(cpu=5000), requires=("nope",)))
    assert decision.reasons
    assert decision.shortfalls
    assert decision.code == "node_selection_error"


def test_the_fullest_device_that_fits_is_picked() -> None:
    state = host_state(node(gpus=(("a", 10), ("b", 8), ("c", 20))))
    assert decide(state, ask(gpu=8)) == Admitted(1, 7, "b")
    assert decide(state, ask(gpu=9)) == Admitted(1, 7, "a")
    assert decide(state, ask(gpu=11)) == Admitted(1, 7, "c")
    assert refusal(decide(state, ask(gpu=21))).code == "request_exceeds_node"


def test_a_busy_large_device_is_waited_for() -> None:
    state = host_state(node(gpus=(("large", 20), ("small", 10))))
    reserve(state, proposal("r", ask(gpu=20)))
    decision = refusal(decide(state, ask(gpu=15)))
    assert decision.code == "node_gpu_memory_capacity_exhausted"
    assert decision.shortfalls == (Shortfall("node", "gpu_memory_bytes", 15, 20, 20, 0, 15),)


def test_a_gpu_quota_counts_devices_that_are_gone() -> None:
    state = host_state(node(gpus=(("a", 10), ("b", 10))))
    add_namespace(state, "team", OptionalResources(gpu_memory_bytes=10))
    used = reserve(state, proposal("r", ask(gpu=8), namespace="team")).gpu_device
    rest = tuple(device for device in (("a", 10), ("b", 10)) if device[0] != used)
    do(state, transitions.observe_node(state, node(gpus=rest)))
    assert shorts(decide(state, ask(gpu=3), "team")) == [("namespace-quota", "gpu_memory_bytes", 1)]


def test_capacity_that_went_away_leaves_nothing_available() -> None:
    state = host_state()
    reserve(state, proposal("r", ask(cpu=4000)))
    do(state, transitions.observe_node(state, node(replace(HOST, cpu_milli=1000))))
    assert refusal(decide(state, ask(cpu=10))).shortfalls == (
        Shortfall("node", "cpu_milli", 10, 4000, 1000, 0, 10),
    )


@pytest.mark.parametrize(
    ("ttls_s", "expected"),
    [((), 10), ((30,), 30), ((30.001,), 31), ((500, 20), 20), ((500,), 60), ((0,), 1)],
)
def test_retry_after_is_the_next_known_release(ttls_s: tuple[float, ...], expected: int) -> None:
    state = cpu_host(1000, "1", 1000)
    for number, ttl_s in enumerate(ttls_s):
        reserve(state, proposal(f"r{number}", ask(), ttl_ms=round(ttl_s * 1000)))
    assert refusal(decide(state, ask(cpu=1))).retry_after_s == expected


def test_an_unknown_namespace_is_not_found() -> None:
    with pytest.raises(NotFound, match="nobody"):
        decide(host_state(), ask(), "nobody")


def test_no_request_of_a_dimension_is_no_demand_on_it() -> None:
    state = host_state(node(Resources(0, 0, 0, 0, 1)))
    facts = replace(FACTS, storage_free_bytes=0, sandboxes_memory_bytes=2**40)
    assert isinstance(decide(state, ask(), facts=facts), Admitted)


def test_every_code_of_admission_is_public() -> None:
    codes = set(refusals.SUMMARIES) | {"request_exceeds_node", "node_selection_error"}
    assert codes <= set(CODES)
    assert set(refusals.NODE_CODES.values()) <= set(refusals.SUMMARIES)


def test_the_five_summaries_of_the_source_are_kept() -> None:
    kept = {
        "namespace quota exceeded",
        "node CPU capacity exhausted",
        "node memory capacity exhausted",
        "node CPU and memory capacity exhausted",
        "node reservation capacity exhausted",
    }
    assert kept <= set(refusals.SUMMARIES.values())


def test_the_answer_names_what_it_was_decided_on() -> None:
    state = host_state()
    state.generation = 4711
    decision = refusal(decide(state, ask(cpu=5000)))
    assert (decision.generation, decision.facts_sequence) == (4711, 7)
    assert decision.message == (
        "node CPU capacity exhausted: node CPU: requested 5, committed 0 of 4, short by 1"
    )


def test_a_refusal_in_bytes_can_be_read() -> None:
    state = host_state(node(replace(HOST, memory_bytes=24_012_688_589)))
    decision = refusal(decide(state, ask(memory=100 * 1024 * GIB + 1)))
    assert decision.shortfalls[0].limit == 24_012_688_589
    assert decision.message.endswith(
        "node memory: requested 100.01TiB, committed 0B of 22.36GiB, short by 99.98TiB"
    )


def test_a_lane_in_quarantine_is_room_for_nobody() -> None:
    """All lanes are slots of this node, and all but two of them are in quarantine."""
    state = host_state(node(replace(HOST, sandbox_slots=SANDBOX_LANES)))
    facts = replace(FACTS, quarantined_lanes=tuple(range(SANDBOX_LANES - 2)))
    for number in range(2):
        reserve(state, proposal(f"r{number}", ask()), facts=facts)
    decision = refusal(decide(state, ask(), facts=facts))
    assert decision.shortfalls == (Shortfall("node", "sandbox_slots", 1, 2, 2, 0, 1),)
    wanted = ClaimProposal("c", "default", {"sandbox_slots": 3})
    with pytest.raises(AdmissionRefused) as refused:
        claims.create(state, wanted, claims.Host(facts, NOW, POLICY), "uid:0")
    assert refused.value.refusal.shortfalls == (Shortfall("node", "sandbox_slots", 1, 2, 2, 0, 1),)
