"""Each kind of finding of the check of files: planted, and found; a ledger in order has none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger import check, codec, postings, state
from ledger import checkpoint as checkpoint_file
from ledger.check import CODES
from ledger.codec import Checkpoint
from ledger.files import Folder
from ledger.findings import SEVERITIES
from ledger.resources import Resources
from ledger.state import Change
from ledger.store import Ledger
from ledger.tables import RESERVATIONS
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_node,
    small_proposal,
)

CLOCK = ManualClock()


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with an archive, two checkpoints and commits behind them."""
    path = tmp_path_factory.mktemp("check") / "ledger"
    ledger = Ledger.open(path, CLOCK(), node_id="node-a", segment_bytes=8192)
    ledger.commit(observing(small_node()), CLOCK())
    for number in range(12):
        ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
        if number in (4, 8):
            ledger.checkpoint()
    ledger.commit(releasing(2), CLOCK())
    ledger.close(checkpoint=False)
    return path


@pytest.fixture
def path(intact: Path, tmp_path: Path) -> Iterator[Path]:
    copy = tmp_path / "ledger"
    shutil.copytree(intact, copy)
    yield copy
    shutil.rmtree(copy)


def found(path: Path) -> set[str]:
    """Return the codes of all findings, each with the severity that its code has."""
    findings = check.examine(path).findings
    assert {each.severity for each in findings} <= set(SEVERITIES)
    assert [each for each in findings if each.severity != CODES[each.code]] == []
    assert [each for each in findings if not (each.id and each.found and each.remedy)] == []
    return {each.code for each in findings}


def archived(path: Path, index: int = 0) -> Path:
    return sorted((path / "archive").iterdir())[index]


def live(path: Path) -> Path:
    return min(path.glob("journal-*"))


def flip(path: Path, text: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(text)] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, change: Callable[[Checkpoint], Checkpoint], name: str = "") -> None:
    """Change a checkpoint as a program would, so that its sum is right."""
    folder = Folder(str(path))
    try:
        base = checkpoint_file.read(folder)
    finally:
        folder.close()
    data = b"".join(codec.encode_checkpoint(change(base)))
    (path / (name or "ledger.json")).write_bytes(data)


def without_first(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    rows = dict(tables[RESERVATIONS])
    rows.pop(next(iter(rows)))
    return {**tables, RESERVATIONS: rows}


def renamed(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Let the first reservation belong to somebody else: no account notices."""
    rows = dict(tables[RESERVATIONS])
    key, row = next(iter(rows.items()))
    rows[key] = replace(row, owner=replace(row.owner, uid=4711))
    return {**tables, RESERVATIONS: rows}


def append(path: Path, change: Change) -> None:
    """Write a line behind the last one, as the ledger would, whatever *change* is."""
    ledger = Ledger.open(path, CLOCK(), segment_bytes=8192)
    ledger.commit(lambda _: change, CLOCK())
    ledger.close(checkpoint=False)


def put_older_back(path: Path) -> None:
    older = (path / "ledger.json.prev").read_bytes()
    (path / "ledger.json.prev").write_bytes((path / "ledger.json").read_bytes())
    (path / "ledger.json").write_bytes(older)


def tear(path: Path) -> None:
    last = max(path.glob("journal-*"))
    data = last.read_bytes()
    end = len(data[:-21].rstrip(b"\0"))
    last.write_bytes(data[:end] + b'{"generation":99,"b' + data[end + 19 :])


def theft(*amounts: int) -> Change:
    """Return a change whose postings no row backs."""
    accounts = ("committed:default", "headroom")
    postings = tuple(
        (name, "cpu_milli", amount) for name, amount in zip(accounts, amounts, strict=False)
    )
    row = state.genesis(CLOCK()).namespace("default")
    return Change("theft", (state.Put("namespaces", "default", row),), postings)


def forge_line(path: Path) -> None:
    """Give a line in the middle of the archive another author, with the right CRC."""
    victim = archived(path)
    lines = victim.read_bytes().splitlines(keepends=True)
    commit = codec.decode_commit(lines[0], codec.NO_CHAIN)
    changes = tuple(replace(each, by="uid:7") for each in commit.changes)
    line, _ = codec.encode_commit(commit.generation, commit.clock, changes, codec.NO_CHAIN)
    victim.write_bytes(line + b"".join(lines[1:]))


PLANTS: dict[str, Callable[[Path], object]] = {
    check.CHECKPOINT_MISSING: lambda path: (path / "ledger.json").unlink(),
    check.CHECKPOINT_DAMAGED: lambda path: flip(path / "ledger.json", b"lease-1"),
    check.CHECKPOINT_DIFFERS: lambda path: rewrite(
        path, lambda base: replace(base, tables=renamed(base.tables))
    ),
    check.JOURNAL_DAMAGED: lambda path: flip(live(path), b"lease-9"),
    check.TORN_LINE: tear,
    check.CONTRADICTION: lambda path: rewrite(
        path, lambda base: replace(base, tables=without_first(base.tables))
    ),
    check.OUT_OF_BALANCE: lambda path: append(path, theft(7)),
    check.UNBALANCED_OPERATION: lambda path: append(path, theft(7)),
    check.CHAIN_BROKEN: forge_line,
    check.ARCHIVE_DAMAGED: lambda path: flip(archived(path), b"lease-1"),
    check.ARCHIVE_GAP: lambda path: archived(path, 1).unlink(),
    check.PREVIOUS_DAMAGED: lambda path: flip(path / "ledger.json.prev", b"lease-1"),
    check.PREVIOUS_NEWER: put_older_back,
    check.NODE_ID_MISSING: lambda path: (path / "node-id").unlink(),
    check.NODE_ID_DIFFERS: lambda path: (path / "node-id").write_text("node-b\n"),
    check.FOREIGN_FILE: lambda path: (path / "notes.txt").write_text("mine"),
    check.UNSAFE_MODE: lambda path: os.chmod(path / "ledger.json", 0o666),  # noqa: S103
}


def test_every_kind_is_planted() -> None:
    assert set(PLANTS) == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_what_is_planted_is_found(path: Path, code: str) -> None:
    PLANTS[code](path)
    assert code in found(path)


def test_control_a_ledger_in_order_has_no_finding(path: Path) -> None:
    assert found(path) == set()
    report = check.examine(path)
    assert report.present is not None
    assert report.present.contents.generation == 14


def test_nothing_is_written(path: Path) -> None:
    before = {each: each.stat().st_mtime_ns for each in path.rglob("*")}
    check.examine(path)
    assert {each: each.stat().st_mtime_ns for each in path.rglob("*")} == before


@pytest.mark.parametrize("name", ["ledger.json", "journal-0000000000000099.jsonl", "archive"])
def test_a_link_in_place_of_a_file_is_found(path: Path, name: str, tmp_path: Path) -> None:
    target = path / name
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    target.symlink_to(tmp_path)
    assert check.FOREIGN_FILE in found(path)


def test_it_shares_nothing_with_the_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes the state must not be able to hide a mistake from what checks it."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the checker used the state")

    for name in ("apply", "load", "merge", "balances", "rows", "__init__"):
        monkeypatch.setattr(state.State, name, refuse)
    monkeypatch.setattr(postings, "postings_for", refuse)
    assert found(path) == set()
    flip(live(path), b"lease-9")
    assert found(path) == {check.JOURNAL_DAMAGED}


def test_amounts_that_contradict_each_other_are_named(path: Path) -> None:
    def double(base: Checkpoint) -> Checkpoint:
        rows = dict(base.tables[RESERVATIONS])
        key = next(iter(rows))
        row: Any = rows[key]
        rows[key] = replace(row, charged=Resources(1, 1, 0, 0, 1))
        return replace(base, tables={**base.tables, RESERVATIONS: rows})

    rewrite(path, double)
    ids = {each.id for each in check.examine(path).findings if each.code == check.CONTRADICTION}
    assert ids == {"charge-differs", "balance-differs"}
