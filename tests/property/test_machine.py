"""Random lives of a ledger, 200,000 steps in CI and a million in the long form, against a dict."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from ledger.codec import Commit
from ledger.errors import AxernError
from ledger.journal import Scan
from ledger.state import Change, State
from tests.conftest import LONG
from tests.property.machine import LedgerMachine

STEPS = 1_000_000 if LONG else 200_000
SHARDS = 8
LIVES = 25
STEPS_A_LIFE = 200

QUIET = settings(
    deadline=None,
    database=None,
    max_examples=LIVES,
    stateful_step_count=STEPS_A_LIFE,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def live(shard: int, lives: settings = QUIET) -> int:
    """Run the machine once more in *shard* and return how many steps that were.

    The CI form fixes the seeds, so that it is the same on every run; the long form does not.
    """
    before = LedgerMachine.executed
    run_state_machine_as_test(
        LedgerMachine if LONG else seed(shard)(type("Seeded", (LedgerMachine,), {})), settings=lives
    )
    return LedgerMachine.executed - before


@pytest.mark.first
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.timeout(3600 if LONG else 300)
def test_the_ledger_lives_as_its_model_does(shard: int) -> None:
    share, executed, turn = STEPS // SHARDS, 0, 0
    while executed < share:
        executed += live(shard + SHARDS * turn)
        turn += 1
    assert executed >= share


def drop_the_last_line(scan: Scan) -> Iterator[Commit]:
    held = None
    for commit in WHOLE(scan):
        if held is not None:
            yield held
        held = commit


def forget_a_posting(state: State, change: Change) -> None:
    APPLY(
        state,
        Change(change.operation, change.puts, change.postings[1:], result=change.result),
    )


def forget_a_row(state: State, change: Change) -> None:
    APPLY(state, Change(change.operation, change.puts[:1], change.postings, result=change.result))


def admit_everything(*_: object) -> Iterator[object]:
    yield from ()


WHOLE, APPLY = Scan.__iter__, State.apply


CONTROL_SHARDS = 10
"""A part of what the test lives: what is drawn depends on which modules are loaded."""


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("ledger.journal.Scan.__iter__", drop_the_last_line),
        ("ledger.state.State.apply", forget_a_posting),
        ("ledger.state.State.apply", forget_a_row),
        ("ledger.admission._node_shortfalls", admit_everything),
        ("ledger.journal.looks_torn", lambda *_: False),
    ],
)
def test_control_a_broken_ledger_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(target, broken)
    few = settings(QUIET, stateful_step_count=50, phases=[Phase.generate])
    with pytest.raises((AssertionError, AxernError)):
        list(map(partial(live, lives=few), range(CONTROL_SHARDS)))
