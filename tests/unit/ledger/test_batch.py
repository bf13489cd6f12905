"""Operations of a batch, each such that a retry of it changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger import batch, transitions
from ledger.batch import Retried
from ledger.errors import NotFound, PermissionDenied, RequestIdConflict
from ledger.release import Asked
from ledger.reservation import EXTERNAL, Reservation
from ledger.rights import ROOT, Caller, by_default
from ledger.state import State
from tests.unit.ledger.samples import (
    FACTS,
    NOW,
    POLICY,
    ask,
    do,
    host_state,
    later,
    proposal,
    reserve,
)

USER = by_default(1000)
OWNER = Asked(USER)


@pytest.fixture
def state() -> State:
    return host_state()


def lease(state: State, token: str | None) -> Reservation:
    wanted = proposal("r1", ask(cpu=10), kind=EXTERNAL, request_id="q", ttl_ms=1_000)
    made = batch.reserve_lease(state, replace(wanted, token_sha256=token), FACTS, NOW, POLICY)
    row = do(state, made)
    assert isinstance(row, Reservation)
    return row


def release(state: State, request_id: str | None, digest: str = "d") -> object:
    return do(
        state,
        batch.release_once(state, "r1", OWNER, NOW, request_id=request_id, digest=digest),
    )


def test_a_retry_gets_the_same_lease_and_its_own_token_stands_for_it(state: State) -> None:
    assert lease(state, "t1").id == lease(state, "t2").id == "r1"
    assert state.entry_count() == 1
    lease(state, None)
    with pytest.raises(PermissionDenied):
        batch.renew_lease(state, "r1", "t1", None, NOW, USER)
    batch.renew_lease(state, "r1", "t2", None, NOW, USER)


def test_only_its_own_token_renews_a_lease(state: State) -> None:
    lease(state, "t1")
    now = later(NOW, 0.5)
    with pytest.raises(PermissionDenied, match="does not belong"):
        batch.renew_lease(state, "r1", "t2", 5_000, now, ROOT)
    with pytest.raises(PermissionDenied, match="the right reserve"):
        batch.renew_lease(state, "r1", "t1", 5_000, now, Caller(1000, frozenset({"read"})))
    assert batch.renew_lease(state, "r1", "t1", None, now, USER).puts == ()
    do(state, batch.renew_lease(state, "r1", "t1", 5_000, now, USER))
    assert state.reservation("r1").expires_boottime_ms == now.boottime_ms + 5_000


def test_a_release_under_a_request_id_is_done_once(state: State) -> None:
    lease(state, None)
    assert isinstance(release(state, "end"), Reservation)
    assert state.entry_count() == 0
    assert release(state, "end") == Retried("r1")
    with pytest.raises(RequestIdConflict):
        release(state, "end", digest="other")


def test_a_release_without_a_request_id_is_not_remembered(state: State) -> None:
    lease(state, None)
    release(state, None)
    with pytest.raises(NotFound):
        release(state, None)


def test_a_release_that_is_refused_leaves_its_request_id_unused(state: State) -> None:
    reserve(state, proposal("r1", ask(cpu=10), kind=EXTERNAL, uid=1001))
    with pytest.raises(PermissionDenied):
        release(state, "end")
    assert transitions.granted_id(state, 1000, "end", "d") is None
