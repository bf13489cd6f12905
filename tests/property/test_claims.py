"""The law of claims: whatever others do, a namespace is never refused what it has claimed."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import drawdown
from ledger.admission import Demand, evaluate
from ledger.capacity import node_of
from ledger.exposure import LIMITED
from ledger.refusal import Refusal
from ledger.reservation import Reservation
from ledger.resources import DIMENSIONS, OptionalResources, Resources
from ledger.state import Put, State
from ledger.tables import Node
from tests.property.walk import SPACES, Step, nodes, start_state, steps, walk
from tests.unit.ledger.samples import FACTS, NOW, POLICY

# Neither does the host shrink, nor does memory that retires use more than it had requested: then
# the host can't hold what it has promised, whoever is asked.
STEADY = (
    *("reserve",) * 5,
    *("start", "run", "stop", "retire", "retire", "release", "quota", "ticket"),
    *("claim",) * 3,
)
TIGHT = replace(POLICY, max_exposure=tuple((name, 1, 2) for name in LIMITED))
"""Half of what there is may be used by all together: the bound goes behind what is claimed."""
PARTS = st.tuples(*(st.integers(0, 8) for _ in DIMENSIONS))


def undrawn(state: State, namespace: str) -> Resources | None:
    """Return what *namespace* has claimed and its entries do not hold, from the rows alone."""
    claim = state.claim_of(namespace)
    if claim is None:
        return None
    held = Resources()
    for row in state.reservations():
        if row.namespace == namespace:
            gpu = row.charged.gpu_memory_bytes if row.gpu_device == claim.gpu_device else 0
            held = held.plus(replace(row.charged, gpu_memory_bytes=gpu))
    return claim.amount.minus(held)


def broken_promises(state: State, parts: tuple[int, ...]) -> list[tuple[str, str]]:
    """Return (namespace, dimension) of which a part of what is claimed would be refused."""
    found = []
    for namespace in SPACES:
        rest = undrawn(state, namespace)
        if rest is None:
            continue
        wanted = Resources(
            *(amount * part // 8 for amount, part in zip(rest.amounts(), parts, strict=True))
        )
        decision = evaluate(state, FACTS, Demand(namespace, wanted), NOW, TIGHT)
        if isinstance(decision, Refusal):
            found += [
                (namespace, short.dimension)
                for short in decision.shortfalls
                if short.gate in ("node", "namespace-claim", "node-exposure")
            ]
    return found


def live(node: Node, plan: list[Step], parts: tuple[int, ...]) -> None:
    state = start_state(node)
    calm = [replace(step, amount=Resources()) if step.kind == "retire" else step for step in plan]
    for _ in walk(state, calm):
        assert broken_promises(state, parts) == []
        assert all(
            amount >= 0
            for (account, _), amount in state.balances().items()
            if account != "capacity"
        )


@given(nodes(), steps(STEADY), PARTS)
def test_what_is_claimed_is_never_refused(
    node: Node, plan: list[Step], parts: tuple[int, ...]
) -> None:
    live(node, plan, parts)


PUT = drawdown.drawdown_put


def give_back_too_early(
    view: State, before: Reservation | None, after: Reservation | None
) -> tuple[Put, ...]:
    """Let what retires be drawn no more, though the host still holds it."""
    retires = before is not None and after is not None
    return PUT(view, before, None if retires else after)


def random_life(number: int) -> tuple[Node, list[Step], tuple[int, ...]]:
    """Return a host, a crowded life on it, and the parts of what is claimed that are asked for."""
    random = Random(number)
    host = node_of(Resources(6000, 60, 60, 0, 9), Resources(), "1", (("gpu-0", 8), ("gpu-1", 12)))
    most = Resources(2500, 25, 25, 8, 3).amounts()
    plan = [
        Step(
            random.choice(STEADY),
            random.randrange(32),
            random.choice(SPACES),
            Resources(*(random.choice((0, random.randint(0, amount))) for amount in most)),
            random.random() < 0.5,
            OptionalResources(),
            host,
        )
        for _ in range(STEPS_OF_A_LIFE)
    ]
    return host, plan, tuple(random.choice((4, 8)) for _ in DIMENSIONS)


LIVES, STEPS_OF_A_LIFE = 60, 60


def test_crowded_lives_keep_the_law() -> None:
    for number in range(LIVES):
        live(*random_life(number))


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ("ledger.transitions.drawdown_put", give_back_too_early),
        ("ledger.transitions.drawdown_put", lambda *_: ()),
        ("ledger.claims._over_node", lambda *_: ()),
        ("ledger.admission.claimed_account", lambda _: "nobody's"),
    ],
)
def test_control_a_broken_claim_is_caught(
    monkeypatch: pytest.MonkeyPatch, target: str, broken: Callable[..., object]
) -> None:
    monkeypatch.setattr(target, broken)
    with pytest.raises(AssertionError):
        test_crowded_lives_keep_the_law()
