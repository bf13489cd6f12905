"""A group commit answers as its operations one after another would, however many come at once."""

import asyncio
import tempfile
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import reader, transitions
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.committer import Committer
from ledger.errors import AdmissionRefused, AxernError
from ledger.resources import Resources
from ledger.staging import Operation
from ledger.store import Ledger
from tests.property.machine import MEMORY, anything
from tests.property.model import SPACES, Model, Observe, Op
from tests.property.model_namespaces import Space
from tests.unit.ledger.samples import FACTS, NOW, POLICY, ask, proposal

FIRST = (Observe(amounts=(4000, 40, 6)), *(Space(namespace=name) for name in SPACES))


def operations(ops: list[Op], now: Now) -> list[Operation]:
    """Return what a ledger is handed, with the entries chosen as the model would have them."""
    model = Model(now)
    made: list[Operation] = []
    for op in (*FIRST, *ops):
        bound = op.bind(model)
        bound.expect(model, now)
        made.append(partial(bound.change, now=now))
    return made


def answer(outcome: object) -> object:
    """Return what must not depend on the company: the result, or the code and the shortfalls."""
    if isinstance(outcome, AdmissionRefused):
        return outcome.code, outcome.refusal.shortfalls
    return outcome.code if isinstance(outcome, AxernError) else outcome


async def submit_all(ledger: Ledger, wanted: list[Operation]) -> list[object]:
    committer = Committer(ledger, lambda: NOW)
    outcomes = await asyncio.gather(
        *(committer.submit(operation) for operation in wanted), return_exceptions=True
    )
    await committer.close()
    return list(outcomes)


def commit_each(ledger: Ledger, wanted: list[Operation]) -> list[object]:
    outcomes: list[object] = []
    for operation in wanted:
        try:
            outcomes.append(ledger.commit(operation, NOW))
        except AxernError as error:
            outcomes.append(error)
    return outcomes


@given(st.lists(anything, max_size=30))
def test_together_is_one_after_another(ops: list[Op]) -> None:
    wanted = operations(ops, NOW)
    with (
        tempfile.TemporaryDirectory(prefix="axern-", dir=MEMORY) as folder,
        Ledger.open(f"{folder}/one", NOW, segment_bytes=4096) as one,
        Ledger.open(f"{folder}/many", NOW, segment_bytes=4096) as many,
    ):
        apart = commit_each(one, wanted)
        together = asyncio.run(submit_all(many, wanted))
        assert [answer(outcome) for outcome in together] == [answer(outcome) for outcome in apart]
        assert many.state.all_rows() == one.state.all_rows()
        assert many.state.balances() == one.state.balances()
        assert many.generation == 1


@pytest.mark.parametrize("room", [0, 1, 10, 64])
def test_of_sixty_four_at_once_as_many_as_fit_are_admitted(room: int) -> None:
    node = node_of(Resources(1000 * room + 999, 0, 0, 0, 100), Resources(), "1")

    def reserving(number: int) -> Operation:
        wanted = proposal(f"r{number}", ask(cpu=1000))
        return lambda view: transitions.reserve(view, wanted, FACTS, NOW, POLICY)

    with (
        tempfile.TemporaryDirectory(prefix="axern-", dir=MEMORY) as folder,
        Ledger.open(f"{folder}/ledger", NOW) as ledger,
    ):
        ledger.commit(lambda view: transitions.observe_node(view, node), NOW)
        outcomes = asyncio.run(submit_all(ledger, [reserving(n) for n in range(64)]))
        refused = [outcome for outcome in outcomes if isinstance(outcome, AdmissionRefused)]
        assert len(refused) == 64 - room
        written = reader.read(f"{folder}/ledger").state
        assert [entry.id for entry in written.reservations()] == [f"r{n}" for n in range(room)]
