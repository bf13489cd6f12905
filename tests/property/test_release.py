"""The law of releases, over every phase, owner, user and wish."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger import release, transitions
from ledger.errors import InvalidArgument, PermissionDenied, StateConflict
from ledger.release import BURY, STOP, UNCHARGE, Asked
from ledger.reservation import EXTERNAL, OWNER_KINDS, PHASES, RUN, Owner, Reservation
from ledger.rights import ADMIN, READ, ROOT, Caller, by_default
from ledger.state import Change, State
from tests.unit.ledger.samples import CGROUP, MONITOR, ask, do, host_state, proposal, reserve

UIDS = (0, 1000, 1001)
NOTHING: frozenset[str] = frozenset()
CALLERS = (
    *map(by_default, UIDS),
    Caller(1000, NOTHING),
    Caller(1001, NOTHING),
    Caller(1001, frozenset({ADMIN})),
    Caller(1001, frozenset({READ}), frozenset({"default"})),
    Caller(1001, frozenset({READ}), frozenset({"other"})),
)
ROW = reserve(host_state(), proposal("a" * 32, ask(cpu=10, memory=1024)))


def outcome(kind: str, owner_uid: int, phase: str, asked: Asked, *, runs: bool) -> str:
    row = replace(ROW, owner=Owner(kind, owner_uid), phase=phase)
    try:
        return release.steps(row, asked, runs=runs)
    except (PermissionDenied, StateConflict) as error:
        return error.code


def test_the_law() -> None:
    for case in product(OWNER_KINDS, UIDS, PHASES, CALLERS, (False, True), (False, True)):
        require_law(*case)


def require_law(
    kind: str, owner_uid: int, phase: str, caller: Caller, force: bool, runs: bool
) -> None:
    asked = Asked(caller, force, "a reason" if force else None)
    told = outcome(kind, owner_uid, phase, asked, runs=runs)
    if not (caller.is_admin or caller.uid == owner_uid or ROW.namespace in caller.namespaces):
        assert told == "permission_denied"
    elif kind == EXTERNAL:
        assert told == UNCHARGE
    elif not runs:
        assert told == BURY
    else:
        assert told == (STOP if force else "state_conflict")
    # What runs never gets away with less than being stopped.
    if kind != EXTERNAL and runs:
        assert told not in (UNCHARGE, BURY)
    # Force never makes anything impossible that was possible without it.
    gentle = outcome(kind, owner_uid, phase, Asked(caller), runs=runs)
    if gentle in (UNCHARGE, BURY):
        assert told == gentle


MOVES = ("start", "run", "stop", "retire", "bury", "gentle", "forced", "forced", "stranger")


def move(state: State, name: str) -> Change:
    """Return the change that the move *name* makes."""
    match name:
        case "start":
            return transitions.start(state, ROW.id)
        case "run":
            return transitions.run(state, ROW.id, MONITOR, CGROUP, 5)
        case "stop":
            return transitions.stop(state, ROW.id, "cancelled", "uid:1000")
        case "retire":
            return transitions.retire(state, ROW.id, "x")
        case "bury":
            return transitions.release(state, ROW.id, "proof")
        case _:
            uid = 1001 if name == "stranger" else 1000
            asked = Asked(
                by_default(uid), name != "gentle", None if name == "gentle" else "a reason"
            )
            return release.begin(state, ROW.id, asked)


def is_kept(row: Reservation) -> bool:
    """Tell whether *row* is not released without force: it may run, and nobody has insisted."""
    return row.phase in ("starting", "running", "stopping") and not release.is_note(row.reason)


@example(RUN, ["start", "gentle", "run", "gentle", "stop", "gentle", "retire", "gentle"])
@example(RUN, ["start", "stop", "forced", "gentle", "forced"])
@example(RUN, ["gentle", "start", "forced"])
@given(st.sampled_from((RUN, EXTERNAL)), st.lists(st.sampled_from(MOVES), max_size=12))
def test_a_release_in_the_life_of_an_entry(kind: str, plan: list[str]) -> None:
    """Only a lease ends at once, a forced release goes on without force, and nobody else's hand."""
    state = host_state()
    reserve(state, proposal(ROW.id, ask(cpu=10, memory=1024), kind=kind))
    for name in plan:
        before = state.find_reservation(ROW.id)
        if before is None or (kind == EXTERNAL and name not in ("gentle", "forced", "stranger")):
            continue
        try:
            made = move(state, name)
        except PermissionDenied:
            assert name == "stranger"
            continue
        except StateConflict:
            assert name not in ("forced", "stranger")
            if name == "gentle":
                assert is_kept(before)
            continue
        assert name != "stranger"
        assert kind == EXTERNAL or name != "gentle" or not is_kept(before)
        do(state, made)
        after = state.find_reservation(ROW.id)
        if name in ("gentle", "forced"):
            assert (after is None) == (kind == EXTERNAL)
            if after is not None:
                assert after.charged == before.charged
                assert before.phase != "reserved" or after.phase == "stopping"
                assert name == "gentle" or not is_kept(after)
                again = release.begin(state, ROW.id, Asked(by_default(1000)))
                assert again.puts == ()
        elif after is None:
            assert (name, before.phase) in (("bury", "retiring"), ("bury", "reserved"))


@given(st.sampled_from(UIDS), st.booleans(), st.none() | st.text(max_size=300))
def test_what_is_kept_of_a_reason_fits_on_a_line(uid: int, force: bool, reason: str | None) -> None:
    good = reason is not None and 1 <= len(reason) <= 256 and reason.isprintable()
    try:
        asked = Asked(by_default(uid), force, reason)
    except InvalidArgument:
        assert (force and reason is None) or not good or not (reason or "").strip()
        return
    assert (reason is None and not force) or good
    assert release.is_note(asked.note)
    assert asked.note.isprintable()
    assert asked.note.endswith(reason or f"uid {uid}")


def test_force_needs_a_reason() -> None:
    with pytest.raises(InvalidArgument, match="1 to 256"):
        Asked(ROOT, force=True)


@pytest.mark.parametrize("text", [None, "", "cancelled", "expired"])
def test_other_reasons_are_no_release(text: str | None) -> None:
    assert not release.is_note(text)
