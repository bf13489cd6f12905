"""Proofs, doubts and losses of capabilities, on a clock by hand."""

import errno
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.errors import CapabilityMissing, HostError
from axern.host import capabilities, project_quota
from axern.host.capabilities import (
    AVAILABLE,
    DEPENDENCY_UNAVAILABLE,
    DISABLED,
    EXPIRED,
    FAIL_STOP,
    IDENTITY_CHANGED,
    PENDING,
    PROBE_ERROR,
    PROBE_FAILED,
    RECOVERY_PENDING,
    Capability,
    Denied,
    Outcome,
    Proved,
    Row,
    Unclear,
    attempt,
)
from axern.host.standings import RETRY_MOST_MS, Proof, Standings

BASE, TOP = "base", "top"
YES, NO, WHO_KNOWS = Proved("it works"), Denied("it can't", "buy one"), Unclear("it is late")


def row(key: str, *needs: str, is_self_test: bool = False) -> Row:
    unused = str
    return Row(key, key.title(), FAIL_STOP, unused, unused, needs, is_self_test=is_self_test)


class Scene:
    """Two rows, the second of which needs the first."""

    def __init__(self, *rows: Row, proofs: dict[str, Proof] | None = None) -> None:
        self.rows = rows or (row(BASE), row(TOP, BASE))
        self.standings = Standings(self.rows, proofs)
        self.now_ms = 1_000_000
        self.identities: dict[str, Outcome] = {each.key: Proved("1") for each in self.rows}
        self.outcomes: dict[str, Outcome] = dict.fromkeys(self.identities, YES)
        self.probed: list[str] = []

    def sweep(self, after_ms: int = 5000) -> None:
        self.now_ms += after_ms
        for key, reading in self.identities.items():
            self.standings.see(key, reading, self.now_ms)
        while due := self.standings.due(self.now_ms):
            key = due[0].key
            identity = self.standings.identity(key)
            assert identity is not None
            self.probed.append(key)
            self.standings.tell(key, identity, self.outcomes[key], self.now_ms)

    def item(self, key: str) -> Capability:
        found = self.standings.snapshot(self.now_ms).find(key)
        assert found is not None
        return found

    def codes(self) -> tuple[str, ...]:
        return tuple(item.code for item in self.standings.snapshot(self.now_ms).capabilities)


def test_nothing_is_present_before_it_is_proved() -> None:
    scene = Scene()
    assert scene.codes() == (PENDING, PENDING)
    scene.sweep()
    assert scene.codes() == (AVAILABLE, AVAILABLE)
    assert scene.item(BASE).message == "it works"


def test_what_is_proved_is_not_probed_again() -> None:
    scene = Scene()
    for _ in range(100):
        scene.sweep()
    assert scene.probed == [BASE, TOP]


def test_a_changed_identity_is_proved_again_and_counts_for_nothing_until_then() -> None:
    scene = Scene()
    scene.sweep()
    scene.standings.see(TOP, Proved("2"), scene.now_ms)
    assert scene.item(TOP).code == IDENTITY_CHANGED
    scene.identities[TOP] = Proved("2")
    scene.sweep()
    assert (scene.probed, scene.codes()) == ([BASE, TOP, TOP], (AVAILABLE, AVAILABLE))


def test_a_changed_need_has_what_stands_on_it_proved_again() -> None:
    scene = Scene()
    scene.sweep()
    scene.identities[BASE] = Proved("2")
    scene.sweep()
    assert scene.probed == [BASE, TOP, BASE, TOP]


def test_without_its_need_nothing_is_probed_and_the_needs_reason_is_told() -> None:
    scene = Scene()
    scene.outcomes[BASE] = NO
    scene.sweep()
    item = scene.item(TOP)
    assert (item.code, item.message, item.remedy) == (DEPENDENCY_UNAVAILABLE, "it can't", "buy one")
    assert scene.item(BASE).code == PROBE_FAILED
    assert scene.probed == [BASE]


def test_one_reading_that_fails_withdraws_nothing() -> None:
    scene = Scene()
    scene.sweep()
    scene.identities[BASE] = WHO_KNOWS
    scene.sweep(5000)
    scene.sweep(5000)
    assert scene.codes() == (AVAILABLE, AVAILABLE)
    scene.sweep(5001)
    assert scene.codes() == (EXPIRED, DEPENDENCY_UNAVAILABLE)
    assert scene.item(BASE).message == "not seen for more than 15 s: it is late"


def test_what_has_expired_must_be_seen_twice() -> None:
    scene = Scene()
    scene.sweep()
    scene.identities[BASE] = WHO_KNOWS
    scene.sweep(16_000)
    scene.identities[BASE] = again = Proved("1")
    scene.sweep(1000)
    assert scene.item(BASE).code == RECOVERY_PENDING
    scene.identities[BASE] = WHO_KNOWS
    scene.sweep(1000)
    scene.identities[BASE] = again
    scene.sweep(4000)
    assert scene.item(BASE).code == RECOVERY_PENDING  # the failure between began it anew
    scene.sweep(5000)
    assert scene.codes() == (AVAILABLE, AVAILABLE)
    assert scene.probed == [BASE, TOP]


def test_a_definite_no_counts_at_once_and_its_end_must_be_seen_twice() -> None:
    scene = Scene()
    scene.sweep()
    scene.identities[BASE] = NO
    scene.sweep(1)
    assert scene.codes() == (PROBE_FAILED, DEPENDENCY_UNAVAILABLE)
    scene.identities[BASE] = Proved("1")
    scene.sweep()
    assert scene.item(BASE).code == RECOVERY_PENDING
    scene.sweep()
    assert scene.codes() == (AVAILABLE, AVAILABLE)


def test_a_self_test_needs_one_success_to_recover() -> None:
    scene = Scene(row(BASE, is_self_test=True))
    scene.sweep()
    scene.identities[BASE] = WHO_KNOWS
    scene.sweep(16_000)
    scene.identities[BASE] = Proved("1")
    scene.sweep()
    assert scene.codes() == (AVAILABLE,)


def test_a_failed_probe_is_tried_again_after_growing_pauses() -> None:
    scene = Scene(row(BASE))
    scene.outcomes[BASE] = WHO_KNOWS
    tries = []
    for second in range(1300):
        before = len(scene.probed)
        scene.sweep(1000)
        if len(scene.probed) > before:
            tries.append(second)
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert RETRY_MOST_MS == 300_000
    assert scene.item(BASE).code == PROBE_ERROR
    scene.identities[BASE] = Proved("2")  # something was changed, so it is tried at once
    scene.outcomes[BASE] = YES
    scene.sweep(1)
    assert scene.item(BASE).present


def test_an_old_proof_of_a_self_test_is_taken_on_only_for_what_it_stands_on() -> None:
    rows = (row(BASE, is_self_test=True),)
    kept = Scene(*rows)
    kept.sweep()
    proofs = kept.standings.proofs()
    assert proofs == {BASE: Proof("1", "it works")}
    again = Scene(*rows, proofs=proofs)
    again.sweep()
    assert (again.probed, again.codes()) == ([], (AVAILABLE,))
    other = Scene(*rows, proofs={BASE: Proof("0", "it works")})
    assert other.codes() == (PENDING,)
    other.sweep()
    assert other.probed == [BASE]


def test_control_a_proof_of_another_kind_is_never_taken_on() -> None:
    scene = Scene(row(BASE), proofs={BASE: Proof("1", "it works")})
    scene.sweep()
    assert scene.probed == [BASE]


def test_a_probe_that_took_long_proves_what_it_began_with() -> None:
    scene = Scene(row(BASE, is_self_test=True))
    scene.standings.see(BASE, Proved("1"), scene.now_ms)
    scene.standings.see(BASE, Proved("2"), scene.now_ms)  # replaced while the probe ran
    scene.standings.tell(BASE, "1", YES, scene.now_ms)
    assert not scene.item(BASE).present


def test_a_doubt_takes_no_definite_no_back() -> None:
    scene = Scene()
    scene.sweep()
    scene.identities[BASE] = NO
    scene.sweep(1)
    scene.identities[BASE] = WHO_KNOWS
    scene.sweep(1)
    assert scene.codes() == (PROBE_FAILED, DEPENDENCY_UNAVAILABLE)
    assert scene.standings.is_denied(BASE)
    scene.identities[BASE] = Proved("1")
    scene.sweep(1)
    assert scene.item(BASE).code == RECOVERY_PENDING


def test_the_configuration_rules_out_only_what_could_be() -> None:
    ruled_out = replace(row(TOP, BASE), disabled="nothing is enforced")
    scene = Scene(row(BASE), ruled_out)
    scene.sweep()
    assert (scene.item(TOP).code, scene.item(TOP).message) == (DISABLED, "nothing is enforced")
    assert scene.probed == [BASE]
    scene = Scene(row(BASE), ruled_out)
    scene.outcomes[BASE] = NO
    scene.sweep()
    assert scene.item(TOP).message == "it can't"  # the host's own reason says more


def test_the_generation_grows_with_each_change_and_only_then() -> None:
    scene = Scene()
    first = scene.standings.snapshot(scene.now_ms).generation
    assert scene.standings.snapshot(scene.now_ms).generation == first
    scene.sweep()
    second = scene.standings.snapshot(scene.now_ms).generation
    scene.sweep()
    assert scene.standings.snapshot(scene.now_ms).generation == second == first + 1


def test_what_a_probe_raises_is_an_outcome() -> None:
    def missing() -> str:
        raise CapabilityMissing("no quotas", syscall="quotactl", hint="mount it so")

    def fails() -> str:
        raise HostError("it broke", syscall="read")

    def refused() -> str:
        raise PermissionError(13, "Permission denied", "/x")

    assert attempt(lambda: "done") == Proved("done")
    assert attempt(missing) == Denied("no quotas", "mount it so")
    assert attempt(fails) == Unclear("it broke")
    assert attempt(refused) == Unclear("/x: Permission denied")
    with pytest.raises(KeyError):
        attempt(lambda: EMPTY["a bug is no outcome"])


EMPTY: dict[str, str] = {}


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EMFILE, Unclear), (errno.ENOMEM, Unclear), (errno.ENOSYS, Denied)]
)
def test_a_process_that_lacks_something_for_now_says_nothing_of_the_host(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Outcome]
) -> None:
    """Else one sweep without a descriptor would end whatever has a limit on storage."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    def ask() -> str:
        project_quota.require_enforced("/var")
        return "it has quotas"

    monkeypatch.setattr(os, "open", refuse)
    assert isinstance(attempt(ask), kind)


OUTCOMES = st.sampled_from([YES, NO, WHO_KNOWS])
READINGS = st.sampled_from([Proved("1"), Proved("1"), Proved("2"), NO, WHO_KNOWS])
STEPS = st.lists(
    st.tuples(st.integers(1, 40_000), READINGS, READINGS, OUTCOMES, OUTCOMES), max_size=30
)


@given(STEPS)
def test_what_is_present_was_proved_lately_on_what_is_there_now(
    steps: list[tuple[int, Outcome, Outcome, Outcome, Outcome]],
) -> None:
    """Whatever is seen: present means needs present, a success on this identity, seen in time."""
    scene = Scene()
    proved: set[tuple[str, str]] = set()
    seen_ms: dict[str, int] = {}
    for after_ms, base, top, base_outcome, top_outcome in steps:
        scene.identities = {BASE: base, TOP: top}
        scene.outcomes = {BASE: base_outcome, TOP: top_outcome}
        probed = len(scene.probed)
        scene.sweep(after_ms)
        for key, reading in scene.identities.items():
            if isinstance(reading, Proved):
                seen_ms[key] = scene.now_ms
        for key in scene.probed[probed:]:
            if isinstance(scene.outcomes[key], Proved):
                proved.add((key, str(scene.standings.identity(key))))
        for item in scene.standings.snapshot(scene.now_ms).capabilities:
            assert item.code in capabilities.CODES
            if item.present:
                assert (item.key, str(scene.standings.identity(item.key))) in proved
                assert not isinstance(scene.identities[item.key], Denied)
                assert scene.now_ms - seen_ms[item.key] <= capabilities.VALID_MS
                assert item.key == BASE or scene.item(BASE).present
