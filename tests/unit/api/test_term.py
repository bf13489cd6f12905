"""When a holder beats, renews and leaves: never after the ledger has ended the lease."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api.term import BEAT_S, GRACE_S, Term

TTLS_MS = st.integers(30, 10**9)


def test_ten_minutes() -> None:
    term = Term(100.0, 600_000)
    assert (term.next_beat_s, term.deadline_s, term.last_call_s) == (130.0, 700.0, 690.0)
    assert not term.wants_renewal(130.0)
    assert term.wants_renewal(400.0)
    term.answered(400.0, 600_000)
    assert (term.next_beat_s, term.deadline_s) == (430.0, 1000.0)


def test_a_short_lease_is_heard_from_more_often_and_left_later() -> None:
    term = Term(0.0, 3_000)
    assert term.next_beat_s == 1.0
    assert term.last_call_s == pytest.approx(2.7)
    assert term.wants_renewal(term.next_beat_s)


def test_nobody_answers() -> None:
    term = Term(0.0, 600_000)
    term.unanswered(35.0)
    assert (term.next_beat_s, term.deadline_s) == (37.0, 600.0)


@given(TTLS_MS, st.floats(0, 10), st.integers(0, 20))
def test_a_holder_that_is_answered_never_misses_its_deadline(
    ttl_ms: int, begun_s: float, beats: int
) -> None:
    term = Term(begun_s, ttl_ms)
    ends_s = begun_s + ttl_ms / 1000  # as the ledger has it, at the earliest
    for _ in range(beats):
        now_s = term.next_beat_s
        assert now_s < term.last_call_s < term.deadline_s <= ends_s
        assert term.deadline_s - term.last_call_s <= GRACE_S
        assert now_s - begun_s <= BEAT_S + 1e-6
        begun_s = now_s
        if term.wants_renewal(now_s):
            ends_s = now_s + ttl_ms / 1000
        term.answered(now_s, int((ends_s - now_s) * 1000))


@given(TTLS_MS, st.integers(0, 10**9))
def test_no_renewal_goes_beyond_the_lifetime(ttl_ms: int, lifetime_ms: int) -> None:
    """Whatever the daemon answers is believed, as when a lifetime cuts a renewal short."""
    term = Term(0.0, ttl_ms)
    left_ms = min(ttl_ms, max(0, lifetime_ms - ttl_ms // 3))
    term.answered(ttl_ms / 3000, left_ms)
    assert term.deadline_s == pytest.approx(ttl_ms / 3000 + left_ms / 1000)
