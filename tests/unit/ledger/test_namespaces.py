"""Namespaces: made, deleted when nothing is left in them; quotas that change what they name."""

from __future__ import annotations

import pytest

from ledger import invariants, namespaces
from ledger.claims import ClaimProposal, Host
from ledger.claims import create as create_claim
from ledger.errors import AdmissionRefused, InvalidArgument, NotFound, StateConflict
from ledger.resources import OptionalResources
from ledger.state import State
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    NOW,
    POLICY,
    ask,
    do,
    host_state,
    proposal,
    reserve,
    rows_of,
)

ADMIN = "uid:0"


@pytest.fixture
def state() -> State:
    found = host_state()
    do(found, namespaces.create(found, "team", NOW, ADMIN))
    return found


def test_making_it_again_changes_nothing(state: State) -> None:
    again = namespaces.create(state, "team", NOW, ADMIN)
    assert (again.puts, again.result) == ((), state.namespace("team"))


def test_what_is_left_in_it_keeps_it_and_is_named(state: State) -> None:
    for number in range(5):
        reserve(state, proposal(f"r{number}", ask(cpu=1), namespace="team"))
    asked = ClaimProposal("c1", "team", {"cpu_milli": 1000})
    do(state, create_claim(state, asked, Host(FACTS, NOW, POLICY), ADMIN))
    with pytest.raises(StateConflict) as refused:
        namespaces.delete(state, "team", ADMIN)
    assert refused.value.message == (
        "namespace team still has 5 reservations (r0, r1, r2, 2 more); 1 claim (c1)"
    )


def test_it_goes_with_its_quota_and_bounds(state: State) -> None:
    do(state, namespaces.set_quota(state, "team", {"cpu_milli": 5}, ADMIN))
    do(state, namespaces.update(state, "team", {"maximum": {"cpu_milli": 5}}, ADMIN))
    do(state, namespaces.delete(state, "team", ADMIN))
    with pytest.raises(NotFound, match="'team'"):
        namespaces.delete(state, "team", ADMIN)
    do(state, namespaces.create(state, "team", NOW, ADMIN))
    assert state.namespace("team").quota == OptionalResources()
    assert state.limit_range("team") is None
    assert invariants.check(rows_of(state), state.balances()) == []


def test_default_always_exists(state: State) -> None:
    with pytest.raises(StateConflict, match="always exists"):
        namespaces.delete(state, "default", ADMIN)


def test_a_quota_changes_only_what_it_names(state: State) -> None:
    do(state, namespaces.set_quota(state, "team", {"memory_bytes": GIB}, ADMIN))
    do(state, namespaces.set_quota(state, "team", {"cpu_milli": 4000}, ADMIN))
    assert state.namespace("team").quota == OptionalResources(4000, GIB)
    do(state, namespaces.set_quota(state, "team", {"memory_bytes": None}, ADMIN))
    assert state.namespace("team").quota == OptionalResources(4000)
    assert namespaces.set_quota(state, "team", {"cpu_milli": 4000}, ADMIN).puts == ()
    do(state, namespaces.unset_quota(state, "team", ADMIN))
    assert state.namespace("team").quota == OptionalResources()
    assert namespaces.unset_quota(state, "team", ADMIN).puts == ()
    with pytest.raises(NotFound):
        namespaces.set_quota(state, "nowhere", {}, ADMIN)


def test_lowering_it_below_what_is_held_stops_nobody(state: State) -> None:
    reserve(state, proposal("r", ask(cpu=3000), namespace="team"))
    do(state, namespaces.set_quota(state, "team", {"cpu_milli": 2000}, ADMIN))
    assert state.reservation("r").phase == "reserved"
    with pytest.raises(AdmissionRefused) as refused:
        reserve(state, proposal("s", ask(cpu=1), namespace="team"))
    assert refused.value.code == "namespace_quota_exceeded"
    (short,) = refused.value.refusal.shortfalls
    assert (short.committed, short.limit, short.available) == (3000, 2000, 0)


def test_the_number_of_sandboxes_has_a_ceiling_too(state: State) -> None:
    do(state, namespaces.set_quota(state, "team", {"sandbox_slots": 1}, ADMIN))
    reserve(state, proposal("r", ask(cpu=1), namespace="team"))
    with pytest.raises(AdmissionRefused, match=r"namespace quota exceeded: .*sandbox slots"):
        reserve(state, proposal("s", ask(cpu=1), namespace="team"))


def test_bounds_that_bound_nothing_leave_no_row(state: State) -> None:
    edits = {"minimum": {"cpu_milli": 5}}
    do(state, namespaces.update(state, "team", edits, ADMIN))
    assert state.limit_range("team") is not None
    assert namespaces.update(state, "team", edits, ADMIN).puts == ()
    do(state, namespaces.update(state, "team", {"minimum": {"cpu_milli": None}}, ADMIN))
    assert state.limit_range("team") is None
    with pytest.raises(NotFound):
        namespaces.update(state, "nowhere", edits, ADMIN)
    with pytest.raises(InvalidArgument):
        namespaces.update(state, "team", {"ratios": {"cpu_milli": "0.5"}}, ADMIN)
