"""Random trees of leases against a dict: totals are those of the outermost, no child has too much.

With a claim and a bound on entries, in a ledger that is decided again afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from ledger import claims, decisions, invariants, tables, transitions
from ledger.admission import AdmissionPolicy
from ledger.claims import ClaimProposal, Host
from ledger.errors import AdmissionRefused, AxernError, NotFound, StateConflict
from ledger.resources import Resources
from ledger.state import HEADROOM, Change, State, committed_account
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, small_facts, small_node, small_proposal
from ledger.transitions import Proposal
from tests.conftest import LONG

POLICY = AdmissionPolicy(entry_cap=40)
LIVES = 2000 if LONG else 60
STEPS = 60
POOLS = ("cpu_milli", "memory_bytes")
COMMITTED = committed_account("default")


@dataclass
class Model:
    """Who holds how much, and within whom."""

    room: tuple[int, int]
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    parents: dict[str, str | None] = field(default_factory=dict)

    def rest(self, key: str | None) -> tuple[int, int]:
        whole = self.room if key is None else self.held[key]
        drawn = [self.held[each] for each, parent in self.parents.items() if parent == key]
        return whole[0] - sum(each[0] for each in drawn), whole[1] - sum(each[1] for each in drawn)

    def fits(self, parent: str | None, wanted: tuple[int, int]) -> bool:
        rest = self.rest(parent)
        return wanted[0] <= rest[0] and wanted[1] <= rest[1]

    def end(self, key: str) -> None:
        for each in [each for each, parent in self.parents.items() if parent == key]:
            self.end(each)
        del self.held[key], self.parents[key]


@dataclass
class Life:
    """One ledger in memory, and the model beside it."""

    random: Random
    clock: ManualClock = field(default_factory=ManualClock)
    claimed: bool = False

    def live(self, ledger: Ledger) -> None:
        ledger.commit(observing(small_node()), self.clock())
        room = ledger.state.account(HEADROOM)
        model = Model((room[POOLS[0]], room[POOLS[1]]))
        for number in range(STEPS):
            self.step(ledger, model, f"{number:032x}")
            self.compare(ledger.state, model)

    def step(self, ledger: Ledger, model: Model, key: str) -> None:
        draw = self.random.random()
        if model.held and draw < 0.35:
            self.release(ledger, model, self.random.choice(list(model.held)))
        elif draw < 0.4 and not self.claimed:
            self.claim(ledger)
        else:
            self.reserve(ledger, model, key)

    def claim(self, ledger: Ledger) -> None:
        """Guarantee the only namespace something, without a ceiling: no difference to the model."""
        amounts = {"cpu_milli": self.random.randint(1, 4000)}
        wanted = ClaimProposal("c", "default", amounts, hard=False)
        facts = small_facts(self.clock())
        host = Host(facts, self.clock(), POLICY)

        def operation(view: State) -> Change:
            return claims.create(view, wanted, host, "uid:0")

        try:
            ledger.commit(operation, self.clock())
            self.claimed = True
        except AxernError:
            return

    def release(self, ledger: Ledger, model: Model, key: str) -> None:
        ledger.commit(lambda view: transitions.release(view, key, "released"), self.clock())
        model.end(key)
        with pytest.raises(NotFound):
            ledger.commit(lambda view: transitions.release(view, key, "again"), self.clock())

    def reserve(self, ledger: Ledger, model: Model, key: str) -> None:
        parents = [None, *model.held, *model.held]
        parent = self.random.choice(parents)
        rest = model.rest(parent)
        wanted = tuple(
            self.random.randint(1, max(2, each * 2 // self.random.randint(1, 3))) for each in rest
        )
        proposal = self.proposal(key, (wanted[0], wanted[1]), parent)
        facts = small_facts(self.clock())

        def operation(view: State) -> Change:
            return transitions.reserve(view, proposal, facts, self.clock(), POLICY)

        fits = model.fits(parent, (wanted[0], wanted[1])) and len(model.held) < POLICY.entry_cap
        try:
            ledger.commit(operation, self.clock())
        except (AdmissionRefused, StateConflict):
            assert not fits
            return
        assert fits
        model.held[key], model.parents[key] = (wanted[0], wanted[1]), parent

    def proposal(self, key: str, wanted: tuple[int, int], parent: str | None) -> Proposal:
        bare = small_proposal(int(key, 16), ttl_ms=60_000)
        resolved = replace(bare.resolved, requests=Resources(*wanted))
        return replace(bare, resolved=resolved, parent_id=parent)

    def compare(self, state: State, model: Model) -> None:
        assert invariants.check(state.all_rows(), state.balances()) == []
        assert {row.id for row in state.reservations()} == set(model.held)
        assert {row.id for row in state.outermost()} == {
            key for key, parent in model.parents.items() if parent is None
        }
        rest = model.rest(None)
        for index, pool in enumerate(POOLS):
            assert state.balance(COMMITTED, pool) == model.room[index] - rest[index]
        within = {key: row.parent_id for key, row in state.rows(tables.NESTED)}  # type: ignore[union-attr]
        assert within == {key: parent for key, parent in model.parents.items() if parent}


@pytest.mark.parametrize("shard", range(4))
def test_leases_within_leases(shard: int, tmp_path: Path) -> None:
    for number in range(LIVES // 4):
        life = Life(Random(LIVES * shard + number))
        path = tmp_path / str(number)
        with Ledger.open(path, life.clock(), segment_bytes=1024**2) as ledger:
            life.live(ledger)
        # Each grant is decided again on what was there before it, and all postings are added up.
        assert decisions.replay(path, POLICY).difference is None
        with Ledger.open(path, life.clock()) as again:
            assert invariants.check(again.state.all_rows(), again.state.balances()) == []
