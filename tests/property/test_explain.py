"""To explain is to decide: at one generation, on the same facts, `reserve` gets what was told."""

from dataclasses import replace

from ledger import transitions
from ledger.admission import Admitted, Demand, evaluate
from ledger.errors import AdmissionRefused
from ledger.reservation import Reservation
from tests.conftest import LONG
from tests.property.cases import STEPS, Question, questions
from tests.unit.ledger.samples import NOW, proposal

STATES = 100_000 if LONG else 5_000


def told(question: Question) -> object:
    """Return what `axern explain` would answer."""
    return evaluate(question.state, question.facts, question.demand, NOW, question.policy)


def got(question: Question) -> object:
    """Return what a request for the same then gets, without keeping it."""
    demand = question.demand
    wanted = replace(
        proposal("new", demand.requests, namespace=demand.namespace, requires=demand.requires),
        runtime=None,
    )
    assert replace(transitions.demand_of(wanted), limits=None) == demand
    try:
        made = transitions.reserve(
            question.state.fork(), wanted, question.facts, NOW, question.policy
        )
    except AdmissionRefused as error:
        return error.refusal
    assert isinstance(made.result, Reservation)
    return Admitted(question.state.generation, question.facts.sequence, made.result.gpu_device)


def test_explain_agrees_with_run() -> None:
    admitted = refused = 0
    for seed in range(STATES // STEPS):
        for number, question in enumerate(questions(seed)):
            said = told(question)
            assert got(question) == said, f"seed {seed}, question {number}"
            admitted += isinstance(said, Admitted)
            refused += not isinstance(said, Admitted)
    assert admitted + refused == STATES
    assert min(admitted, refused) > STATES // 50


def test_control_another_demand_is_seen() -> None:
    """The comparison would notice: most demands of one unit more are told something else."""
    differs = 0
    for question in questions(0):
        more = question.demand.requests.plus(question.demand.requests)
        other = replace(question, demand=Demand(question.demand.namespace, more))
        differs += told(question) != got(other)
    assert differs > STEPS // 2
