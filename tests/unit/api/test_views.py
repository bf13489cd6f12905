"""Each JSON object has every key of the contract, null where something is not known."""

from __future__ import annotations

import dataclasses
import json

import pytest

from axern.api.views import node_view, refusal_view, reservation_view, resources_view
from ledger import transitions
from ledger.admission import AdmissionPolicy, Demand, evaluate
from ledger.capacity import node_of
from ledger.refusal import Refusal
from ledger.reservation import CgroupIdentity, ProcessIdentity, Reservation
from ledger.resources import DIMENSIONS, OptionalResources, Resources
from ledger.state import State, genesis
from ledger.testing import GIB, ManualClock, small_facts, small_node, small_proposal
from ledger.transitions import Proposal

NAMES = [dimension.name for dimension in DIMENSIONS]
RESERVATION_KEYS = {
    "id", "namespace", "owner", "phase", "liveness", "runtime_class", "requests", "limits",
    "charged", "enforced", "gpu_device", "lane", "created_at", "expires_at", "last_heartbeat_at",
    "request_id", "reason", "latest_expiry_at", "parent_id",
}  # fmt: skip
AMOUNT_KEYS = {
    "capacity", "system_reserve", "allocatable", "effective_allocatable", "committed", "held",
    "claimed", "retiring", "headroom",
}  # fmt: skip
EXPOSURE_KEYS = {"exposure", "unlimited", "max_exposure"}
REFUSAL_KEYS = {
    "waitable", "explained", "holders", "would_fit_if", "earliest_fit_at",
    "code", "diagnostic_code", "admission_summary", "retryable", "retry_after_s", "generation",
    "facts_sequence", "message", "hint", "shortfalls", "reasons",
}  # fmt: skip
SHORTFALL_KEYS = {
    "gate", "dimension", "requested", "committed", "limit", "available", "short_by", "claim_id",
}  # fmt: skip


def reserved(clock: ManualClock, proposal: Proposal) -> tuple[State, Reservation]:
    state = genesis(clock.now)
    state.apply(transitions.observe_node(state, small_node()))
    change = transitions.reserve(
        state, proposal, small_facts(clock.now), clock.now, AdmissionPolicy()
    )
    state.apply(change)
    return state, state.reservation(proposal.id)


def test_a_reservation_of_which_little_is_known() -> None:
    clock = ManualClock()
    bare = dataclasses.replace(small_proposal(1), request_id=None)
    _, row = reserved(clock, bare)
    view = reservation_view(row, "active", clock.now)
    assert set(view) == RESERVATION_KEYS
    unknown = {key for key, value in view.items() if value is None}
    assert unknown == {
        "runtime_class", "gpu_device", "lane", "expires_at", "last_heartbeat_at", "request_id",
        "reason", "latest_expiry_at", "parent_id",
    }  # fmt: skip
    for side in ("requests", "limits", "charged"):
        assert list(view[side]) == NAMES
    assert set(view["limits"].values()) == {None}
    assert view["owner"] == {"kind": "external", "uid": 1000, "name": "lease-1"}
    json.dumps(view, allow_nan=False)


def test_a_reservation_of_which_all_is_known() -> None:
    clock = ManualClock()
    proposal = dataclasses.replace(
        small_proposal(1, ttl_ms=60_000),
        runtime="runc",
        token_sha256="a" * 64,
        max_lifetime_ms=120_000,
        owner_process=ProcessIdentity("boot-1", 7, 8),
    )
    state, row = reserved(clock, proposal)
    state.apply(transitions.start(state, row.id))
    monitor, cgroup = ProcessIdentity("boot-1", 5, 6), CgroupIdentity("boot-1", "/x", 1)
    state.apply(transitions.run(state, row.id, monitor, cgroup))
    state.apply(transitions.stop(state, row.id, "expired", "daemon"))
    view = reservation_view(
        state.reservation(row.id), "active", clock.now, 990_000, parent_id="ab" * 16
    )
    assert set(view) == RESERVATION_KEYS
    assert {key for key, value in view.items() if value is None} == {"gpu_device"}
    assert view["created_at"] == "2023-11-14T22:13:20.000Z"
    assert view["expires_at"] == "2023-11-14T22:14:20.000Z"
    assert view["latest_expiry_at"] == "2023-11-14T22:15:20.000Z"
    assert view["last_heartbeat_at"] == "2023-11-14T22:13:10.000Z"
    text = json.dumps(view)
    assert "a" * 64 not in text
    assert "boot-1" not in text


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_deadlines_are_shown_on_the_wall_clock_of_now(jump_ms: int) -> None:
    clock = ManualClock()
    _, row = reserved(clock, small_proposal(1, ttl_ms=60_000))
    now = clock.jump_wall(jump_ms)
    shown = reservation_view(row, "active", now)["expires_at"]
    hour = "23" if jump_ms > 0 else "21"
    assert shown == f"2023-11-14T{hour}:14:20.000Z"


def test_a_node_before_its_first_observation() -> None:
    view = node_view(genesis(ManualClock().now))
    assert view == {
        "generation": 0,
        "boot_id": "boot-1",
        "entries": 0,
        "standing": {"state": "open", "reason": None, "by": None, "since": None},
        "cpu_overcommit_ratio": None,
        "dimensions": [],
    }


def test_a_node_and_who_holds_it() -> None:
    clock = ManualClock()
    state, row = reserved(clock, small_proposal(1, cpu_milli=300))
    view = node_view(state)
    assert [dimension["name"] for dimension in view["dimensions"]] == NAMES
    for dimension in view["dimensions"]:
        assert set(dimension) == AMOUNT_KEYS | EXPOSURE_KEYS | {"name", "label", "devices"}
        assert dimension["devices"] == []
        amounts = [dimension[key] for key in ("committed", "held", "claimed", "retiring")]
        assert sum(amounts) + dimension["headroom"] == dimension["effective_allocatable"]
    cpu = view["dimensions"][0]
    assert (cpu["committed"], cpu["retiring"], cpu["headroom"]) == (300, 0, 3_700)
    state.apply(transitions.retire(state, row.id, "done"))
    cpu = node_view(state)["dimensions"][0]
    assert (cpu["committed"], cpu["retiring"], cpu["headroom"]) == (0, 300, 3_700)
    json.dumps(view, allow_nan=False)


def test_a_node_tells_what_all_may_use_and_the_bound_on_it() -> None:
    state, _ = reserved(ManualClock(), small_proposal(1, cpu_milli=300))
    view = node_view(state, (("cpu_milli", 5, 2),))
    shown = {
        dimension["name"]: tuple(dimension[key] for key in sorted(EXPOSURE_KEYS))
        for dimension in view["dimensions"]
    }
    assert shown["cpu_milli"] == (300, 10_000, 0)  # a lease counts with its request
    assert shown["memory_bytes"] == (GIB // 16, None, 0)
    assert shown["sandbox_slots"] == shown["gpu_memory_bytes"] == (None, None, None)


def test_each_device_is_a_pool_of_its_own() -> None:
    clock = ManualClock()
    state = genesis(clock.now)
    capacity = Resources(4_000, 8 * GIB, 8 * GIB, 0, 10)
    node = dataclasses.replace(
        node_of(capacity, Resources(), "1"),
        gpu_allocatable=(("gpu-a", 4 * GIB), ("gpu-b", 2 * GIB)),
    )
    state.apply(transitions.observe_node(state, node))
    gpu = next(d for d in node_view(state)["dimensions"] if d["name"] == "gpu_memory_bytes")
    assert [device["device"] for device in gpu["devices"]] == ["gpu-a", "gpu-b"]
    assert all(set(device) == AMOUNT_KEYS | {"device"} for device in gpu["devices"])
    assert (gpu["capacity"], gpu["headroom"]) == (6 * GIB, 6 * GIB)


def test_a_refusal_has_all_its_keys() -> None:
    clock = ManualClock()
    state, _ = reserved(clock, small_proposal(1, cpu_milli=4_000, ttl_ms=5_000))
    demand = Demand("default", Resources(cpu_milli=1, sandbox_slots=1))
    refusal = evaluate(state, small_facts(clock.now), demand, clock.now, AdmissionPolicy())
    assert isinstance(refusal, Refusal)
    view = refusal_view(refusal)
    assert set(view) == REFUSAL_KEYS
    assert view["retry_after_s"] == 5
    assert all(set(shortfall) == SHORTFALL_KEYS for shortfall in view["shortfalls"])
    absent = refusal_view(
        dataclasses.replace(refusal, shortfalls=(), retry_after_s=None, hint=None)
    )
    assert set(absent) == REFUSAL_KEYS
    assert (absent["retry_after_s"], absent["hint"], absent["shortfalls"]) == (None, None, [])


def test_what_was_left_out_is_null_and_zero_is_zero() -> None:
    view = resources_view(OptionalResources(cpu_milli=0))
    assert view == {**dict.fromkeys(NAMES), "cpu_milli": 0}
