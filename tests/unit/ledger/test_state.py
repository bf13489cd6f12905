"""Rows, balances, forks and the postings that keep the accounts in balance."""

from dataclasses import replace

import pytest

from ledger import tables, transitions
from ledger.clock import Now
from ledger.errors import NotFound
from ledger.postings import postings_for
from ledger.reservation import Reservation
from ledger.resources import Resources
from ledger.state import (
    CAPACITY,
    HEADROOM,
    HELD,
    RETIRING_ACCOUNT,
    SYSTEM_RESERVE,
    Change,
    Put,
    State,
    claimed_account,
    committed_account,
    genesis,
)
from ledger.tables import Node
from tests.unit.ledger.samples import (
    GIB,
    NOW,
    add_claim,
    add_namespace,
    add_ticket,
    ask,
    do,
    host_state,
    proposal,
    reserve,
    rows_of,
)


def seen(state: State) -> tuple[object, ...]:
    """Return everything that can be asked of *state*."""
    return (
        rows_of(state),
        state.balances(),
        state.entry_count(),
        state.entry_count("default"),
        {lane: state.lane_holder(lane) for lane in range(64)},
        state.generation,
        state.clock,
    )


def test_a_new_ledger_has_the_default_namespace_and_nothing_else() -> None:
    state = genesis(NOW)
    assert state.namespace("default").created_wall_ms == NOW.wall_ms
    assert state.generation == 0
    assert state.balances() == {}
    assert state.node() is None
    assert sum(len(rows) for rows in rows_of(state).values()) == 1


def test_unknown_rows() -> None:
    state = genesis(NOW)
    with pytest.raises(NotFound, match="rsv-1") as caught:
        state.reservation("rsv-1")
    assert caught.value.hint is not None
    with pytest.raises(NotFound, match="'team'") as caught:
        state.namespace("team")
    assert "axern namespace create" in (caught.value.hint or "")
    assert state.row(tables.CLAIMS, "x") is None
    assert state.claim_of("default") is None
    assert state.balance("nobody", "cpu_milli") == 0


def test_the_accounts_of_a_busy_host() -> None:
    reserved = Node(
        Resources(5000, 20 * GIB), Resources(1000, 4 * GIB), Resources(8000, 16 * GIB), "2"
    )
    state = host_state(replace(reserved, gpu_allocatable=(("g", 10),)))
    add_namespace(state, "team")
    add_claim(state, "team", Resources(1000), hard=False)
    reserve(state, proposal("a", Resources(700, GIB, gpu_memory_bytes=4), namespace="team"))
    reserve(state, proposal("b", Resources(300, GIB)))
    do(state, transitions.retire(state, "b", "exit"))
    add_ticket(state, Resources(50))
    assert state.balances() == {
        (CAPACITY, "cpu_milli"): -9000,
        (CAPACITY, "memory_bytes"): -20 * GIB,
        (CAPACITY, "gpu_memory_bytes/g"): -10,
        (SYSTEM_RESERVE, "cpu_milli"): 1000,
        (SYSTEM_RESERVE, "memory_bytes"): 4 * GIB,
        (claimed_account("team"), "cpu_milli"): 300,
        (committed_account("team"), "cpu_milli"): 700,
        (committed_account("team"), "memory_bytes"): GIB,
        (committed_account("team"), "gpu_memory_bytes/g"): 4,
        (RETIRING_ACCOUNT, "cpu_milli"): 300,
        (RETIRING_ACCOUNT, "memory_bytes"): GIB,
        (HELD, "cpu_milli"): 50,
        (HEADROOM, "cpu_milli"): 8000 - 300 - 700 - 300 - 50,
        (HEADROOM, "memory_bytes"): 14 * GIB,
        (HEADROOM, "gpu_memory_bytes/g"): 6,
    }


def test_postings_are_the_difference_that_rows_make() -> None:
    state = host_state()
    entry = reserve(state, proposal("r", ask(cpu=500, memory=GIB)))
    more = replace(entry, charged=replace(entry.charged, memory_bytes=2 * GIB))
    assert postings_for(state, (Put(tables.RESERVATIONS, "r", more),)) == (
        (committed_account("default"), "memory_bytes", GIB),
        (HEADROOM, "memory_bytes", -GIB),
    )
    assert postings_for(state, (Put(tables.RESERVATIONS, "r", entry),)) == ()
    assert postings_for(state, (Put(tables.RESERVATIONS, "nobody", None),)) == ()


def test_a_fork_reads_through_and_leaves_its_base_alone() -> None:
    state = host_state()
    reserve(state, proposal("a", ask(cpu=1)))
    before = seen(state)
    fork = state.fork()
    assert seen(fork) == before
    reserve(fork, proposal("b", ask(cpu=2)))
    do(fork, transitions.retire(fork, "a", "exit"))
    do(fork, transitions.release(fork, "a", "gone"))
    assert [entry.id for entry in fork.reservations()] == ["b"]
    assert fork.row(tables.RESERVATIONS, "a") is None
    assert (fork.entry_count(), fork.entry_count("default")) == (1, 1)
    assert seen(state) == before
    after = seen(fork)
    state.merge(fork)
    assert seen(state) == after


def test_a_dropped_fork_leaves_no_trace() -> None:
    state = host_state()
    before = seen(state)
    reserve(state.fork(), proposal("b", ask(cpu=2)))
    assert seen(state) == before


def test_a_fork_of_a_fork_merges_its_removals() -> None:
    state = host_state()
    reserve(state, proposal("a", ask(cpu=1)))
    outer = state.fork()
    inner = outer.fork()
    do(inner, transitions.release(inner, "a", "gone"))
    expected = seen(inner)
    outer.merge(inner)
    assert seen(outer) == expected
    state.merge(outer)
    assert seen(state) == expected


def test_a_copy_is_independent() -> None:
    state = host_state()
    reserve(state, proposal("a", ask(cpu=1)))
    before = seen(state)
    other = state.copy()
    assert seen(other) == before
    reserve(other, proposal("b", ask(cpu=1)))
    assert seen(state) == before


def test_a_moved_row_keeps_its_place() -> None:
    state = host_state()
    for key in ("a", "b"):
        reserve(state, proposal(key, ask(cpu=1)))
    do(state, transitions.start(state, "a"))
    assert [entry.id for entry in state.reservations()] == ["a", "b"]


def test_lanes_follow_their_holders() -> None:
    state = host_state()
    lane = reserve(state, proposal("a", ask(cpu=1))).lane
    assert lane is not None
    assert state.lane_holder(lane) == "a"
    do(state, transitions.release(state, "a", "never started"))
    assert state.lane_holder(lane) is None


def test_a_change_without_puts_changes_nothing() -> None:
    state = host_state()
    before = seen(state)
    state.apply(Change("nothing"))
    assert seen(state) == before


def test_the_clock_comes_with_the_merge() -> None:
    state = host_state()
    fork = state.fork()
    fork.clock = Now("boot-2", 1, 2, 3)
    fork.generation += 1
    state.merge(fork)
    assert (state.clock.boot_id, state.generation) == ("boot-2", 2)
    assert isinstance(reserve(state, proposal("r", ask())), Reservation)
