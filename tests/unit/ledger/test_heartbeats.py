"""Beats are kept in memory and written all together, rarely."""

from ledger.heartbeats import Heartbeats
from tests.unit.ledger.samples import NOW, later


def test_beats_are_written_at_once_and_then_every_interval() -> None:
    beats = Heartbeats({"old": 1}, persist_every_ms=15_000)
    assert beats.take_due(NOW) == {}
    beats.beat("a", NOW)
    assert beats.take_due(NOW) == {"a": NOW.monotonic_ms}
    beats.beat("a", later(NOW, 1))
    beats.beat("b", later(NOW, 2))
    assert beats.take_due(later(NOW, 14.999)) == {}
    due = beats.take_due(later(NOW, 15))
    assert due == {"a": NOW.monotonic_ms + 1000, "b": NOW.monotonic_ms + 2000}
    assert beats.take_due(later(NOW, 60)) == {}


def test_what_was_persisted_counts_until_it_beats() -> None:
    beats = Heartbeats({"old": 1})
    assert beats.beats == {"old": 1}
    beats.beat("old", NOW)
    assert beats.beats == {"old": NOW.monotonic_ms}


def test_a_forgotten_entry_is_never_written() -> None:
    beats = Heartbeats({})
    beats.beat("a", NOW)
    beats.forget("a")
    beats.forget("never seen")
    assert beats.take_due(NOW) == {}
    assert beats.beats == {}


def test_the_persisted_mapping_is_not_shared() -> None:
    persisted = {"a": 1}
    Heartbeats(persisted).forget("a")
    assert persisted == {"a": 1}


def test_what_has_ended_is_dropped() -> None:
    beats = Heartbeats({"gone": 1})
    beats.beat("here", NOW)
    beats.retain(lambda key: key == "here")
    assert dict(beats.beats) == {"here": NOW.monotonic_ms}
    assert beats.take_due(NOW) == {"here": NOW.monotonic_ms}
