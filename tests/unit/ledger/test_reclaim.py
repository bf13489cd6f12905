"""The plan looks, stops, ends leases and forgets; it never ends a sandbox's charge."""

import pytest

from ledger import transitions
from ledger.reclaim import (
    REQUEST_LIFETIME_MS,
    Action,
    EndLease,
    ForgetRequests,
    Look,
    Stop,
    plan,
)
from ledger.reservation import EXTERNAL, RUN, LivenessPolicy
from ledger.state import State
from tests.unit.ledger.samples import (
    CGROUP,
    MONITOR,
    NOW,
    ask,
    do,
    host_state,
    later,
    proposal,
    reserve,
)

POLICY = LivenessPolicy()


def planned(
    state: State, at_s: float, beats: dict[str, float] | None = None, grace_s: float = 0
) -> tuple[Action, ...]:
    return plan(
        state,
        {key: later(NOW, beat_s).monotonic_ms for key, beat_s in (beats or {}).items()},
        later(NOW, at_s),
        POLICY,
        later(NOW, grace_s).monotonic_ms if grace_s else 0,
    )


def one(kind: str, ttl_ms: int | None = None) -> State:
    state = host_state()
    reserve(state, proposal("r", ask(cpu=1), kind=kind, ttl_ms=ttl_ms))
    return state


@pytest.mark.parametrize(
    ("kind", "ttl_ms", "beat_s", "at_s", "grace_s", "actions"),
    [
        (RUN, None, 0, 119, 0, ()),
        (RUN, None, 0, 121, 0, (Look("r", "stale"),)),
        (RUN, None, 0, 121, 122, ()),
        (RUN, 10_000, 9, 10, 0, (Stop("r", "expired"),)),
        (RUN, 10_000, 9, 10, 60, (Stop("r", "expired"),)),
        (RUN, None, None, 2699, 0, ()),
        (RUN, None, None, 2700, 0, (Look("r", "expired"),)),
        (RUN, None, None, 2700, 2701, ()),
        (EXTERNAL, None, 0, 121, 0, (Look("r", "stale"),)),
        (EXTERNAL, 10_000, 9, 10, 0, (EndLease("r", "expired"),)),
        (EXTERNAL, 10_000, 9, 10, 60, (EndLease("r", "expired"),)),
        (EXTERNAL, None, None, 2700, 0, (EndLease("r", "expired"),)),
        (EXTERNAL, None, None, 2700, 2701, ()),
    ],
)
def test_what_to_do(
    kind: str,
    ttl_ms: int | None,
    beat_s: float | None,
    at_s: float,
    grace_s: float,
    actions: tuple[Action, ...],
) -> None:
    beats = {} if beat_s is None else {"r": beat_s}
    assert planned(one(kind, ttl_ms), at_s, beats, grace_s) == actions


def test_a_deadline_hurries_what_is_stopping_and_leaves_what_retires() -> None:
    state = one(RUN, ttl_ms=10_000)
    do(state, transitions.start(state, "r"))
    do(state, transitions.run(state, "r", MONITOR, CGROUP))
    do(state, transitions.stop(state, "r", "cancelled", "uid:1000"))
    assert planned(state, 11) == (Stop("r", "expired"),)
    do(state, transitions.retire(state, "r", "expired"))
    assert planned(state, 11) == ()


def test_old_request_records_are_forgotten() -> None:
    state = host_state()
    reserve(state, proposal("a", ask(cpu=1), request_id="old"))
    reserve(state, proposal("b", ask(cpu=1), request_id="new"), later(NOW, 1))
    day_s = REQUEST_LIFETIME_MS / 1000
    forget = [action for action in planned(state, day_s) if isinstance(action, ForgetRequests)]
    assert forget == [ForgetRequests(("1000:old",))]
    assert not any(isinstance(a, ForgetRequests) for a in planned(state, day_s - 1))


def test_the_order_is_that_of_the_entries() -> None:
    state = host_state()
    for key in ("c", "a", "b"):
        reserve(state, proposal(key, ask(cpu=1), ttl_ms=1000))
    assert [getattr(action, "reservation_id", "") for action in planned(state, 1)] == [
        "c",
        "a",
        "b",
    ]
