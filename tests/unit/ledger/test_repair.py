"""Repairs by name: what each kind of damage costs, and what is refused without a trace."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledger import check, contents, repair
from ledger.codec import Checkpoint
from ledger.errors import CommitFailed, LedgerCorrupt, LedgerTooNew, NotFound
from ledger.files import Folder
from ledger.repair import BIRTH, Plan
from ledger.store import Ledger
from ledger.testing import ManualClock
from tests.unit.ledger.test_check import archived, flip, live, rewrite

OLD = Path(__file__).parent / "golden" / "schema-2"
CLOCK = ManualClock()
LAST, BASE = 23, 16


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = Path(shutil.copytree(OLD, tmp_path / "ledger"))
    for each in (made, *made.rglob("*")):
        each.chmod(0o750 if each.is_dir() else 0o640)
    return made


def mended(path: Path, **more: object) -> Plan | None:
    """Return the plan of a repair of *path* into its neighbour `copy`."""
    target = str(path.with_name("copy"))
    return repair.repair(path, target, now=CLOCK(), by="uid:0", reason="a test", **more)  # type: ignore[arg-type]


def digest(path: Path) -> str:
    folder = Folder(str(path))
    try:
        return contents.digest(contents.read(folder).contents)
    finally:
        folder.close()


def test_what_opens_is_not_repaired(path: Path) -> None:
    assert mended(path) is None
    assert [each.name for each in path.parent.iterdir()] == ["ledger"]


@pytest.mark.parametrize("files", [("ledger.json",), ("ledger.json", "ledger.json.prev")])
def test_nothing_is_lost_with_checkpoints_alone(path: Path, files: tuple[str, ...]) -> None:
    before = digest(path)
    for name in files:
        flip(path / name, b'"node_id"')
    plan = mended(path)
    assert plan is not None
    assert (plan.kept, plan.claimed, plan.dropped) == (LAST, LAST, ())
    assert plan.start == (BIRTH if len(files) == 2 else "ledger.json.prev")
    copy = path.with_name("copy")
    assert digest(copy) == before
    assert check.examine(copy).findings == []


def test_a_line_costs_itself_and_what_stands_on_it(path: Path) -> None:
    flip(live(path), b'"retire"')
    plan = mended(path)
    assert plan is not None
    assert (plan.kept, plan.claimed, plan.start) == (17, LAST, "ledger.json")
    assert [each.generation for each in plan.dropped] == [19, 20, 21, 22, 23]
    assert plan.dropped[1].operations == ("release",)
    assert plan.dropped[1].ids == (f"{7:032x}",)
    copy = path.with_name("copy")
    assert check.examine(copy).findings == []
    with Ledger.open(copy, CLOCK(), segment_bytes=8192) as ledger:
        assert ledger.generation >= LAST + 1


def test_a_missing_segment_is_a_gap(path: Path) -> None:
    live(path).unlink()
    plan = mended(path)
    assert plan is not None
    assert (plan.kept, plan.claimed) == (BASE, LAST)


def test_damage_of_the_archive_stays_as_it_is(path: Path) -> None:
    flip(archived(path), b'"team-a"')
    flip(live(path), b'"retire"')
    plan = mended(path)
    assert plan is not None
    assert plan.kept == 17
    findings = check.examine(path.with_name("copy")).findings
    assert {each.code for each in findings} == {check.ARCHIVE_DAMAGED}


def test_accounts_are_computed_anew(path: Path) -> None:
    before = digest(path)
    rewrite(path, lambda base: replace(base, balances={}))
    plan = mended(path)
    assert plan is not None
    assert plan.recounted
    assert "headroom" in plan.why or "capacity" in plan.why
    assert digest(path.with_name("copy")) == before


def test_entries_that_contradict_each_other_are_not_repaired(path: Path) -> None:
    def share(base: Checkpoint) -> Checkpoint:
        found: Any = base.tables["reservations"]
        rows = {key: replace(row, lane=1) for key, row in found.items()}
        return replace(base, tables={**base.tables, "reservations": rows})

    rewrite(path, share)
    with pytest.raises(LedgerCorrupt, match="the entries contradict each other"):
        mended(path)
    assert [each.name for each in path.parent.iterdir()] == ["ledger"]


def test_an_older_copy_goes_on_behind_what_was_seen(path: Path) -> None:
    before = digest(path)
    plan = mended(path, least=lambda node_id: 40 if node_id == "golden-node" else 0)
    assert plan is not None
    assert plan.why == "it is at generation 23, but this boot has seen 40: an older copy"
    assert (plan.kept, plan.claimed) == (LAST, 40)
    copy = path.with_name("copy")
    assert digest(copy) == before
    with Ledger.open(copy, CLOCK(), least_generation=40, segment_bytes=8192) as ledger:
        assert ledger.generation >= 41


def test_the_name_of_another_node_is_replaced(path: Path) -> None:
    (path / "node-id").write_text("another\n", encoding="utf-8")
    plan = mended(path)
    assert plan is not None
    assert plan.node_id == "golden-node"
    assert (path.with_name("copy") / "node-id").read_text("utf-8") == "golden-node\n"


def test_a_copy_can_be_damaged_and_repaired_again(path: Path) -> None:
    flip(live(path), b'"retire"')
    assert mended(path) is not None
    copy = path.with_name("copy")
    before = digest(copy)
    flip(copy / "ledger.json", b'"node_id"')
    again = repair.repair(
        copy, str(path.with_name("again")), now=CLOCK(), by="uid:0", reason="once more"
    )
    assert again is not None
    assert (again.start, again.kept, again.dropped) == (BIRTH, LAST + 1, ())
    assert digest(path.with_name("again")) == before


def test_what_is_newer_or_no_ledger_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        mended(tmp_path)
    rewrite(path, lambda base: base)
    data = (path / "ledger.json").read_bytes()
    body = data[: data.rindex(b'"sha256"')].replace(b'"schema":2', b'"schema":9', 1)
    summed = body + b'"sha256":"%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
    (path / "ledger.json").write_bytes(summed)
    with pytest.raises(LedgerTooNew):
        mended(path)
    assert sorted(each.name for each in path.parent.iterdir()) == ["ledger"]


def test_a_disk_that_refuses_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(live(path), b'"retire"')

    def refuse(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CommitFailed, match="No space left on device"):
        mended(path)
    assert [each.name for each in path.parent.iterdir()] == ["ledger"]


def test_a_target_that_exists_is_left_alone(path: Path) -> None:
    flip(live(path), b'"retire"')
    path.with_name("copy").mkdir()
    with pytest.raises(CommitFailed, match="copy is there already"):
        mended(path)
    assert list(path.with_name("copy").iterdir()) == []
