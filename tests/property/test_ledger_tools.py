"""Laws of the ledger's tools, on random ledgers: clean is clean, a repair keeps all it can."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import check, codec, decisions, head, invariants, past, reader, repair
from ledger.admission import AdmissionPolicy
from ledger.errors import LedgerCorrupt, LedgerTooNew, NotFound
from ledger.log import Log, Wanted
from ledger.past import Flaw, Past, walk
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.tables import Namespace
from tests.faults import test_damage as damage
from tests.property.ledgers import (
    SEGMENT_BYTES,
    Life,
    digest_of,
    lines_by_generation,
    living,
    put_namespace,
    state_digest,
)
from tests.unit.ledger.samples import NOW

SEEDS = st.integers(0, 2**32)
HARMS = (
    damage.flip,
    damage.flip,
    damage.cut,
    damage.append,
    damage.duplicate,
    damage.remove,
    damage.swap,
)


@given(SEEDS)
def test_a_clean_ledger_has_no_finding(seed: int) -> None:
    with living(random.Random(seed)) as life:
        report = check.examine(life.path)
        assert report.findings == []
        assert report.present is not None
        last = max(life.digests)
        assert report.present.contents.generation == last
        with Past(str(life.path)) as segments:
            found = [each for each in walk(segments) if isinstance(each, Flaw)]
        assert found == []


@given(SEEDS)
def test_everything_comes_out_as_it_was_journaled(seed: int) -> None:
    chance = random.Random(seed)
    with living(random.Random(seed)) as life:
        outcome = decisions.replay(life.path, AdmissionPolicy())
        assert (outcome.difference, outcome.capped, outcome.since) == (None, [], 0)
        assert outcome.decisions == life.grants
        assert outcome.state.generation == max(life.digests)
        wanted = chance.choice(list(life.digests))
        outcome = decisions.replay(life.path, AdmissionPolicy(), to_generation=wanted)
        assert state_digest(outcome.state) == life.digests[wanted]


@given(SEEDS)
def test_each_operation_is_in_the_log_once(seed: int) -> None:
    with living(random.Random(seed)) as life:
        beats = len(list(Log(life.path, Wanted(operations=("beat",))).new()))
        told = list(Log(life.path, Wanted()).new())
        outcome = decisions.replay(life.path, AdmissionPolicy())
        assert len(told) + beats == outcome.operations
        assert [each.generation for each in told] == sorted(each.generation for each in told)


@given(SEEDS)
def test_an_exported_head_stays_verified(seed: int) -> None:
    with living(random.Random(seed)) as life:
        exported = head.of(life.path)
        assert head.verify(life.path, exported).verdict == head.VERIFIED
        later_on = seed % 12
        with Ledger.open(life.path, NOW, segment_bytes=SEGMENT_BYTES) as ledger:
            for number in range(later_on % 4):
                ledger.commit(partial(touch, number=number), NOW)
                if later_on % 3 == number:
                    ledger.checkpoint()
        assert head.verify(life.path, exported).verdict == head.VERIFIED


def touch(view: State, number: int) -> Change:
    return put_namespace(view, Namespace("team-z", created_wall_ms=number))


def harm(path: Path, chance: random.Random) -> None:
    """Damage one to three of the files in *path*, or take one away."""
    victims = [each for each in path.rglob("*") if each.is_file() and each.name != "ledger.lock"]
    for victim in chance.sample(victims, min(len(victims), chance.randint(1, 3))):
        if chance.random() < 0.1:
            victim.unlink()
            continue
        data = bytearray(victim.read_bytes())
        if data:
            chance.choice(HARMS)(data, chance)
            victim.write_bytes(data)


def kept_at_least(intact: Path, damaged: Path) -> int | None:
    """Return up to where every line is as it was, from a checkpoint that is as it was, or birth.

    None where there is nothing to begin with.
    """
    lines = lines_by_generation(intact)
    whole = {
        number
        for number, (path, line) in lines.items()
        if (there := damaged / path.relative_to(intact)).exists()
        and any(each == line[:-1] for each in there.read_bytes().split(b"\n")[:-1])
    }
    starts = [
        generation
        for name in ("ledger.json", "ledger.json.prev")
        if (damaged / name).exists()
        and (generation := _generation(intact / name)) is not None
        and (damaged / name).read_bytes() == (intact / name).read_bytes()
    ]
    if not starts and 1 in whole and (damaged / "node-id").exists():
        starts = [0]
    ways = []
    for start in starts:
        reached = start
        while reached + 1 in whole:
            reached += 1
        ways.append(reached)
    return max(ways, default=None)


def _generation(path: Path) -> int | None:
    if not path.exists():
        return None
    found: int = json.loads(path.read_bytes())["generation"]
    return found


def check_repair(life: Life, chance: random.Random, mend: Callable[..., object]) -> bool:
    """Damage a copy of *life*, repair it by *mend*, hold it to the law; tell if it was repaired."""
    damaged, target = life.path.with_name("damaged"), life.path.with_name("repaired")
    shutil.copytree(life.path, damaged)
    try:
        harm(damaged, chance)
        before = files(damaged)
        least = kept_at_least(life.path, damaged)
        try:
            plan = mend(
                damaged, str(target), now=NOW, by="uid:0", reason="a test", segment_bytes=8192
            )
        except (LedgerCorrupt, LedgerTooNew, NotFound):
            assert least is None
            return False
        finally:
            assert files(damaged) == before
        if plan is None:
            assert digest_of(damaged) == life.digests[reader.read(damaged).generation]
            return False
        assert isinstance(plan, repair.Plan)
        assert plan.kept in life.digests, "no part of what was acknowledged"
        assert plan.kept >= (least or 0), f"a commit that verifies is lost: {plan.kept} of {least}"
        assert digest_of(target) == life.digests[plan.kept]
        hold(target, plan)
        return True
    finally:
        shutil.rmtree(damaged)
        shutil.rmtree(target, ignore_errors=True)


def hold(target: Path, plan: repair.Plan) -> None:
    """The copy opens, goes on behind every number that was used, and is in order."""
    codes = {finding.code for finding in check.examine(target).findings}
    history = {check.ARCHIVE_DAMAGED, check.ARCHIVE_GAP, check.CHAIN_BROKEN}
    assert codes <= history
    with Ledger.open(target, NOW, segment_bytes=8192) as ledger:
        assert ledger.generation == plan.claimed + 1
        assert invariants.check(ledger.state.all_rows(), ledger.state.balances()) == []


def files(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


@given(SEEDS)
def test_a_repair_keeps_all_that_verifies_and_nothing_else(seed: int) -> None:
    with living(random.Random(seed)) as life:
        for number in range(3):
            check_repair(life, random.Random(seed + number), repair.repair)


def test_control_a_repair_that_drops_one_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = repair._whole_lines

    def all_but_the_last(segments: Past, since: int) -> list[past.Line]:
        return list(whole(segments, since))[:-1]

    monkeypatch.setattr(repair, "_whole_lines", all_but_the_last)
    assert caught(), "a repair that drops a commit passed"


def test_control_a_repair_that_believes_a_broken_chain_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = codec.decode_commit
    monkeypatch.setattr(codec, "decode_commit", lambda line, _: decode(line, None))
    monkeypatch.setattr(repair, "gives_up", lambda *_: True)
    assert caught(), "a repair that leaps over a gap passed"


def caught() -> bool:
    """Tell whether the law is broken for one of some lives."""
    for seed in range(200):
        found: list[AssertionError] = []
        with living(random.Random(seed)) as life:
            try:
                check_repair(life, random.Random(seed), repair.repair)
            except (AssertionError, KeyError) as error:
                found.append(AssertionError(error))
        if found:
            return True
    return False
