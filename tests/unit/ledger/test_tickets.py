"""Tickets one by one: who may wait, in which order, for how long, and what a grant makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ledger import queue, reclaim, tickets, transitions
from ledger.claims import Host
from ledger.clock import Now
from ledger.errors import (
    AdmissionRefused,
    InvalidArgument,
    QueueFull,
    RequestIdConflict,
    StateConflict,
)
from ledger.granting import Granting, Staged
from ledger.reclaim import EndTicket
from ledger.reservation import EXTERNAL, LivenessPolicy, Reservation
from ledger.resources import OptionalResources
from ledger.state import Change, State
from ledger.tables import Ticket
from ledger.tickets import QueuePolicy, Wish
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
    proposal,
    reserve,
)

HOST = Host(FACTS, NOW, POLICY)
TEN_MINUTES = Wish(600_000)
BOUNDS = QueuePolicy()


def full(cpu: int = 4000) -> State:
    """Return a host of which *cpu* of 4000 is taken by the entry `big`."""
    state = host_state()
    reserve(state, proposal("big", ask(cpu=cpu)))
    return state


def wait(
    state: State, key: str, cpu: int, wish: Wish = TEN_MINUTES, now: Now = NOW, **fields: object
) -> object:
    """Let somebody ask for *cpu*, and wait for it if need be; return what it became."""
    wanted = proposal(key, ask(cpu=cpu), **fields)  # type: ignore[arg-type]
    host = Host(replace(FACTS, observed_monotonic_ms=now.monotonic_ms), now, POLICY)
    return do(state, tickets.wait(state, wanted, wish, host, BOUNDS))


def names(state: State, seconds: float = 0) -> list[str]:
    """Return the ids of all who wait, in the order of the queue after so many *seconds*."""
    return [each.ticket.id for each in queue.order(state, later(NOW, seconds))]


def test_who_fits_does_not_wait() -> None:
    state = full(2000)
    assert isinstance(wait(state, "small", 500), Reservation)
    assert isinstance(wait(state, "large", 3000), Ticket)
    assert names(state) == ["large"]


def test_who_can_never_fit_does_not_wait() -> None:
    state = full()
    with pytest.raises(AdmissionRefused, match="node CPU capacity exhausted"):
        wait(state, "never", 5000)
    add_namespace(state, "team-a", OptionalResources(cpu_milli=100))
    with pytest.raises(AdmissionRefused, match="namespace quota exceeded"):
        wait(state, "over", 200, namespace="team-a")
    assert not state.waiting


def test_a_retry_finds_its_ticket_and_its_body_is_compared() -> None:
    state = full()
    first = wait(state, "one", 500, request_id="r")
    assert wait(state, "two", 500, request_id="r") == first
    with pytest.raises(RequestIdConflict):
        wait(state, "three", 500, request_id="r", digest="another")
    with pytest.raises(StateConflict, match="waits in the queue"):
        reserve(state, proposal("four", ask(cpu=1), request_id="r"))
    do(state, tickets.give_up(state, "one", "it went away", "uid:1000"))
    assert isinstance(wait(state, "five", 500, request_id="r", digest="another"), Ticket)


def test_priority_comes_first_and_each_five_minutes_are_worth_one() -> None:
    state = full()
    wait(state, "old", 500, Wish(600_000, 5))
    now = later(NOW, 240)
    wait(state, "urgent", 500, Wish(600_000, 6), now=now)
    assert names(state, 241) == ["urgent", "old"]
    assert names(state, 301) == ["old", "urgent"]  # as urgent by now, and it came first
    assert names(state, 541) == ["urgent", "old"]


def test_of_equals_the_namespace_that_has_least_comes_first() -> None:
    state = host_state()
    add_namespace(state, "team-a")
    add_namespace(state, "team-b")
    reserve(state, proposal("a", ask(cpu=3000), namespace="team-a"))
    reserve(state, proposal("b", ask(cpu=500, memory=GIB), namespace="team-b"))
    for key, space in (("a1", "team-a"), ("a2", "team-a"), ("b1", "team-b")):
        wait(state, key, 1000, namespace=space)
    assert names(state) == ["b1", "a1", "a2"]


def test_a_pause_ages_nobody() -> None:
    state = full()
    wait(state, "before", 500)
    do(state, tickets.pause(state, "uid:0", later(NOW, 100)))
    wait(state, "during", 500, now=later(NOW, 200))
    before, during = queue.get(state, "before"), queue.get(state, "during")
    pause = queue.pause_of(state)
    for seconds in (200, 5000):
        assert queue.age_ms(before.wait, pause, later(NOW, seconds)) == 100_000
        assert queue.age_ms(during.wait, pause, later(NOW, seconds)) == 0
    do(state, tickets.resume(state, "uid:0", later(NOW, 1000)))
    before, during = queue.get(state, "before"), queue.get(state, "during")
    assert queue.age_ms(before.wait, None, later(NOW, 1010)) == 110_000
    assert queue.age_ms(during.wait, None, later(NOW, 1010)) == 10_000
    assert not tickets.resume(state, "uid:0", NOW).puts


def test_depth_and_age_are_bounded() -> None:
    state = full()
    few = QueuePolicy(depth=2, namespace_depth=1, longest_ms=1000)
    wanted = proposal("one", ask(cpu=1))
    with pytest.raises(InvalidArgument, match="600000 is more than 1000"):
        tickets.wait(state, wanted, TEN_MINUTES, HOST, few)
    for priority in (-1, 10):
        with pytest.raises(InvalidArgument, match="priority"):
            Wish(1, priority)
    short = Wish(1000)
    do(state, tickets.wait(state, wanted, short, HOST, few))
    with pytest.raises(QueueFull, match="1 requests of namespace default wait"):
        tickets.wait(state, proposal("two", ask(cpu=1)), short, HOST, few)
    add_namespace(state, "team-a")
    add_namespace(state, "team-b")
    do(
        state,
        tickets.wait(state, proposal("three", ask(cpu=1), namespace="team-a"), short, HOST, few),
    )
    with pytest.raises(QueueFull, match="2 requests wait") as refused:
        tickets.wait(state, proposal("four", ask(cpu=1), namespace="team-b"), short, HOST, few)
    assert (refused.value.code, refused.value.retry_after_s) == ("busy", 10)


def test_a_ticket_ends_when_its_time_is_over() -> None:
    state = full()
    wait(state, "one", 500)
    assert not tickets.expire(state, "one", later(NOW, 599)).puts
    plan = reclaim.plan(state, {}, later(NOW, 600), LivenessPolicy())
    assert EndTicket("one") in plan
    assert do(state, tickets.expire(state, "one", later(NOW, 600))) is not None
    assert not state.waiting
    assert not tickets.give_up(state, "one", "late", "uid:0").puts


def granting(state: State, *made: Change) -> list[str]:
    """Apply each of *made*, and what the queue makes of it; return all operations by name."""
    known, told = Granting(), []

    def take(change: Change) -> None:
        do(state, change)
        told.append(change.operation)

    for change in made:
        take(change)
        known.after(Staged(state, HOST, take), change)
    return told


def test_a_grant_is_the_reservation_that_was_asked_for() -> None:
    state = full()
    wait(state, "lease", 500, kind=EXTERNAL, ttl_ms=60_000, request_id="r")
    assert granting(state, transitions.release(state, "big", "gone")) == ["release", "grant"]
    row = state.reservation("lease")
    wanted = proposal("lease", ask(cpu=500), kind=EXTERNAL, ttl_ms=60_000, request_id="r")
    assert replace(row, request_id="r") == reserve(host_state(), wanted)
    assert not state.waiting


def test_after_two_bypasses_what_comes_free_is_held() -> None:
    state = full(3000)
    wait(state, "head", 2000)
    for number, expected in enumerate((["reserve", "bypass"], ["reserve", "bypass"])):
        made = transitions.reserve(state, proposal(f"r{number}", ask(cpu=100)), FACTS, NOW, POLICY)
        assert granting(state, made) == expected
    head = queue.get(state, "head")
    assert head.is_next
    assert head.ticket.held.cpu_milli == 800
    with pytest.raises(AdmissionRefused, match="short by 100m"):
        reserve(state, proposal("late", ask(cpu=100)))
    reserve(state, proposal("other", ask(memory=GIB)))  # it takes nothing that the head lacks
    assert granting(state, transitions.release(state, "r0", "gone")) == ["release", "hold"]
    assert granting(state, transitions.release(state, "big", "gone")) == [
        *("release", "hold", "grant")
    ]


def test_who_is_kept_by_a_quota_is_passed_by_and_holds_nothing() -> None:
    state = full(3000)
    add_namespace(state, "team-a", OptionalResources(cpu_milli=500))
    reserve(state, proposal("a", ask(cpu=400), namespace="team-a"))
    wait(state, "kept", 200, namespace="team-a")
    for number in range(4):
        made = transitions.reserve(state, proposal(f"r{number}", ask(cpu=100)), FACTS, NOW, POLICY)
        assert granting(state, made) == ["reserve"]
    assert queue.get(state, "kept").wait.bypasses == 0
