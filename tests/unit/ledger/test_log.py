"""The log: who did what, when and why; filters; and going on where it stopped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import transitions
from ledger.errors import NotFound
from ledger.log import Entry, Log, Wanted
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.unit.ledger.test_check import archived, flip

GOLDEN = Path(__file__).parent / "golden" / "schema-2"
START_MS = 1_700_000_000_000


def told(wanted: Wanted, path: Path = GOLDEN) -> list[Entry]:
    return list(Log(path, wanted).new())


def steps(found: list[Entry]) -> list[tuple[int, str]]:
    return [(each.generation, each.operation) for each in found]


def test_everything_is_told_but_heartbeats() -> None:
    found = told(Wanted())
    assert [each.generation for each in found] == sorted(each.generation for each in found)
    operations = {each.operation for each in found}
    assert {"reserve", "release", "drain", "observe-node"} <= operations
    assert "beat" not in operations
    assert steps(told(Wanted(operations=("beat",)))) == [(22, "beat")]


def test_an_entry_says_who_what_when_and_why() -> None:
    (found,) = told(Wanted(operations=("release",)))
    assert (found.by, found.note, found.phase) == ("uid:0", "nothing is left", "released")
    assert (found.id, found.namespace) == (f"{7:032x}", "default")
    assert found.wall_ms == START_MS + 19_000
    reserved = told(Wanted(prefix=f"{2:032x}"))
    assert steps(reserved) == [(7, "reserve")]
    assert (reserved[0].owner_uid, reserved[0].namespace) == (1000, "team-a")
    assert reserved[0].requests is not None
    assert reserved[0].requests.cpu_milli == 250


def test_each_entry_of_a_commit_is_told() -> None:
    assert [each.id for each in told(Wanted()) if each.generation == 7] == [
        f"{number:032x}" for number in (2, 3, 4)
    ]


def test_filters_add_up() -> None:
    since = Wanted(since_wall_ms=START_MS + 18_000)
    assert [each.generation for each in told(since)] == [19, 20, 21, 23]
    both = Wanted(namespace="default", operations=("retire", "release"))
    assert steps(told(both)) == [(19, "retire"), (20, "release")]
    assert told(Wanted(prefix="ffff")) == []


def test_the_namespace_of_what_ended_is_known_behind_a_filter() -> None:
    (found,) = told(Wanted(since_wall_ms=START_MS + 19_000, operations=("release",)))
    assert found.namespace == "default"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    clock = ManualClock()
    with Ledger.open(tmp_path / "ledger", clock(), segment_bytes=8192) as found:
        found.commit(observing(small_node()), clock())
        yield found


def test_it_goes_on_where_it_stopped(ledger: Ledger, tmp_path: Path) -> None:
    clock = ManualClock()
    log = Log(tmp_path / "ledger", Wanted())
    assert steps(list(log.new())) == [(1, "observe-node")]
    assert list(log.new()) == []
    seen = []
    for number in range(20):  # over several segments, some archived between two looks
        ledger.commit(reserving(small_proposal(number), clock()), clock())
        if number % 3 == 0:
            seen += steps(list(log.new()))
        if number % 5 == 0:
            ledger.checkpoint()
    ledger.commit(releasing(7), clock())
    seen += steps(list(log.new()))
    assert seen == [*((number, "reserve") for number in range(2, 22)), (22, "release")]
    assert log.damage == []


def test_half_a_line_comes_when_it_is_whole(ledger: Ledger, tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "ledger"
    log = Log(path, Wanted())
    list(log.new())
    segment = max(path.glob("journal-*"))
    before = segment.read_bytes()
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    whole = segment.read_bytes()
    start = len(before[:-21].rstrip(b"\0"))
    for length in (1, 400, 700):
        segment.write_bytes(whole[: start + length] + before[start + length :])
        assert list(log.new()) == []
    segment.write_bytes(whole)
    assert steps(list(log.new())) == [(2, "reserve")]
    assert log.damage == []


def test_a_void_line_is_not_told(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "ledger"
    ledger = Ledger.open(path, clock(), segment_bytes=8192)
    ledger.commit(observing(small_node()), clock())
    segment = max(path.glob("journal-*"))
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    ledger.close(checkpoint=False)
    given_up = segment.read_bytes()
    second = path / "journal-0000000000000002.jsonl"
    line = given_up.splitlines(keepends=True)[1]
    blank = bytes(8192 - 21 - len(line)) + given_up[-21:]
    second.write_bytes(line + blank)
    assert steps(told(Wanted(), path)) == [(1, "observe-node"), (2, "reserve")]


def test_damage_is_said_and_passed_over(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN, tmp_path / "ledger"))
    flip(archived(path, 2), b"request-3")
    log = Log(path, Wanted())
    found = [each.generation for each in log.new()]
    assert 7 not in found
    assert {6, 8} <= set(found)
    assert len(log.damage) == 1
    assert "journal-0000000000000007.jsonl, offset 0" in log.damage[0]


def test_no_ledger_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        told(Wanted(), tmp_path / "no")


def test_a_rebase_is_one_entry(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "ledger"
    with Ledger.open(path, clock()) as ledger:
        ledger.commit(observing(small_node()), clock())
        ledger.commit(reserving(small_proposal(1), clock()), clock())
    clock.reboot()
    with Ledger.open(path, clock()) as ledger:
        ledger.commit(lambda view: transitions.stop(view, f"{1:032x}", "asked", "me"), clock())
    assert steps(told(Wanted(), path))[-2:] == [(3, "rebase"), (4, "stop")]
