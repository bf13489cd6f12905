"""Heads: what happened to a ledger since one was exported is told, whatever was made to verify."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import codec, head, repair
from ledger.errors import LedgerCorrupt, NotFound
from ledger.head import Head
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, reserving, small_node, small_proposal
from tests.unit.ledger.test_check import archived, flip, forge_line, live, renamed, rewrite

CLOCK = ManualClock()


def grow(path: Path, first: int, count: int, *, checkpoint: bool) -> None:
    with Ledger.open(path, CLOCK(), node_id="node-a", segment_bytes=8192) as ledger:
        ledger.commit(observing(small_node()), CLOCK())
        for number in range(first, first + count):
            ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
        if checkpoint:
            ledger.checkpoint()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ledger"
    grow(made, 1, 8, checkpoint=True)
    return made


@pytest.fixture
def old(path: Path) -> Head:
    """Return a head, behind which the ledger has grown for two more checkpoints."""
    found = head.of(path)
    grow(path, 20, 6, checkpoint=True)
    grow(path, 30, 6, checkpoint=True)
    return found


def verdict(path: Path, exported: Head) -> str:
    return head.verify(path, exported).verdict


def test_control_a_ledger_that_only_grew_is_verified(path: Path, old: Head) -> None:
    assert head.of(path).generation == old.generation + 12
    assert verdict(path, old) == head.VERIFIED
    assert verdict(path, head.of(path)) == head.VERIFIED


def test_an_older_copy_is_found(path: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(path, tmp_path / "backup")
    grow(path, 20, 2, checkpoint=False)
    exported = head.of(path)
    shutil.rmtree(path)
    shutil.move(backup, path)
    found = head.verify(path, exported)
    assert found.verdict == head.ROLLED_BACK
    assert "an older copy was put back" in found.message


def test_another_course_after_an_older_copy_is_found(path: Path, tmp_path: Path) -> None:
    backup = shutil.copytree(path, tmp_path / "backup")
    grow(path, 20, 2, checkpoint=False)
    exported = head.of(path)
    shutil.rmtree(path)
    shutil.move(backup, path)
    grow(path, 60, 5, checkpoint=True)
    assert verdict(path, exported) == head.REWRITTEN


def test_a_line_that_was_rewritten_is_found(path: Path, old: Head) -> None:
    forge_line(path)
    assert verdict(path, old) in {head.CHAIN_ONLY, head.REWRITTEN}
    exported = replace(old, generation=1, chain="f" * 64)
    assert verdict(path, exported) == head.REWRITTEN


def test_a_history_that_was_chained_anew_is_found(path: Path, old: Head) -> None:
    """Every line, CRC and sum is right again: only the head tells."""
    chain, moved = codec.NO_CHAIN, 0
    for segment in sorted((path / "archive").iterdir()):
        lines = []
        for line in segment.read_bytes().splitlines(keepends=True):
            commit = codec.decode_commit(line, None)
            changes = tuple(replace(each, by="uid:7") for each in commit.changes)
            again, chain = codec.encode_commit(commit.generation, commit.clock, changes, chain)
            lines.append(again)
            moved += 1
        segment.write_bytes(b"".join(lines))
    assert moved
    rewrite(path, lambda base: replace(base, position=replace(base.position, chain=chain)))
    assert verdict(path, old) == head.REWRITTEN


def test_rows_that_were_changed_in_the_checkpoint_are_found(path: Path, old: Head) -> None:
    """The chain says nothing of a checkpoint's rows."""
    newest = head.of(path)
    rewrite(path, lambda base: replace(base, tables=renamed(base.tables)))
    assert verdict(path, newest) == head.REWRITTEN
    assert verdict(path, old) == head.REWRITTEN


def test_both_checkpoints_changed_alike_are_found(path: Path) -> None:
    exported = head.of(path)
    rewrite(path, lambda base: replace(base, tables=renamed(base.tables)))
    shutil.copy(path / "ledger.json", path / "ledger.json.prev")
    assert "rows are others" in head.verify(path, exported).message


def test_a_history_that_is_not_kept_can_be_told_no_more(path: Path, old: Head) -> None:
    for segment in (path / "archive").iterdir():
        segment.unlink()
    assert verdict(path, old) == head.NOT_KEPT
    assert verdict(path, head.of(path)) == head.VERIFIED


def test_another_node_is_named(path: Path, old: Head) -> None:
    assert verdict(path, replace(old, node_id="node-b")) == head.OTHER_NODE


def test_another_schema_compares_the_chain_alone(path: Path, old: Head) -> None:
    assert verdict(path, replace(old, schema=old.schema + 1)) == head.CHAIN_ONLY


def test_what_a_repair_gave_up_is_told_with_its_reason(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.open(path, CLOCK(), segment_bytes=8192)
    for number in (50, 51, 52):
        ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
    ledger.close(checkpoint=False)
    exported = head.of(path)
    flip(live(path), f'"lease-{51}'.encode())
    target = tmp_path / "repaired"
    plan = repair.repair(
        path, str(target), now=CLOCK(), by="uid:0", reason="a bad sector", segment_bytes=8192
    )
    assert plan is not None
    assert plan.kept == exported.generation - 2
    found = head.verify(target, exported)
    assert found.verdict == head.GIVEN_UP
    assert "a bad sector" in found.message
    assert verdict(target, head.of(target)) == head.VERIFIED


def test_damage_and_absence_are_errors(path: Path, tmp_path: Path) -> None:
    exported = head.of(path)
    flip(path / "ledger.json", b"lease-1")
    with pytest.raises(LedgerCorrupt):
        head.verify(path, exported)
    with pytest.raises(NotFound):
        head.of(tmp_path / "no")


def test_damage_between_head_and_present_is_no_proof(path: Path, old: Head) -> None:
    flip(archived(path, -1), b"lease-3")
    assert verdict(path, old) == head.REWRITTEN
