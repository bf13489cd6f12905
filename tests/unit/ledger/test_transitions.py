"""Each operation on reservations: what it puts, what it refuses, what it leaves alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ledger import invariants, tables, transitions
from ledger.admission import AdmissionPolicy
from ledger.clock import Now
from ledger.errors import AdmissionRefused, NotFound, RequestIdConflict, StateConflict
from ledger.facts import Facts
from ledger.rebase import rebase
from ledger.reservation import EXTERNAL, LANES, SANDBOX_LANES, Reservation
from ledger.resources import Resources
from ledger.state import Change, State
from ledger.tables import Beat, Claim, RequestRecord, Ticket
from tests.unit.ledger.samples import (
    CGROUP,
    FACTS,
    GIB,
    HOST,
    MONITOR,
    NOW,
    POLICY,
    add_claim,
    add_namespace,
    add_ticket,
    ask,
    do,
    entry,
    host_state,
    later,
    node,
    proposal,
    reserve,
    rows_of,
)


def one(phase: str = "reserved", **options: object) -> State:
    """Return a ledger whose only entry, `r`, came to *phase* the usual way."""
    state = host_state()
    reserve(state, proposal("r", ask(500, GIB), **options))  # type: ignore[arg-type]  # by name
    if phase in ("starting", "running", "stopping"):
        do(state, transitions.start(state, "r"))
    if phase in ("running", "stopping"):
        do(state, transitions.run(state, "r", MONITOR, CGROUP))
    if phase == "stopping":
        do(state, transitions.stop(state, "r", "asked", "uid:1000"))
    if phase == "retiring":
        do(state, transitions.retire(state, "r", "exit"))
    assert entry(state, "r").phase == phase
    return state


def test_a_reservation_is_what_was_proposed() -> None:
    state = host_state()
    made = transitions.reserve(
        state, proposal("r", ask(500, GIB), ttl_ms=10, max_lifetime_ms=99), FACTS, NOW, POLICY
    )
    row = made.result
    assert isinstance(row, Reservation)
    assert (made.operation, made.by, made.facts) == ("reserve", "uid:1000", FACTS)
    assert (row.phase, row.charged, row.requests) == ("reserved", ask(500, GIB), ask(500, GIB))
    assert (row.created_wall_ms, row.created_boottime_ms) == (NOW.wall_ms, NOW.boottime_ms)
    assert row.expires_boottime_ms == NOW.boottime_ms + 10
    assert row.expires_limit_boottime_ms == NOW.boottime_ms + 99
    assert state.row(tables.RESERVATIONS, "r") is None
    do(state, made)
    assert entry(state, "r") == row


@pytest.mark.parametrize(
    ("ttl_ms", "ends_ms", "deadline_ms"),
    [(None, None, None), (None, 7, 7), (10, None, 10), (10, 7, 7), (5, 7, 5)],
)
def test_a_time_limit_of_the_workload_only_moves_the_deadline_nearer(
    ttl_ms: int | None, ends_ms: int | None, deadline_ms: int | None
) -> None:
    state = one("starting", ttl_ms=ttl_ms, max_lifetime_ms=ttl_ms)
    ends_boottime_ms = None if ends_ms is None else NOW.boottime_ms + ends_ms
    running = transitions.run(state, "r", MONITOR, CGROUP, ends_boottime_ms=ends_boottime_ms)
    do(state, running)
    row = entry(state, "r")
    expected = None if deadline_ms is None else NOW.boottime_ms + deadline_ms
    assert row.expires_boottime_ms == expected
    ceiling = None if ttl_ms is None else NOW.boottime_ms + ttl_ms
    assert row.expires_limit_boottime_ms == ceiling


@pytest.mark.parametrize(
    ("ttl_ms", "max_lifetime_ms", "deadline_ms"),
    [(None, None, None), (10, None, 10), (10, 5, 5), (5, 10, 5), (None, 10, 10)],
)
def test_the_lifetime_bounds_the_first_deadline(
    ttl_ms: int | None, max_lifetime_ms: int | None, deadline_ms: int | None
) -> None:
    row = entry(one(ttl_ms=ttl_ms, max_lifetime_ms=max_lifetime_ms), "r")
    expected = None if deadline_ms is None else NOW.boottime_ms + deadline_ms
    assert row.expires_boottime_ms == expected


def test_a_refusal_changes_nothing_and_leaves_the_request_id_unused() -> None:
    state = host_state()
    before = rows_of(state)
    wanted = proposal("r", ask(cpu=5000), request_id="q")
    with pytest.raises(AdmissionRefused) as caught:
        reserve(state, wanted)
    assert caught.value.code == caught.value.refusal.code == "request_exceeds_node"
    assert rows_of(state) == before
    small = replace(wanted, resolved=proposal("r", ask(cpu=1)).resolved, digest="other")
    assert reserve(state, small).id == "r"


def test_a_faithful_retry_finds_its_entry() -> None:
    state = one(request_id="q")
    made = transitions.reserve(
        state, proposal("another id", ask(500, GIB), request_id="q"), None, NOW, POLICY
    )
    assert made == Change("reserve", result=entry(state, "r"))


def test_the_same_request_id_with_another_body_conflicts() -> None:
    with pytest.raises(RequestIdConflict, match=r"'q'.*became r"):
        reserve(one(request_id="q"), proposal("x", ask(), request_id="q", digest="other"))


def test_a_retry_after_the_release_conflicts() -> None:
    state = one(request_id="q")
    do(state, transitions.release(state, "r", "never started"))
    with pytest.raises(StateConflict, match="has been released since"):
        reserve(state, proposal("x", ask(500, GIB), request_id="q"))


def test_request_ids_of_users_never_meet() -> None:
    state = one(request_id="q")
    assert reserve(state, proposal("x", ask(), request_id="q", digest="o", uid=1001)).id == "x"


def test_a_forgotten_request_id_is_free_again() -> None:
    state = one(request_id="q")
    made = transitions.forget_requests(state, ["1000:q", "1000:unknown"])
    assert len(made.puts) == 1
    do(state, made)
    assert reserve(state, proposal("x", ask(), request_id="q", digest="other")).id == "x"


def test_the_way_of_a_sandbox() -> None:
    state = one("running")
    row = entry(state, "r")
    assert (row.monitor, row.cgroup) == (MONITOR, CGROUP)
    do(state, transitions.stop(state, "r", "cancelled", "uid:1000"))
    do(state, transitions.retire(state, "r", "exited", memory_bytes=3 * GIB))
    row = entry(state, "r")
    assert (row.phase, row.reason) == ("retiring", "cancelled")
    assert row.charged == ask(500, 3 * GIB)
    assert row.requests == ask(500, GIB)
    made = transitions.release(state, "r", "cgroup populated 0")
    assert (made.note, made.result) == ("cgroup populated 0", row)
    do(state, made)
    assert state.entry_count() == 0
    assert invariants.check(rows_of(state), state.balances()) == []


def test_retiring_memory_never_falls_below_the_request() -> None:
    state = one("starting")
    do(state, transitions.retire(state, "r", "exit", memory_bytes=5))
    assert entry(state, "r").charged == ask(500, GIB)


@pytest.mark.parametrize("phase", ["starting", "running", "stopping"])
def test_what_may_live_is_not_released(phase: str) -> None:
    with pytest.raises(StateConflict, match=f"r is {phase} and can't become released"):
        transitions.release(one(phase), "r", "hope")


@pytest.mark.parametrize("phase", ["starting", "running", "stopping", "retiring"])
def test_nothing_starts_twice(phase: str) -> None:
    with pytest.raises(StateConflict, match="can't become starting"):
        transitions.start(one(phase), "r")


def test_what_was_asked_to_stop_while_it_started_is_found_and_goes_on_stopping() -> None:
    state = one("stopping")
    do(state, transitions.run(state, "r", MONITOR, CGROUP, 5))
    found = entry(state, "r")
    assert (found.phase, found.monitor, found.cgroup) == ("stopping", MONITOR, CGROUP)
    assert found.started_wall_ms == 5


@pytest.mark.parametrize("phase", ["reserved", "running", "retiring"])
def test_only_what_starts_runs(phase: str) -> None:
    with pytest.raises(StateConflict, match="can't become running"):
        transitions.run(one(phase), "r", MONITOR, CGROUP)


@pytest.mark.parametrize("phase", ["stopping", "retiring"])
def test_stopping_again_is_no_change(phase: str) -> None:
    state = one(phase)
    assert transitions.stop(state, "r", "again", "me") == Change("stop", result=entry(state, "r"))


def test_retiring_again_is_no_change() -> None:
    state = one("retiring")
    made = transitions.retire(state, "r", "again", 10 * GIB)
    assert made == Change("retire", result=entry(state, "r"))


def test_unknown_entries() -> None:
    state = host_state()
    attempts: list[Callable[[], Change]] = [
        lambda: transitions.start(state, "x"),
        lambda: transitions.stop(state, "x", "", ""),
        lambda: transitions.retire(state, "x", ""),
        lambda: transitions.release(state, "x", ""),
        lambda: transitions.renew(state, "x", 1, NOW),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            attempt()


@pytest.mark.parametrize(
    ("ttl_ms", "ceiling_ms", "renew_ms", "deadline_ms"),
    [
        (10_000, None, 60_000, 61_000),
        (10_000, None, 5_000, 10_000),
        (10_000, 30_000, 60_000, 30_000),
        (10_000, 10_000, 60_000, 10_000),
        (None, None, 60_000, None),
    ],
)
def test_a_renewal_moves_the_deadline_forward_to_the_ceiling(
    ttl_ms: int | None, ceiling_ms: int | None, renew_ms: int, deadline_ms: int | None
) -> None:
    state = one(ttl_ms=ttl_ms, max_lifetime_ms=ceiling_ms, kind=EXTERNAL)
    do(state, transitions.renew(state, "r", renew_ms, later(NOW, 1)))
    expected = None if deadline_ms is None else NOW.boottime_ms + deadline_ms
    assert entry(state, "r").expires_boottime_ms == expected


def test_a_claim_is_drawn_and_given_back() -> None:
    state = host_state()
    add_namespace(state, "team")
    claim = add_claim(state, "team", Resources(2000, 4 * GIB, 0, 0, 4))
    row = reserve(state, proposal("r", ask(500, GIB), namespace="team"))
    assert row.claim_id == claim.id
    reserve(state, proposal("s", ask(500, GIB), namespace="team"))

    def drawn() -> Resources:
        found = state.row(tables.CLAIMS, claim.id)
        assert isinstance(found, Claim)
        return found.drawdown

    assert drawn() == Resources(1000, 2 * GIB, 0, 0, 2)
    do(state, transitions.retire(state, "r", "exit", memory_bytes=9 * GIB))
    assert drawn() == Resources(1000, 10 * GIB, 0, 0, 2)
    do(state, transitions.release(state, "r", "gone"))
    assert drawn() == Resources(500, GIB, 0, 0, 1)
    do(state, transitions.release(state, "s", "never started"))
    assert drawn() == Resources()
    assert invariants.check(rows_of(state), state.balances()) == []


def test_an_unchanged_observation_is_no_change() -> None:
    state = host_state()
    assert transitions.observe_node(state, node()) == Change("observe-node", result=node())
    smaller = node(replace(HOST, cpu_milli=100))
    do(state, transitions.observe_node(state, smaller))
    assert state.node() == smaller


def test_beats_of_the_living_are_written_and_end_with_them() -> None:
    state = one()
    made = transitions.persist_beats(state, {"r": 5, "gone": 6})
    assert [put.key for put in made.puts] == ["r"]
    do(state, made)
    assert state.row(tables.BEATS, "r") == Beat(5)
    do(state, transitions.release(state, "r", "never started"))
    assert state.row(tables.BEATS, "r") is None
    assert transitions.persist_beats(state, {"r": 7}).puts == ()


def test_a_replaced_token_is_all_that_changes() -> None:
    state = one()
    before = entry(state, "r")
    done = transitions.replace_token(state, "r", "bb" * 32, "uid:1000")
    assert done.by == "uid:1000"
    do(state, done)
    assert entry(state, "r") == replace(before, token_sha256="bb" * 32)
    with pytest.raises(NotFound):
        transitions.replace_token(state, "nobody", "bb" * 32, "uid:1000")


def test_a_reboot_carries_every_deadline_over() -> None:
    state = one(ttl_ms=10_000, max_lifetime_ms=60_000, request_id="q")
    add_namespace(state, "team")
    add_claim(state, "team", Resources(1), expires_ms=NOW.boottime_ms + 7_000)
    add_ticket(state, Resources(1), expires_ms=NOW.boottime_ms + 8_000)
    do(state, transitions.persist_beats(state, {"r": 5}))
    reboot = Now("boot-2", 50, 60, NOW.wall_ms)
    do(state, rebase(state, reboot))
    row = entry(state, "r")
    assert row.created_boottime_ms == 60
    assert row.expires_boottime_ms == 10_060
    assert row.expires_limit_boottime_ms == 60_060
    claim, ticket = state.claim_of("team"), state.row(tables.TICKETS, "ticket-1")
    request = state.row(tables.REQUESTS, "1000:q")
    assert isinstance(claim, Claim)
    assert isinstance(ticket, Ticket)
    assert isinstance(request, RequestRecord)
    assert claim.expires_boottime_ms == 7_060
    assert ticket.expires_boottime_ms == 8_060
    assert request.created_boottime_ms == 60
    assert dict(state.rows(tables.BEATS)) == {}


def test_lanes_are_walked_round() -> None:
    state = host_state()
    lanes = []
    for number in range(3):
        lanes.append(reserve(state, proposal(f"r{number}", ask())).lane)
        do(state, transitions.start(state, f"r{number}"))
    do(state, transitions.retire(state, "r1", "exit"))
    do(state, transitions.release(state, "r1", "gone"))
    lanes.append(reserve(state, proposal("r3", ask())).lane)
    assert lanes == [0, 1, 2, 3]
    assert state.fork().last_lane == state.copy().last_lane == 3
    state.last_lane = LANES - 1
    assert transitions.free_lane(state) == 1
    state.last_lane = SANDBOX_LANES - 1
    assert transitions.free_lane(state) == 1
    state._lanes = dict.fromkeys(range(SANDBOX_LANES), "someone")
    with pytest.raises(StateConflict, match="all 4095 lanes"):
        transitions.free_lane(state)


def test_a_lane_that_was_freed_rests_over_commits() -> None:
    state = host_state()
    lanes = []
    for number in range(3):
        fork = state.fork()
        lanes.append(reserve(fork, proposal(f"r{number}", ask())).lane)
        do(fork, transitions.release(fork, f"r{number}", "never started"))
        state.merge(fork)
    assert lanes == [0, 1, 2]


def test_a_lane_in_quarantine_is_given_to_nobody() -> None:
    state = host_state()
    facts = Facts(1, NOW.monotonic_ms, quarantined_lanes=(0, 1, 3))
    change = transitions.reserve(state, proposal("r0", ask()), facts, NOW, AdmissionPolicy())
    do(state, change)
    assert state.lane_holder(2) == "r0"
    assert transitions.free_lane(state, facts) == 4
