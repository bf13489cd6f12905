"""Events outside of commits: bounded, coalesced, kept over restarts, torn lines passed over."""

from __future__ import annotations

import stat
from pathlib import Path

from axern.daemon import event_log
from axern.daemon.event_log import EventLog, Happening

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def refused(namespace: str = "team", *, uid: int = 1000, message: str = "") -> Happening:
    code = "namespace_quota_exceeded"
    return Happening("admission-rejected", namespace, uid, code, "insufficient-cpu", message)


def flush(log: EventLog) -> None:
    log.write(log.take_due(7, START_MS + 30))


def test_what_is_repeated_is_counted_in_the_last(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(str(path))
    for number in range(25):
        log.record(refused(message=str(number)), START_MS + number)
        flush(log)
    log.record(refused(uid=1001), START_MS + 30)
    flush(log)
    for seen in (log, EventLog(str(path))):
        found = seen.newest("team", 100, START_MS + 40)
        assert [event.count for event in found] == [1, 16, *[1] * 9]
        assert (found[1].what.message, found[1].last_wall_ms) == ("24", START_MS + 24)
        assert sum(event.count for event in found) == 26
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_minute_stands_for_itself() -> None:
    log = EventLog()
    for number in range(12):
        log.record(refused(), START_MS + number)
    log.record(refused(), START_MS + 60_000)
    assert [event.count for event in log.newest("team", 2, START_MS + 60_000)] == [1, 3]


def test_they_are_kept_for_a_week() -> None:
    log = EventLog()
    log.record(refused(), START_MS)
    log.record(refused(), START_MS + DAY_MS)
    assert len(log.newest("team", 9, START_MS + 7 * DAY_MS - 1)) == 2
    assert len(log.newest("team", 9, START_MS + 7 * DAY_MS)) == 1
    log.forget_old(START_MS + 8 * DAY_MS)
    assert log.newest("team", 9, START_MS + DAY_MS) == []
    assert log.record(refused(), START_MS + 8 * DAY_MS).sequence == 3


def test_the_largest_namespace_gives_first() -> None:
    log = EventLog()
    log.record(refused("small"), START_MS)
    for number in range(event_log.MOST_OF_A_NAMESPACE + 5):
        log.record(refused("large"), START_MS + number * 60_000)
    at_ms = START_MS + event_log.MOST_OF_A_NAMESPACE * 60_000
    assert len(log.newest("large", 10_000, at_ms)) == event_log.MOST_OF_A_NAMESPACE
    assert len(log.newest("small", 10, at_ms)) == 1


def test_a_file_that_was_cut_short_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(str(path))
    for number in range(3):
        log.record(refused(uid=number), START_MS)
    flush(log)
    path.write_bytes(path.read_bytes()[:-20])
    again = EventLog(str(path))
    assert [event.what.uid for event in again.newest("team", 9, START_MS)] == [1, 0]
    again.record(refused(uid=7), START_MS)
    flush(again)
    assert [event.what.uid for event in EventLog(str(path)).newest("team", 9, START_MS)] == [
        7,
        1,
        0,
    ]


def test_the_file_is_written_anew_when_most_of_it_is_past(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(str(path))
    for number in range(1_200):
        log.record(refused(), START_MS + number)
        flush(log)
    lines = len(path.read_bytes().splitlines())
    assert lines < 1_100
    assert sum(e.count for e in EventLog(str(path)).newest("team", 99, START_MS)) == 1_200
