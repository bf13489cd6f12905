"""A refusal in words: at most twelve lines of eighty columns, with all that matters in them."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from axern.api.views import refusal_view
from axern.cli.refusal import COLUMNS, LINES, is_known, lines
from ledger import why
from ledger.admission import AdmissionPolicy, Demand, evaluate
from ledger.refusal import Refusal
from ledger.why import Case
from tests.property.cases import questions
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    MIB,
    NOW,
    add_namespace,
    ask,
    host_state,
    proposal,
    reserve,
)

Json = dict[str, Any]


def view_of(case: Case) -> Json:
    decision = evaluate(case.view, case.facts, case.demand, NOW, case.policy)
    assert isinstance(decision, Refusal)
    told = why.explain(case, decision)
    return refusal_view(replace(decision, explanation=told))


def full_host() -> Case:
    state = host_state()
    add_namespace(state, "n" * 63)
    for number in range(9):
        space = "n" * 63 if number == 4 else "default"
        amount = ask(cpu=300, memory=(number + 1) * GIB // 3)
        reserve(state, proposal(f"{number:032x}", amount, namespace=space, uid=4242))
    demand = Demand("default", ask(cpu=4000, memory=12 * GIB))
    return Case(state, FACTS, demand, NOW, AdmissionPolicy())


def test_a_full_host_in_words() -> None:
    assert lines(view_of(full_host())) == [
        "axern: refused: node CPU and memory capacity exhausted",
        "  [node_cpu_and_memory_capacity_exhausted]",
        "  node CPU: 4 asked for, 1300m left of 4, 2700m short",
        "  node memory: 12GiB asked for, 1.00GiB left of 16GiB, 11.00GiB short",
        "  300m CPU held by 000000000000, default, uid 4242, reserved",
        "  300m CPU held by 000000000000, default, uid 4242, reserved",
        "  3GiB memory held by 000000000000, default, uid 4242, reserved",
        "  2.66GiB memory held by 000000000000, default, uid 4242, reserved",
        "  it fits once 000000000000, 000000000000, 7 more have ended",
        "  it fits with --request-cpu 1300m --request-memory 1GiB",
        "  try again in 10s",
        "  hint: ask for less, or wait until something is released",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_it_always_fits_a_terminal(seed: int) -> None:
    for question in questions(seed):
        case = Case(
            question.state, question.facts, question.demand, NOW, question.policy,
            question.viewer,
        )  # fmt: skip
        decision = evaluate(case.view, case.facts, case.demand, NOW, case.policy)
        if not isinstance(decision, Refusal) or decision.reasons:
            continue
        error = view_of(case)
        assert is_known(error)
        shown = lines(error)
        assert len(shown) <= LINES
        assert max(map(len, shown)) <= COLUMNS
        assert decision.summary in shown[0]
        assert decision.code in " ".join(shown[:2])
        assert sum(" short" in line for line in shown) >= min(3, len(decision.shortfalls))
        assert sum(line.startswith("  it fits ") for line in shown) >= len(error["would_fit_if"])


def test_what_a_user_wrote_drives_no_terminal() -> None:
    error = view_of(full_host())
    error["holders"][0]["namespace"] = "a\x1b[31m" + "b" * 200
    error["hint"] = "\x07"
    assert all(line.isprintable() and len(line) <= COLUMNS for line in lines(error))


def test_amounts_of_a_smaller_request_are_rounded_down() -> None:
    error = view_of(full_host())
    for amount, shown in ((4 * GIB - 1, "4095MiB"), (MIB, "1MiB"), (MIB - 1, "1048575B")):
        error["would_fit_if"] = [{"request": {"memory_bytes": amount}}]
        assert f"  it fits with --request-memory {shown}" in lines(error)


def test_others_are_counted() -> None:
    error = view_of(full_host())
    ids = [f"{Random(number).getrandbits(128):032x}" for number in range(5)]
    for release, others, words in (
        (ids[:1], 0, f"{ids[0][:12]} has"),
        ([], 1, "1 of others has"),
        (ids[:1], 2, f"{ids[0][:12]}, 2 of others have"),
        (ids, 0, f"{ids[0][:12]}, {ids[1][:12]}, 3 more have"),
    ):
        error["would_fit_if"] = [{"release": release, "release_others": others, "fewest": True}]
        assert f"  it fits once {words} ended" in lines(error)
