"""Which granted requests are remembered: all of live entries, the newest of ended ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import request_ids, transitions
from ledger.errors import StateConflict
from ledger.request_ids import EndedRequests
from ledger.reservation import Reservation
from ledger.store import Ledger
from ledger.tables import REQUESTS
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.unit.ledger.samples import ask, host_state, proposal, reserve

MOST = 5


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setattr(EndedRequests.__init__, "__defaults__", (MOST, 100))
    with Ledger.open(tmp_path / "ledger", ManualClock()(), segment_bytes=16_384) as ledger:
        ledger.commit(observing(small_node(10**6)), ManualClock()())
        yield ledger


def keys(ledger: Ledger) -> list[str]:
    return [key for key, _ in ledger.state.rows(REQUESTS)]


def test_a_loop_of_reserve_and_release_is_bounded_and_live_entries_are_remembered(
    ledger: Ledger, tmp_path: Path
) -> None:
    clock = ManualClock()
    first = ledger.commit(reserving(small_proposal(1), clock()), clock())
    for number in range(2, 40):
        ledger.commit(reserving(small_proposal(number), clock()), clock())
        ledger.commit(releasing(number), clock())
        assert len(keys(ledger)) <= 1 + MOST
    newest = [f"1000:request-{number}" for number in range(35, 40)]
    assert keys(ledger) == ["1000:request-1", *newest]
    assert ledger.commit(reserving(small_proposal(1), clock()), clock()) == first
    with pytest.raises(StateConflict, match="has been released since"):
        ledger.commit(reserving(small_proposal(39), clock()), clock())
    again = ledger.commit(reserving(small_proposal(5), clock()), clock())
    assert isinstance(again, Reservation), "forgotten, so it is a new request"
    ledger.close()
    with Ledger.open(tmp_path / "ledger", clock(), segment_bytes=16_384) as reopened:
        reopened.commit(releasing(1), clock())
        assert keys(reopened) == ["1000:request-1", *newest[1:], "1000:request-5"]


def test_of_many_that_end_in_one_commit_the_newest_stay(ledger: Ledger) -> None:
    clock = ManualClock()
    now = clock()
    ledger.publish(batch := ledger.stage([], now))
    assert batch.line == b""
    batch = ledger.stage([reserving(small_proposal(n), now) for n in range(1, 13)], now)
    ledger.flush(batch)
    ledger.publish(batch)
    batch = ledger.stage([releasing(n) for n in range(1, 13)], now)
    ledger.flush(batch)
    ledger.publish(batch)
    assert keys(ledger) == [f"1000:request-{number}" for number in range(8, 13)]


def test_a_dropped_batch_forgets_nothing(ledger: Ledger) -> None:
    clock = ManualClock()
    now = clock()
    for number in range(1, 9):
        ledger.commit(reserving(small_proposal(number), now), now)
    for number in range(1, 8):
        before = keys(ledger)
        ledger.stage([releasing(number)], now)
        assert keys(ledger) == before
        ledger.commit(releasing(number), now)
    assert keys(ledger) == [f"1000:request-{number}" for number in (3, 4, 5, 6, 7, 8)]


def test_a_record_that_was_used_again_is_not_forgotten(ledger: Ledger) -> None:
    clock = ManualClock()
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    ledger.commit(releasing(1), clock())
    key = "1000:request-1"
    ledger.commit(lambda view: transitions.forget_requests(view, [key]), clock())  # by age
    again = ledger.commit(reserving(small_proposal(1), clock()), clock())
    for number in range(2, 10):
        ledger.commit(reserving(small_proposal(number), clock()), clock())
        ledger.commit(releasing(number), clock())
    assert key in keys(ledger)
    assert ledger.commit(reserving(small_proposal(1), clock()), clock()) == again


def test_what_is_only_being_stopped_has_not_ended() -> None:
    state = host_state()
    reserve(state, proposal("r1", ask(), request_id="q"))
    stopped = transitions.stop(state, "r1", "cancelled", "uid:1000")
    assert list(request_ids.ended_by(state, stopped)) == []
    released = transitions.release(state, "r1", "never started")
    assert list(request_ids.ended_by(state, released)) == ["1000:q"]


@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 999)), max_size=8)))
def test_no_user_has_more_than_a_share_and_all_together_no_more_than_the_sum(
    turns: list[list[tuple[int, int]]],
) -> None:
    """Against a list of all that ended, in order."""
    ended = EndedRequests(per_user=4, in_all=7)
    kept: list[str] = []
    for turn in turns:
        fresh = [f"{user}:{number}" for user, number in turn]
        drops = ended.over(fresh)
        ended.settle(fresh, drops)
        kept += fresh
        for user, count in drops.items():
            for _ in range(count):
                kept.remove(next(key for key in kept if key.startswith(f"{user}:")))
        sizes = [sum(key.startswith(f"{user}:") for key in kept) for user in range(4)]
        assert max(sizes) <= 4
        assert sum(sizes) <= 7
        assert sum(sizes) == ended._count
        assert min(drops.values(), default=1) > 0
        assert not drops or 4 in sizes or sum(sizes) == 7, "nothing is forgotten without need"
