"""Whatever is done to a ledger, its accounts balance and its rows agree with them."""

from collections import Counter

from hypothesis import given

from ledger import invariants
from ledger.state import State
from ledger.tables import Node
from tests.property.walk import Step, nodes, start_state, steps, walk
from tests.unit.ledger.samples import do, rows_of


def contents(state: State) -> tuple[object, ...]:
    lanes = {lane: holder for lane, holder in state._lanes.items() if holder is not None}
    counts = {name: count for name, count in state._counts.items() if count}
    return rows_of(state), state.balances(), lanes, counts


@given(nodes(), steps())
def test_every_change_balances_and_every_state_is_sound(node: Node, plan: list[Step]) -> None:
    state = start_state(node)
    for change in walk(state, plan):
        sums: Counter[str] = Counter()
        for _, pool, amount in change.postings:
            assert amount != 0
            sums[pool] += amount
        assert not any(sums.values())
        assert invariants.check(rows_of(state), state.balances()) == []


@given(nodes(), steps())
def test_the_postings_alone_make_the_balances(node: Node, plan: list[Step]) -> None:
    state = start_state(node)
    opening = state.balances()
    postings = [posting for change in walk(state, plan) for posting in change.postings]
    assert invariants.trial_balance(opening, postings) == (state.balances(), [])


@given(nodes(), steps())
def test_replaying_the_changes_makes_the_same_state(node: Node, plan: list[Step]) -> None:
    state, replayed = start_state(node), start_state(node)
    for change in walk(state, plan):
        do(replayed, change)
    assert contents(replayed) == contents(state)


@given(nodes(), steps(), steps())
def test_a_merged_fork_is_what_was_done_directly(
    node: Node, before: list[Step], after: list[Step]
) -> None:
    direct, base = start_state(node), start_state(node)
    list(walk(direct, before))
    list(walk(base, before))
    untouched = contents(base)
    fork = base.fork()
    list(walk(fork, after))
    assert contents(base) == untouched
    list(walk(direct, after))
    base.merge(fork)
    assert contents(base) == contents(direct)
    assert base.generation == direct.generation


@given(nodes(), steps())
def test_what_may_live_stays_charged(node: Node, plan: list[Step]) -> None:
    """An entry leaves only from a phase in which nothing of it can exist."""
    state = start_state(node)
    phases: dict[str, str] = {}
    for _ in walk(state, plan):
        now = {entry.id: entry.phase for entry in state.reservations()}
        gone = {phases[key] for key in phases.keys() - now.keys()}
        assert gone <= {"reserved", "retiring"}
        phases = now
