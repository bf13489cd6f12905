"""Random decisions, many for little: one walk of the ledger gives a question at each of its steps.

Drawn by a seeded generator and not by hypothesis, whose drawing costs a hundred times what is
tested here. A failure names its seed, and `cases(seed)` is the same again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from ledger.admission import AdmissionPolicy, Demand
from ledger.capacity import node_of
from ledger.errors import AxernError
from ledger.facts import Facts
from ledger.postings import change
from ledger.resources import OptionalResources, Resources
from ledger.rights import READ, ROOT, Caller, by_default
from ledger.state import Change, Put, State
from ledger.tables import RESERVATIONS, Node
from tests.property.walk import DEVICES, MOST, OPERATIONS, SPACES, Step, start_state
from tests.unit.ledger.samples import NOW, do, entry

KINDS = (
    *("reserve",) * 9,
    *("start", "run", "stop", "retire", "release"),
    *("observe", "quota", "claim", "ticket", "deadline"),
)
STEPS = 50


VIEWERS = (
    ROOT,
    by_default(1000),
    by_default(4242),
    Caller(4242, frozenset({READ}), frozenset({SPACES[0]})),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A demand on a state, and all that the decision depends on."""

    state: State
    facts: Facts
    demand: Demand
    policy: AdmissionPolicy
    viewer: Caller


def questions(seed: int) -> Iterator[Question]:
    """Yield a question after each step of the walk of *seed*; the state goes on changing."""
    random = Random(seed)
    state = start_state(_node(random))
    for number in range(STEPS):
        _step(random, state, number)
        yield Question(
            state,
            _facts(random),
            Demand(random.choice(SPACES), _amounts(random), random.choice([(), (), (), ("a",)])),
            AdmissionPolicy(random.choice([3, 9, 99]), random.choice([2, 9, 99])),
            random.choice(VIEWERS),
        )


def _step(random: Random, state: State, number: int) -> None:
    kind = random.choice(KINDS)
    step = Step(
        kind,
        random.randrange(32),
        random.choice(SPACES),
        _amounts(random, MOST if random.random() < 0.2 else Resources(1500, 14, 14, 5, 2)),
        random.random() < 0.5,
        _quota(random),
        _node(random),
    )
    try:
        made = (
            _deadline(state, step) if kind == "deadline" else OPERATIONS[kind](state, step, number)
        )
    except AxernError:
        return
    if made is not None:
        do(state, made)


def _deadline(state: State, step: Step) -> Change | None:
    keys = [row.id for row in state.reservations()]
    if not keys:
        return None
    row = entry(state, keys[step.which % len(keys)])
    moved = replace(row, expires_boottime_ms=NOW.boottime_ms + 1_000 * step.which)
    return change(state, "deadline", (Put(RESERVATIONS, row.id, moved),))


def _amounts(random: Random, most: Resources = MOST) -> Resources:
    return Resources(*(random.randint(0, amount) for amount in most.amounts()))


def _quota(random: Random) -> OptionalResources:
    some = (random.randint(0, 2 * most) for most in MOST.amounts())
    return OptionalResources(*(amount if random.random() < 0.3 else None for amount in some))


def _node(random: Random) -> Node:
    host = Resources(*(random.randint(amount // 2, 3 * amount) for amount in MOST.amounts()))
    sizes = [random.randint(1, 16) for _ in range(random.randint(0, len(DEVICES)))]
    return node_of(
        replace(host, gpu_memory_bytes=0),
        Resources(random.randint(0, 100), random.randint(0, 2)),
        random.choice(["1", "1.5", "0.9", "2.333"]),
        tuple(zip(DEVICES, sizes, strict=False)),
    )


def _facts(random: Random) -> Facts:
    def maybe() -> int | None:
        return random.randint(0, 80) if random.random() < 0.3 else None

    return Facts(
        sequence=random.randint(1, 99),
        observed_monotonic_ms=NOW.monotonic_ms - random.choice([0, 0, 0, 0, 20_000]),
        capabilities=random.choice([("a",), ("a",), ()]),
        storage_free_bytes=maybe(),
        storage_written_bytes=maybe(),
        storage_reserve_bytes=random.randint(0, 20),
        sandboxes_memory_bytes=maybe(),
    )
