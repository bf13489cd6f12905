"""The laws of the queue, over random lives; and controls, each a queue that breaks one of them."""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from ledger.errors import AxernError, InvariantViolation
from ledger.postings import change
from ledger.queue import Waiter
from ledger.state import Change, Put, State
from ledger.tables import WAITS, Ticket
from tests.conftest import LONG
from tests.property.queue_machine import QueueMachine

LIVES = 400 if LONG else 20
SHARDS = 4
CONTROL_SHARDS = 10
"""What is drawn depends on which modules are loaded."""
LIFE = settings(
    deadline=None,
    database=None,
    max_examples=LIVES,
    stateful_step_count=50,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def live(shard: int, lives: settings = LIFE) -> None:
    """Live the lives of *shard*; the CI form has the same ones on every run."""
    run_state_machine_as_test(
        QueueMachine if LONG else seed(shard)(type("Seeded", (QueueMachine,), {})), settings=lives
    )


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_queue_keeps_its_laws(shard: int) -> None:
    granted = QueueMachine.grants
    live(shard)
    assert QueueMachine.grants - granted > LIVES  # else it was about nothing


def count_nobody(view: State, waiter: Waiter) -> Change:
    put = Put(WAITS, waiter.ticket.id, waiter.wait)
    return change(view, "bypass", (put,))


def hold_nothing(_: State, waiter: Waiter) -> Ticket:
    return waiter.ticket


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("ledger.granting.room_at", lambda *_: -1),
        ("ledger.granting.Granting.forget", lambda *_: None),
        ("ledger.granting.Granting._passed_by", lambda *_: None),
        ("ledger.granting.Granting._keeps", lambda *_: True),
        ("ledger.granting.Granting.look", lambda *_: None),
        ("ledger.granting._is_of_node", lambda *_: False),
        ("ledger.tickets.bypass", count_nobody),
        ("ledger.tickets._holding", hold_nothing),
    ],
)
def test_control_a_broken_queue_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(target, broken)
    few = settings(LIFE, max_examples=40, phases=[Phase.generate])
    with pytest.raises((AssertionError, AxernError, InvariantViolation)):
        list(map(partial(live, lives=few), range(CONTROL_SHARDS)))
