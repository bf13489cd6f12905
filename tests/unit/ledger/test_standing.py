"""A node that drains takes nothing new, says why, and is retired only when nothing is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger import invariants, standing, transitions
from ledger.errors import (
    AdmissionRefused,
    InvalidArgument,
    NodeRetired,
    PermissionDenied,
    StateConflict,
)
from ledger.resources import Resources
from ledger.rights import ROOT, by_default
from ledger.standing import Wish
from ledger.state import State
from ledger.tables import NODE_KEY, RESERVATIONS, STANDINGS, Standing
from tests.unit.ledger.samples import (
    NOW,
    add_claim,
    add_ticket,
    ask,
    do,
    host_state,
    later,
    proposal,
    reserve,
    rows_of,
)

WISH = Wish(ROOT, "new disks")


@pytest.fixture
def state() -> State:
    return host_state()


def _refusal(state: State) -> AdmissionRefused:
    with pytest.raises(AdmissionRefused) as refused:
        reserve(state, proposal("r2", ask(cpu=100)))
    return refused.value


def test_draining_refuses_what_is_new_and_says_why(state: State) -> None:
    kept = reserve(state, proposal("r1", ask(cpu=100)))
    do(state, standing.drain(state, WISH, NOW))
    refused = _refusal(state)
    assert (refused.code, refused.refusal.retryable) == ("node_selection_error", False)
    assert refused.message == "this node is draining: new disks"
    assert refused.hint is not None
    assert state.reservation("r1") == kept
    do(state, transitions.start(state, "r1"))
    assert invariants.check(rows_of(state), state.balances()) == []


def test_a_reason_stands_beside_what_else_is_wrong(state: State) -> None:
    do(state, standing.drain(state, WISH, NOW))
    with pytest.raises(AdmissionRefused) as refused:
        reserve(state, proposal("r2", ask(cpu=100), requires=("magic",)))
    assert refused.value.refusal.reasons == (
        "this node is draining: new disks",
        "capability magic is absent",
    )


def test_a_granted_request_is_found_again_while_the_node_drains(state: State) -> None:
    first = reserve(state, proposal("r1", ask(cpu=100), request_id="q"))
    do(state, standing.drain(state, WISH, NOW))
    assert reserve(state, proposal("r9", ask(cpu=100), request_id="q")) == first


def test_draining_again_changes_the_reason_and_not_since_when(state: State) -> None:
    do(state, standing.drain(state, WISH, NOW))
    assert standing.drain(state, WISH, later(NOW, 9)).puts == ()
    do(state, standing.drain(state, Wish(ROOT, "new kernel"), later(NOW, 9)))
    assert state.standing() == Standing("draining", "new kernel", "uid:0", NOW.wall_ms)


def test_an_undrained_node_takes_new_work(state: State) -> None:
    assert standing.undrain(state, ROOT).puts == ()
    do(state, standing.drain(state, WISH, NOW))
    do(state, standing.undrain(state, ROOT))
    assert state.standing() is None
    reserve(state, proposal("r1", ask(cpu=100)))


def test_only_an_empty_node_is_retired(state: State) -> None:
    reserve(state, proposal("r1", ask(cpu=100)))
    with pytest.raises(StateConflict, match="still has 1 reservations"):
        standing.retire(state, WISH, NOW)
    do(state, transitions.stop(state, "r1", "asked", "uid:0"))
    do(state, transitions.retire(state, "r1", "over"))
    with pytest.raises(StateConflict, match="still has 1 reservations"):
        standing.retire(state, WISH, NOW)
    do(state, transitions.release(state, "r1", "gone"))
    do(state, standing.retire(state, WISH, NOW))
    assert state.standing() == Standing("retired", "new disks", "uid:0", NOW.wall_ms)


def test_a_claim_or_a_ticket_is_something_left(state: State) -> None:
    add_ticket(state, ask(cpu=1))
    add_claim(state, "default", Resources(cpu_milli=5))
    with pytest.raises(StateConflict, match="1 tickets, 1 claims"):
        standing.retire(state, WISH, NOW)


def test_a_retired_node_never_comes_back(state: State) -> None:
    do(state, standing.retire(state, WISH, NOW))
    assert standing.retire(state, Wish(ROOT, "again"), NOW).puts == ()
    assert _refusal(state).message == "this node is retired: new disks"
    with pytest.raises(StateConflict, match="was retired at"):
        standing.drain(state, WISH, NOW)
    with pytest.raises(StateConflict, match="was retired at"):
        standing.undrain(state, ROOT)
    with pytest.raises(NodeRetired, match=r"node n was retired at .*: new disks"):
        standing.require_in_service(state, "n")


def test_any_other_node_is_in_service(state: State) -> None:
    standing.require_in_service(state, "n")
    do(state, standing.drain(state, WISH, NOW))
    standing.require_in_service(state, "n")


def test_only_root_may_and_only_with_a_reason(state: State) -> None:
    with pytest.raises(PermissionDenied):
        Wish(by_default(1000), "new disks")
    with pytest.raises(PermissionDenied):
        standing.undrain(state, by_default(1000))
    for reason in ("", " ", "two\nlines", "x" * 257):
        with pytest.raises(InvalidArgument, match="reason"):
            Wish(ROOT, reason)


def test_the_checker_knows_what_a_standing_may_be(state: State) -> None:
    row = Standing("retired", "new disks", "uid:0", 0)
    entry = reserve(state, proposal("r1", ask(cpu=100)))
    for key, planted, code in (
        (NODE_KEY, row, "retired-with-entries"),
        (NODE_KEY, replace(row, state="asleep"), "unknown-standing"),
        (NODE_KEY, replace(row, state="draining", reason=""), "unknown-standing"),
        ("other", replace(row, state="draining"), "wrong-key"),
    ):
        rows = rows_of(state) | {STANDINGS: {key: planted}, RESERVATIONS: {"r1": entry}}
        assert [found.code for found in invariants.check(rows, state.balances())] == [code]
