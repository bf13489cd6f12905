"""Each kind of planted damage is found under its code, and a sound ledger is clean."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ledger import transitions
from ledger.invariants import check, expected_balances, trial_balance
from ledger.resources import OptionalResources, Resources
from ledger.tables import Beat, Claim, LimitRange, RequestRecord
from tests.unit.ledger.samples import (
    GIB,
    NOW,
    add_claim,
    add_namespace,
    add_ticket,
    ask,
    do,
    host_state,
    node,
    proposal,
    reserve,
    rows_of,
)

Rows = dict[str, dict[str, Any]]
Balances = dict[tuple[str, str], int]


def sound() -> tuple[Rows, Balances]:
    """Return rows and balances of a ledger in which every kind of row holds something."""
    state = host_state(node(gpus=(("g", 10),)))
    add_namespace(state, "team")
    add_claim(state, "team", ask(1000, 2 * GIB, 0, 8), device="g")
    reserve(state, proposal("a", ask(100, GIB, gpu=5), namespace="team", request_id="q"))
    reserve(state, proposal("b", ask(200, GIB)))
    reserve(state, proposal("c", ask(300, GIB)))
    do(state, transitions.retire(state, "c", "exit", memory_bytes=2 * GIB))
    do(state, transitions.persist_beats(state, {"a": NOW.monotonic_ms}))
    add_ticket(state, ask(cpu=50))
    return dict(rows_of(state)), state.balances()


def put(table: str, key: str, **fields: object) -> Callable[[Rows], None]:
    def damage(rows: Rows) -> None:
        rows[table][key] = replace(rows[table][key], **fields)

    return damage


def move(table: str, source: str, target: str) -> Callable[[Rows], None]:
    def damage(rows: Rows) -> None:
        rows[table][target] = rows[table].pop(source)

    return damage


def stray(table: str, key: str, row: object) -> Callable[[Rows], None]:
    def damage(rows: Rows) -> None:
        rows[table][key] = row

    return damage


def drop(table: str, key: str) -> Callable[[Rows], None]:
    def damage(rows: Rows) -> None:
        del rows[table][key]

    return damage


def test_a_sound_ledger_is_clean() -> None:
    rows, balances = sound()
    assert check(rows, balances) == []
    assert expected_balances(rows) == balances


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (put("reservations", "b", charged=ask(201, GIB)), "charge-differs"),
        (put("reservations", "c", charged=ask(300, 1)), "charge-differs"),
        (put("reservations", "c", charged=ask(301, 2 * GIB)), "charge-differs"),
        (put("reservations", "b", requests=ask(-1, GIB)), "negative-amount"),
        (put("reservations", "b", limits=OptionalResources(cpu_milli=199)), "request-over-limit"),
        (put("reservations", "b", limits=OptionalResources(0)), "request-over-limit"),
        (put("reservations", "b", phase="released"), "unknown-phase"),
        (put("reservations", "b", lane=4096), "lane-out-of-range"),
        (put("reservations", "b", lane=-1), "lane-out-of-range"),
        (put("reservations", "b", namespace="nowhere"), "no-namespace"),
        (put("reservations", "a", gpu_device=None), "no-device"),
        (put("reservations", "a", gpu_device="h"), "drawdown-differs"),
        (put("reservations", "a", claim_id=None), "drawdown-differs"),
        (put("claims", "claim-team", amount=ask(99)), "claim-overdrawn"),
        (put("claims", "claim-team", gpu_device=None), "no-device"),
        (stray("claims", "x", Claim("x", "team", ask(1), ask(1), False, 0)), "two-claims"),
        (stray("limit_ranges", "x", LimitRange("nowhere")), "no-namespace"),
        (put("claims", "claim-team", drawdown=Resources()), "drawdown-differs"),
        (put("claims", "claim-team", namespace="nowhere"), "no-namespace"),
        (put("tickets", "ticket-1", held=ask(cpu=51)), "balance-differs"),
        (put("nodes", "node", effective_allocatable=Resources()), "balance-differs"),
        (put("nodes", "node", system_reserve=ask(cpu=1)), "balance-differs"),
        (put("nodes", "node", gpu_allocatable=()), "balance-differs"),
        (move("reservations", "b", "x"), "wrong-key"),
        (move("requests", "1000:q", "q"), "wrong-key"),
        (stray("reservations", "x", Beat(1)), "wrong-row"),
        (stray("beats", "x", Beat(1)), "beat-of-nobody"),
        (stray("requests", "x", RequestRecord("", "", 0)), "wrong-key"),
        (drop("reservations", "b"), "balance-differs"),
        (drop("namespaces", "default"), "no-default-namespace"),
        (drop("claims", "claim-team"), "balance-differs"),
        (drop("tickets", "ticket-1"), "balance-differs"),
    ],
)
def test_planted_damage_is_found(damage: Callable[[Rows], None], code: str) -> None:
    rows, balances = sound()
    damage(rows)
    found = {violation.code for violation in check(rows, balances)}
    assert code in found


def test_an_unknown_owner_is_found() -> None:
    rows, balances = sound()
    owner = replace(rows["reservations"]["b"].owner, kind="nobody")
    put("reservations", "b", owner=owner)(rows)
    assert [violation.code for violation in check(rows, balances)] == ["unknown-owner"]


def test_a_shared_lane_is_found() -> None:
    rows, balances = sound()
    put("reservations", "b", lane=rows["reservations"]["a"].lane)(rows)
    assert [violation.code for violation in check(rows, balances)] == ["lane-shared"]


def test_every_wrong_balance_is_found() -> None:
    rows, balances = sound()
    for key in balances:
        wrong = balances | {key: balances[key] + 1}
        (violation,) = check(rows, wrong)
        assert violation.code == "balance-differs"
        assert str(balances[key]) in violation.message
    (violation,) = check(rows, balances | {("committed:ghost", "cpu_milli"): 1})
    assert violation.code == "balance-differs"


def test_a_trial_balance_closes_or_says_where_it_does_not() -> None:
    start = {("headroom", "cpu_milli"): 5, ("capacity", "cpu_milli"): -5}
    moved = [("headroom", "cpu_milli", -5), ("committed:a", "cpu_milli", 5)]
    closing, violations = trial_balance(start, moved)
    assert closing == {("committed:a", "cpu_milli"): 5, ("capacity", "cpu_milli"): -5}
    assert violations == []
    _, violations = trial_balance(start, moved[:1])
    assert [violation.code for violation in violations] == ["out-of-balance"]
    assert "-5" in violations[0].message
