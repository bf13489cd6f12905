"""The next deadline is what a look at every entry would find, whatever was changed before."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ledger.postings import change
from ledger.reservation import Reservation
from ledger.state import Change, Put, State
from ledger.tables import RESERVATIONS
from tests.unit.ledger.samples import ask, host_state, node, proposal, reserve

KEYS = [f"r{number}" for number in range(6)]
edits = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["gone", None, 5, 7, 9, 11])), max_size=6
)


def looked_for(state: State) -> int | None:
    deadlines = (row.expires_boottime_ms for row in state.reservations())
    return min((ms for ms in deadlines if ms is not None), default=None)


def edit(state: State, sample: Reservation, key: str, deadline: object) -> Change:
    row = None
    if deadline != "gone":
        moved = deadline if isinstance(deadline, int) else None
        row = replace(sample, id=key, expires_boottime_ms=moved)
    return change(state, "edit", (Put(RESERVATIONS, key, row),))


@given(st.lists(st.tuples(edits, edits, st.booleans()), max_size=8))
def test_it_is_the_soonest_of_all_levels(plan: list[tuple[list, list, bool]]) -> None:  # type: ignore[type-arg]
    state = host_state(node())
    sample = reserve(state, proposal("r0", ask()))
    for below, above, kept in plan:
        fork = state.fork()
        for key, deadline in below:
            fork.apply(edit(fork, sample, key, deadline))
            assert fork.next_deadline_ms() == looked_for(fork)
        trial = fork.fork()
        for key, deadline in above:
            trial.apply(edit(trial, sample, key, deadline))
        assert trial.next_deadline_ms() == looked_for(trial)
        if kept:
            fork.merge(trial)
            assert fork.next_deadline_ms() == looked_for(fork)
            state.merge(fork)
        assert state.next_deadline_ms() == looked_for(state)


def test_renewals_do_not_pile_up() -> None:
    state = host_state(node())
    sample = reserve(state, proposal("r0", ask(), ttl_ms=1))
    assert state.next_deadline_ms() == sample.expires_boottime_ms
    for deadline in range(1_000, 2_000):
        state.apply(edit(state, sample, "r0", deadline))
    assert state._deadlines is not None
    assert len(state._deadlines._heap) < 100
    assert state.next_deadline_ms() == 1_999


def test_nobody_pays_before_somebody_asks() -> None:
    state = host_state(node())
    reserve(state, proposal("r0", ask(), ttl_ms=1))
    assert state._deadlines is None
