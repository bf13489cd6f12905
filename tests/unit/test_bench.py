"""What the benchmarks claim of a killed daemon is compared exactly: nothing lost, nothing more."""

from bench.peers.daemon import contradictions

TOLD = {"held": {"a", "b"}, "leaving": {"c"}, "asked": {"name-1"}}
FILLED = {"f"}


def test_what_was_acknowledged_and_what_may_be_is_no_contradiction() -> None:
    kept = {"a": "x", "b": "y", "f": ""}
    assert contradictions(TOLD, kept, FILLED) == []
    assert contradictions(TOLD, kept | {"c": "z", "d": "name-1"}, FILLED) == []


def test_control_a_lost_one_and_one_too_many_are_found() -> None:
    assert contradictions(TOLD, {"a": "x", "f": ""}, FILLED) == ["b is lost"]
    assert contradictions(TOLD, {"a": "x", "b": "y"}, FILLED) == ["f is lost"]
    more = {"a": "x", "b": "y", "f": "", "d": "name-2"}
    assert contradictions(TOLD, more, FILLED) == ["d was not asked for"]
