"""The phases and who may follow whom; when a silent owner is stale or expired."""

from dataclasses import replace

import pytest

from ledger.errors import StateConflict
from ledger.reservation import (
    EXTERNAL,
    PHASES,
    RELEASED,
    TRANSITIONS,
    LivenessPolicy,
    Reservation,
    liveness,
    require_transition,
)
from tests.unit.ledger.samples import NOW, ask, host_state, later, proposal, reserve

FOLLOWS = {
    ("reserved", "starting"),
    ("reserved", "stopping"),
    ("reserved", "retiring"),
    ("reserved", "released"),
    ("starting", "running"),
    ("starting", "stopping"),
    ("starting", "retiring"),
    ("running", "stopping"),
    ("running", "retiring"),
    ("stopping", "retiring"),
    ("retiring", "released"),
}
POLICY = LivenessPolicy(stale_after_ms=120_000, legacy_window_ms=2_700_000)


def made(ttl_ms: int | None = None, kind: str = "run") -> Reservation:
    return reserve(host_state(), proposal("r", ask(cpu=1), ttl_ms=ttl_ms, kind=kind))


@pytest.mark.parametrize("source", PHASES)
@pytest.mark.parametrize("target", [*PHASES, RELEASED])
def test_the_table_is_the_whole_truth(source: str, target: str) -> None:
    entry = replace(made(), phase=source)
    if (source, target) in FOLLOWS:
        require_transition(entry, target)
        return
    with pytest.raises(StateConflict, match=f"is {source} and can't become {target}") as caught:
        require_transition(entry, target)
    assert caught.value.hint is not None


def test_released_is_reachable_from_everywhere_and_never_stored() -> None:
    assert RELEASED not in PHASES
    for phase in PHASES:
        reached, frontier = {phase}, [phase]
        while frontier:
            for follower in TRANSITIONS.get(frontier.pop(), ()):
                if follower not in reached:
                    reached.add(follower)
                    frontier.append(follower)
        assert RELEASED in reached


def test_only_an_external_lease_is_no_sandbox() -> None:
    assert made().is_sandbox
    assert not made(kind=EXTERNAL).is_sandbox
    assert made(kind=EXTERNAL).lane is None
    assert made().lane is not None


@pytest.mark.parametrize(
    ("ttl_ms", "beat_s", "at_s", "standing"),
    [
        (None, None, 0, "active"),
        (None, None, 2699.999, "active"),
        (None, None, 2700, "expired"),
        (None, 0, 119.999, "active"),
        (None, 0, 120, "stale"),
        (None, 0, 99_999, "stale"),
        (None, 99_990, 99_999, "active"),
        (10_000, None, 9.999, "active"),
        (10_000, None, 10, "expired"),
        (10_000, 9.9, 10, "expired"),
        (9_999_999, None, 2700, "active"),
    ],
)
def test_liveness(ttl_ms: int | None, beat_s: float | None, at_s: float, standing: str) -> None:
    beat_ms = None if beat_s is None else later(NOW, beat_s).monotonic_ms
    assert liveness(made(ttl_ms), beat_ms, later(NOW, at_s), POLICY) == standing


def test_a_wall_clock_jump_changes_nothing() -> None:
    jumped = replace(NOW, wall_ms=NOW.wall_ms + 10**12)
    assert liveness(made(10_000), NOW.monotonic_ms, jumped, POLICY) == "active"


def test_suspend_moves_deadlines_but_not_staleness() -> None:
    resumed = replace(NOW, boottime_ms=NOW.boottime_ms + 3_600_000)
    assert liveness(made(), NOW.monotonic_ms, resumed, POLICY) == "active"
    assert liveness(made(10_000), NOW.monotonic_ms, resumed, POLICY) == "expired"
