"""Leases within leases: what they draw, what they leave, and who ends with whom."""

from __future__ import annotations

import dataclasses
from typing import cast

import pytest

from ledger import invariants, occurrences, tables, transitions
from ledger.admission import AdmissionPolicy
from ledger.errors import AdmissionRefused, NotFound, PermissionDenied, StateConflict
from ledger.exposure import Exposure
from ledger.nesting import rest_of, within
from ledger.postings import change
from ledger.reservation import RUN, Owner
from ledger.resources import Resources
from ledger.state import HEADROOM, Put, State, committed_account, genesis
from ledger.tables import Namespace
from ledger.testing import GIB, ManualClock, small_facts, small_node, small_proposal
from ledger.transitions import Proposal

COMMITTED = committed_account("default")


def lease(key: str, cpu_milli: int, memory_bytes: int = GIB, **fields: object) -> Proposal:
    bare = small_proposal(1)
    resolved = dataclasses.replace(bare.resolved, requests=Resources(cpu_milli, memory_bytes))
    plain = dataclasses.replace(bare, id=key, request_id=None, resolved=resolved)
    return dataclasses.replace(plain, **fields)  # type: ignore[arg-type]  # names of fields


class Scene:
    """A state with a node, on which everything that is done keeps the invariants."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = genesis(self.clock.now)
        self.apply(transitions.observe_node(self.state, small_node()))

    def apply(self, change: object) -> None:
        self.state.apply(change)  # type: ignore[arg-type]
        assert invariants.check(self.state.all_rows(), self.state.balances()) == []

    def reserve(self, proposal: Proposal, policy: AdmissionPolicy | None = None) -> None:
        now = self.clock.now
        facts = small_facts(now)
        policy = policy or AdmissionPolicy()
        self.apply(transitions.reserve(self.state, proposal, facts, now, policy))

    def release(self, key: str) -> None:
        self.apply(transitions.release(self.state, key, "released"))


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.reserve(lease("outer", 1000, 2 * GIB))
    return made


def held(state: State) -> tuple[int, int]:
    return state.balance(COMMITTED, "cpu_milli"), state.balance(HEADROOM, "cpu_milli")


def test_what_is_drawn_from_a_lease_is_taken_from_nobody_else(scene: Scene) -> None:
    before = held(scene.state)
    scene.reserve(lease("inner", 600, parent_id="outer"))
    assert held(scene.state) == before
    assert scene.state.balance(COMMITTED, "memory_bytes") == 2 * GIB
    outer = scene.state.reservation("outer")
    assert rest_of(scene.state, outer) == Resources(400, GIB)
    scene.release("inner")
    assert (held(scene.state), rest_of(scene.state, outer)) == (before, outer.charged)


def test_the_sum_of_children_is_never_more_than_the_parent(scene: Scene) -> None:
    scene.reserve(lease("a", 600, parent_id="outer"))
    with pytest.raises(StateConflict) as caught:
        scene.reserve(lease("b", 500, 2 * GIB, parent_id="outer"))
    assert caught.value.message == (
        "too little is left of lease outer: CPU: 500m asked for, 400m left of 1; "
        "memory: 2GiB asked for, 1GiB left of 2GiB"
    )
    scene.reserve(lease("b", 400, parent_id="outer"))
    with pytest.raises(StateConflict):
        scene.reserve(lease("c", 1, 1, parent_id="outer"))


def test_a_full_node_refuses_nobody_what_it_holds_already(scene: Scene) -> None:
    rest = scene.state.balance(HEADROOM, "cpu_milli")
    scene.reserve(lease("other", rest))
    with pytest.raises(AdmissionRefused):
        scene.reserve(lease("more", 1))
    scene.reserve(lease("inner", 1000, parent_id="outer"))


def test_but_an_entry_is_one_and_a_drained_node_takes_none(scene: Scene) -> None:
    with pytest.raises(AdmissionRefused) as caught:
        scene.reserve(lease("inner", 1, parent_id="outer"), AdmissionPolicy(entry_cap=1))
    assert [short.dimension for short in caught.value.refusal.shortfalls] == ["entries"]
    row = tables.Standing("draining", "going down", "uid:0", 0)
    scene.state.apply(change(
        scene.state, "drain", (Put(tables.STANDINGS, "node", row),)
    ))  # fmt: skip
    with pytest.raises(AdmissionRefused, match="draining"):
        scene.reserve(lease("inner", 1, parent_id="outer"))


def test_what_is_within_a_lease_ends_with_it(scene: Scene) -> None:
    empty = held(scene.state)
    scene.reserve(lease("a", 600, parent_id="outer"))
    scene.reserve(lease("b", 300, parent_id="a"))
    scene.reserve(lease("c", 300, parent_id="b"))
    scene.apply(transitions.persist_beats(scene.state, {"b": 7, "outer": 8}))
    assert list(within(scene.state, "outer")) == ["c", "b", "a"]
    scene.release("b")
    assert {row.id for row in scene.state.reservations()} == {"outer", "a"}
    scene.reserve(lease("d", 300, parent_id="a"))
    assert held(scene.state) == empty
    scene.release("outer")
    assert list(scene.state.reservations()) == []
    assert not list(scene.state.rows(tables.NESTED))
    assert scene.state.balances().get((COMMITTED, "cpu_milli")) is None


def test_each_end_is_told_as_one(scene: Scene) -> None:
    scene.reserve(lease("a", 600, parent_id="outer"))
    scene.reserve(lease("b", 300, parent_id="a"))
    for key, ended in (("b", ["b"]), ("outer", ["outer", "a"])):
        done = transitions.release(scene.state, key, "lease expired")
        told = list(occurrences.of(7, 0, [done]))
        assert [each.id for each in told] == ended
        assert {each.kind for each in told} == {occurrences.RECLAIM}
        scene.apply(done)


def test_no_lease_outlives_its_parent() -> None:
    scene = Scene()
    scene.reserve(lease("outer", 1000, ttl_ms=1000, max_lifetime_ms=5000))
    scene.clock.advance(1000)
    scene.reserve(lease("inner", 1, 1, parent_id="outer", ttl_ms=9000, max_lifetime_ms=60_000))
    outer, inner = scene.state.reservation("outer"), scene.state.reservation("inner")
    assert inner.expires_limit_boottime_ms == outer.expires_limit_boottime_ms
    assert inner.expires_boottime_ms == outer.expires_limit_boottime_ms
    scene.apply(transitions.renew(scene.state, "inner", 60_000, scene.clock.now))
    assert scene.state.reservation("inner") == inner
    scene.reserve(lease("short", 1, 1, parent_id="outer", ttl_ms=10, max_lifetime_ms=20))
    found = scene.state.reservation("short")
    assert found.expires_limit_boottime_ms == scene.clock.now.boottime_ms + 20


def test_a_parent_is_a_lease_of_ones_own_in_the_same_namespace(scene: Scene) -> None:
    with pytest.raises(NotFound):
        scene.reserve(lease("inner", 1, parent_id="nobody"))
    with pytest.raises(PermissionDenied):
        scene.reserve(lease("inner", 1, parent_id="outer", owner=Owner("external", 7)))
    scene.reserve(lease("roots", 1, parent_id="outer", owner=Owner("external", 0)))
    team = Namespace("team", created_wall_ms=0)
    scene.state.apply(change(
        scene.state, "namespace-create", (Put(tables.NAMESPACES, "team", team),)
    ))  # fmt: skip
    with pytest.raises(StateConflict, match="in namespace default"):
        scene.reserve(lease("inner", 1, parent_id="outer", namespace="team"))
    scene.reserve(lease("run", 1, owner=Owner(RUN, 1000), runtime="runc"))
    with pytest.raises(StateConflict, match="is a sandbox"):
        scene.reserve(lease("inner", 1, parent_id="run"))
    with pytest.raises(StateConflict):
        scene.reserve(lease("inner", 1, parent_id="outer", owner=Owner(RUN, 1000), runtime="runc"))


def test_exposure_counts_the_outermost_alone(scene: Scene) -> None:
    exposure = scene.state.exposure()
    before = exposure.limits["cpu_milli"]
    scene.reserve(lease("inner", 600, parent_id="outer"))
    assert scene.state.exposure().limits["cpu_milli"] == before
    assert Exposure(scene.state.outermost()).limits["cpu_milli"] == before
    scene.release("outer")
    assert scene.state.exposure().limits["cpu_milli"] == before - 1000


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"parent_id": "nobody"}, "nested-alone"),
        ({"namespace": "else"}, "nested-namespace"),
        ({"amount": Resources(1)}, "nested-differs"),
        ({"amount": Resources(1001, GIB)}, "parent-overdrawn"),
    ],
)
def test_control_the_checker_sees_what_is_wrong(
    scene: Scene, fields: dict[str, object], violation: str
) -> None:
    scene.reserve(lease("inner", 600, parent_id="outer"))
    rows = {table: dict(content) for table, content in scene.state.all_rows().items()}
    place = cast("tables.Nested", scene.state.row(tables.NESTED, "inner"))
    rows[tables.NESTED]["inner"] = dataclasses.replace(place, **fields)  # type: ignore[arg-type]
    found = {each.code for each in invariants.check(rows, scene.state.balances())}
    assert violation in found
