"""A planted wrong decision of each kind is found by deciding again; a right one never is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import decisions, transitions
from ledger.admission import AdmissionPolicy
from ledger.difference import DECISION, PHASE, POSTINGS, ROWS, Difference
from ledger.errors import AxernError, InvalidArgument, LedgerCorrupt
from ledger.postings import change
from ledger.reservation import RUNNING, Reservation
from ledger.resources import OptionalResources, Resources
from ledger.state import Change, Put, State
from ledger.store import Ledger
from ledger.tables import NAMESPACES, RESERVATIONS, Namespace
from ledger.testing import (
    GIB,
    ManualClock,
    observing,
    releasing,
    reserving,
    small_facts,
    small_node,
    small_proposal,
)

POLICY = AdmissionPolicy()
CLOCK = ManualClock()
Operation = Callable[[State], Change]


def sandbox(number: int, **fields: object) -> transitions.Proposal:
    """Return the proposal of a sandbox with a lane."""
    return replace(small_proposal(number), runtime="runc", **fields)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ledger"
    ledger = Ledger.open(made, CLOCK(), segment_bytes=8192)
    ledger.commit(observing(small_node()), CLOCK())
    for number in range(8):
        ledger.commit(reserving(sandbox(number, ttl_ms=60_000), CLOCK()), CLOCK())
        if number == 5:
            ledger.checkpoint()
    ledger.commit(releasing(3), CLOCK())
    ledger.close(checkpoint=False)
    return made


def plant(path: Path, operation: Operation) -> None:
    """Journal *operation* as an honest ledger would, and one honest operation behind it."""
    with Ledger.open(path, CLOCK(), segment_bytes=8192) as ledger:
        ledger.commit(operation, CLOCK())
        with contextlib.suppress(AxernError):
            ledger.commit(reserving(small_proposal(99), CLOCK()), CLOCK())


def difference(path: Path) -> Difference:
    found = decisions.replay(path, POLICY).difference
    assert found is not None
    assert found.generation == 11
    assert "journal-" in found.place
    return found


def granting(number: int, **bent: object) -> Operation:
    """Return the operation that grants a lease whose row is *bent*, whatever admission says."""

    def operation(view: State) -> Change:
        roomy = Resources(10**6, 10**15, 10**15, 0, 10**4)
        made = view.fork()
        made.apply(
            change(
                made,
                "observe-node",
                (Put("nodes", "node", replace(small_node(), effective_allocatable=roomy)),),
            )
        )
        made.apply(change(made, "quota", (Put(NAMESPACES, "default", Namespace("default")),)))
        granted = reserving(sandbox(number), CLOCK(), small_facts(CLOCK()))(made)
        row = granted.result
        assert isinstance(row, Reservation)
        row = replace(row, **bent)  # type: ignore[arg-type]
        puts = tuple(
            replace(put, row=row) if put.table == RESERVATIONS else put for put in granted.puts
        )
        return change(view, "reserve", puts, by=granted.by, facts=granted.facts)

    return operation


def test_control_what_is_right_comes_out_the_same(path: Path) -> None:
    outcome = decisions.replay(path, POLICY)
    assert (outcome.difference, outcome.capped) == (None, [])
    assert (outcome.since, outcome.operations, outcome.decisions) == (0, 10, 8)
    plant(path, granting(50))
    assert decisions.replay(path, POLICY).difference is None


HUGE = Resources(100, 64 * GIB, 0, 0, 1)


@pytest.mark.parametrize(
    ("bent", "kind", "words"),
    [
        ({"requests": HUGE, "charged": HUGE}, DECISION, "refused: node memory capacity exhausted"),
        ({"requires": ("limit/cpu",)}, DECISION, "refused: capability limit/cpu is absent"),
        ({"request_id": "request-1"}, DECISION, "refused: request id 'request-1' was used"),
        ({"lane": 5}, DECISION, "refused: lane 5 was not free"),
        ({"namespace": "nobody"}, DECISION, "refused: no namespace is named 'nobody'"),
        ({"claim_id": "claim-9"}, ROWS, "claim_id None"),
        ({"gpu_device": "GPU-1"}, ROWS, "gpu_device None"),
        ({"phase": RUNNING}, ROWS, "phase reserved"),
    ],
)
def test_a_wrong_grant_is_found(path: Path, bent: dict[str, object], kind: str, words: str) -> None:
    plant(path, granting(50, **bent))
    found = difference(path)
    assert (found.kind, found.operation) == (kind, "reserve")
    assert words in found.recomputed


def test_a_grant_without_facts_is_found(path: Path) -> None:
    plant(path, lambda view: replace(granting(50)(view), facts=None))
    assert "the host has not been observed yet" in difference(path).recomputed


def test_a_grant_over_the_quota_is_found(path: Path) -> None:
    row = Namespace("default", OptionalResources(sandbox_slots=7))
    with Ledger.open(path, CLOCK(), segment_bytes=8192) as ledger:
        ledger.commit(
            lambda view: change(view, "quota", (Put(NAMESPACES, "default", row),)), CLOCK()
        )
        ledger.commit(granting(50), CLOCK())
    found = decisions.replay(path, POLICY).difference
    assert found is not None
    assert "[namespace_quota_exceeded]" in found.recomputed


def test_a_leap_of_phases_is_found(path: Path) -> None:
    key = f"{4:032x}"

    def leap(view: State) -> Change:
        row = replace(view.reservation(key), phase=RUNNING)
        return change(view, "run", (Put(RESERVATIONS, key, row),))

    plant(path, leap)
    found = difference(path)
    assert (found.kind, found.id) == (PHASE, key)
    assert found.journaled == "reserved became running"


def test_wrong_postings_are_found(path: Path) -> None:
    def release(view: State) -> Change:
        honest = releasing(4)(view)
        return replace(honest, postings=honest.postings[:-2])

    plant(path, release)
    assert difference(path).kind == POSTINGS


def test_it_stops_where_it_is_told(path: Path) -> None:
    plant(path, granting(50, gpu_device="GPU-1"))
    for generation in (1, 7, 10):
        outcome = decisions.replay(path, POLICY, to_generation=generation)
        assert (outcome.state.generation, outcome.difference) == (generation, None)
    assert decisions.replay(path, POLICY, to_generation=11).difference is not None
    wall_ms = CLOCK().wall_ms
    assert decisions.replay(path, POLICY, to_wall_ms=wall_ms - 1).state.generation == 0
    assert decisions.replay(path, POLICY, to_wall_ms=wall_ms).difference is not None


def test_todays_caps_are_no_difference(path: Path) -> None:
    outcome = decisions.replay(path, AdmissionPolicy(entry_cap=6))
    assert outcome.difference is None
    assert [each.generation for each in outcome.capped] == [8, 9]
    assert outcome.state.generation == 10


def test_facts_that_are_older_than_today_allows_are_no_difference(path: Path) -> None:
    outcome = decisions.replay(path, AdmissionPolicy(facts_stale_after_ms=-1))
    assert (outcome.difference, len(outcome.capped)) == (None, 8)
    assert "the last observation of the host is 0 s old" in outcome.capped[0].recomputed


def test_without_its_first_segments_it_begins_with_a_checkpoint(path: Path) -> None:
    for segment in (path / "archive").iterdir():
        segment.unlink()
    outcome = decisions.replay(path, POLICY)
    assert (outcome.since, outcome.difference, outcome.state.generation) == (7, None, 10)
    with pytest.raises(InvalidArgument, match="begin at generation 7 at the earliest"):
        decisions.replay(path, POLICY, to_generation=3)


def test_a_generation_that_never_was_is_refused(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="ends at generation 10, before 11"):
        decisions.replay(path, POLICY, to_generation=11)


def test_a_damaged_journal_is_no_difference(path: Path) -> None:
    last = max(path.glob("journal-*"))
    data = bytearray(last.read_bytes())
    data[400] ^= 1
    last.write_bytes(data)
    with pytest.raises(LedgerCorrupt, match=r"journal-\d+\.jsonl, offset"):
        decisions.replay(path, POLICY)


def test_a_checkpoint_that_was_changed_is_found(path: Path) -> None:
    from tests.unit.ledger.test_check import renamed, rewrite

    rewrite(path, lambda base: replace(base, tables=renamed(base.tables)))
    found = decisions.replay(path, POLICY).difference
    assert found is not None
    assert (found.kind, found.generation) == ("checkpoint", 7)
    assert found.journaled.endswith("uid=4711, name='lease-0')")
