"""What a refusal says beside its numbers is true: each way works, and no fewer releases do."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import pytest

from ledger import needs, tables, why
from ledger.admission import AdmissionPolicy, Demand, evaluate
from ledger.facts import Facts
from ledger.postings import change
from ledger.refusal import NODE_MEMORY_USE, Refusal
from ledger.resources import Resources
from ledger.state import Put
from ledger.tables import Claim
from ledger.why import Case, Explanation, Way
from tests.conftest import LONG
from tests.property.cases import questions
from tests.unit.ledger.samples import (
    FACTS,
    GIB,
    NOW,
    ask,
    host_state,
    proposal,
    reserve,
    rows_of,
)

SEEDS = range(1_000 if LONG else 40)
MOST_ENTRIES = 9
"""With more, all sets of entries can't be tried."""

Law = Callable[[Case, Refusal, Explanation], bool]
"""Asserts what holds; tells whether there was something to be seen."""


def released(told: Explanation) -> Way | None:
    ways = [way for way in told.would_fit_if if way.release or way.others]
    assert len(ways) <= 1
    return ways[0] if ways else None


def the_releases_suffice_and_fewer_do_not(case: Case, refusal: Refusal, told: Explanation) -> bool:
    entries = list(case.view.reservations())
    own = [row for row in entries if case.may_see(row)]
    way = released(told)
    if way is None:
        assert not case.fits(entries)
        return False
    assert set(way.release) <= {row.id for row in own}
    if way.others:
        assert case.fits(entries)
        assert not case.fits(own)
    else:
        assert case.fits([case.view.reservation(key) for key in way.release])
    assert way.is_fewest or len(refusal.shortfalls) > 1
    if way.is_fewest and len(entries) <= MOST_ENTRIES:
        size = len(way.release) + way.others
        for fewer in combinations(entries if way.others else own, size - 1):
            assert not case.fits(fewer)
    return True


def the_smaller_request_is_the_largest(case: Case, _: Refusal, told: Explanation) -> bool:
    demand = case.demand
    wanted = next((dict(way.requests) for way in told.would_fit_if if way.requests), {})
    less = replace(demand, requests=replace(demand.requests, **wanted))
    for name, amount in wanted.items():
        assert case.fits(demand=less)
        assert amount < getattr(demand.requests, name)
        more = replace(less, requests=replace(less.requests, **{name: amount + 1}))
        assert not case.fits(demand=more)
    return bool(wanted)


def the_earliest_fit_is_the_first_moment(case: Case, _: Refusal, told: Explanation) -> bool:
    ending = [row for row in case.view.reservations() if row.expires_boottime_ms is not None]
    if told.earliest_fit_wall_ms is None:
        assert not case.fits(ending)
        return False
    at_ms = NOW.boottime_ms + told.earliest_fit_wall_ms - NOW.wall_ms
    assert case.fits([row for row in ending if (row.expires_boottime_ms or 0) <= at_ms])
    assert not case.fits([row for row in ending if (row.expires_boottime_ms or 0) < at_ms])
    return True


def holders_add_up_and_others_have_no_name(case: Case, refusal: Refusal, told: Explanation) -> bool:
    sums: Counter[tuple[str, str]] = Counter()
    for holder in told.holders:
        sums[holder.gate, holder.dimension] += holder.amount
        assert holder.amount > 0
        if holder.kind == why.RESERVATION:
            assert case.may_see(case.view.reservation(holder.id or ""))
        elif not case.viewer.is_admin and holder.namespace not in case.viewer.namespaces:
            assert (holder.id, holder.namespace, holder.owner) == (None, None, None)
    exact = [
        each
        for each in refusal.shortfalls
        if not refusal.reasons and not each.gate.startswith("node-")
    ]
    for each in exact:
        assert sums[each.gate, each.dimension] == each.committed
    return bool(exact)


def nothing_is_changed(case: Case, refusal: Refusal, told: Explanation) -> bool:
    rows, balances, generation = rows_of(case.view), case.view.balances(), case.view.generation
    assert why.explain(case, refusal) == told
    after = (rows_of(case.view), case.view.balances(), case.view.generation)
    assert after == (rows, balances, generation)
    return bool(told.holders)


def waiting_helps_where_it_is_said_to(case: Case, refusal: Refusal, _: Explanation) -> bool:
    """Once all others are gone, and the host measures nothing in use, a waitable demand fits."""
    alone = case.view.fork()
    gone = [
        Put(table, key, None)
        for table in (tables.RESERVATIONS, tables.TICKETS, tables.CLAIMS)
        for key, row in alone.rows(table)
        if not (isinstance(row, Claim) and row.namespace == case.demand.namespace)
    ]
    own = alone.claim_of(case.demand.namespace)
    if own is not None:
        gone.append(Put(tables.CLAIMS, own.id, replace(own, drawdown=Resources())))
    alone.apply(change(alone, "all gone", tuple(gone)))
    idle = Facts(1, NOW.monotonic_ms, ("a",))
    fits = replace(case, view=alone, facts=idle).fits()
    if not refusal.reasons:
        assert refusal.waitable == fits
    return refusal.waitable


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        the_releases_suffice_and_fewer_do_not,
        the_smaller_request_is_the_largest,
        the_earliest_fit_is_the_first_moment,
        holders_add_up_and_others_have_no_name,
        nothing_is_changed,
        waiting_helps_where_it_is_said_to,
    )
}


@pytest.mark.parametrize("name", LAWS)
def test_what_is_said_is_true(name: str) -> None:
    seen = 0
    for seed in SEEDS:
        for number, question in enumerate(questions(seed)):
            state, facts, demand = question.state, question.facts, question.demand
            decision = evaluate(state, facts, demand, NOW, question.policy)
            if not isinstance(decision, Refusal):
                continue
            case = Case(state, facts, demand, NOW, question.policy, question.viewer)
            try:
                seen += LAWS[name](case, decision, why.explain(case, decision))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, question {number}: {error}") from error
    assert seen > len(SEEDS)


def told_of(case: Case) -> Explanation:
    decision = evaluate(case.view, case.facts, case.demand, NOW, case.policy)
    assert isinstance(decision, Refusal)
    return why.explain(case, decision)


def test_what_does_not_fit_is_not_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: whoever counts one entry twice names too few, and evaluate says no to them."""
    state = host_state()
    for number in range(4):
        reserve(state, proposal(f"r{number}", ask(cpu=1000)))
    case = Case(state, FACTS, Demand("default", ask(cpu=2000)), NOW, AdmissionPolicy())
    way = released(told_of(case))
    assert way is not None
    assert len(way.release) == 2
    original = needs.share_of
    monkeypatch.setattr(needs, "share_of", lambda *given: lambda row: 2 * original(*given)(row))
    assert released(told_of(case)) is None


def test_what_is_in_use_is_nobodys_to_release() -> None:
    state = host_state()
    reserve(state, proposal("r0", ask(memory=GIB)))
    facts = replace(FACTS, sandboxes_memory_bytes=15 * GIB)
    demand = Demand("default", Resources(memory_bytes=2 * GIB, sandbox_slots=1))
    decision = evaluate(state, facts, demand, NOW, AdmissionPolicy())
    assert isinstance(decision, Refusal)
    assert {short.gate for short in decision.shortfalls} == {NODE_MEMORY_USE}
    told = told_of(Case(state, facts, demand, NOW, AdmissionPolicy()))
    assert told.would_fit_if == (Way(requests=(("memory_bytes", GIB),)),)
    assert [holder.id for holder in told.holders] == ["r0"]


def test_the_entry_that_is_named_is_the_smallest_that_suffices() -> None:
    state = host_state()
    for key, cpu in (("large", 2500), ("fits", 1100), ("small", 400)):
        reserve(state, proposal(key, ask(cpu=cpu)))
    told = told_of(Case(state, FACTS, Demand("default", ask(cpu=1000)), NOW, AdmissionPolicy()))
    assert told.would_fit_if == (Way(release=("fits",)),)
