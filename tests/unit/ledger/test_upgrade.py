"""A ledger of an older schema is read as it is, and rewritten before the first line of the new."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import checkpoint as checkpoint_file
from ledger import codec, reader, standing, transitions
from ledger.errors import LedgerCorrupt
from ledger.files import Folder
from ledger.rights import ROOT
from ledger.standing import Wish
from ledger.store import Ledger
from ledger.testing import ManualClock
from tests.unit.ledger.samples import node

CLOCK = ManualClock()


def _age(path: Path, schema: int = 1) -> None:
    """Make the ledger in *path* one of *schema*."""
    folder = Folder(str(path))
    try:
        checkpoint_file.write(folder, replace(checkpoint_file.read(folder), schema=schema))
    finally:
        folder.close()


def _schema(path: Path) -> int:
    found: int = json.loads((path / "ledger.json").read_bytes())["schema"]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a ledger of schema 1 with a commit behind its checkpoint."""
    made = tmp_path / "ledger"
    with Ledger.open(made, CLOCK()) as ledger:
        ledger.commit(lambda view: transitions.observe_node(view, node()), CLOCK())
    _age(made)
    ledger = Ledger.open(made, CLOCK())
    ledger.commit(lambda view: transitions.observe_node(view, node(ratio="2")), CLOCK())
    ledger.close(checkpoint=False)
    _age(made)
    return made


def test_it_is_read_as_it_is(path: Path) -> None:
    snapshot = reader.read(str(path))
    assert snapshot.generation == 2
    assert "standings" not in json.loads((path / "ledger.json").read_bytes())["tables"]
    assert _schema(path) == 1


def test_it_is_rewritten_at_the_first_opening(path: Path) -> None:
    with Ledger.open(path, CLOCK()) as ledger:
        assert _schema(path) == codec.SCHEMA
        assert ledger.generation == 2
        wish = Wish(ROOT, "new disks")
        ledger.commit(lambda view: standing.drain(view, wish, CLOCK()), CLOCK())
        row = ledger.state.standing()
    assert row is not None
    assert reader.read(str(path)).state.standing() == row
    with Ledger.open(path, CLOCK()) as again:
        assert (again.generation, again.state.standing()) == (3, row)


def test_a_line_behind_its_checkpoint_survives_a_crash_right_after(path: Path) -> None:
    ledger = Ledger.open(path, CLOCK())
    ledger.commit(lambda view: transitions.observe_node(view, node(ratio="3")), CLOCK())
    ledger.close(checkpoint=False)
    assert reader.read(str(path)).generation == 3
    with Ledger.open(path, CLOCK()) as again:
        assert again.generation == 3


@pytest.mark.parametrize("schema", range(1, codec.SCHEMA + 1))
@pytest.mark.parametrize("other", range(1, codec.SCHEMA + 1))
def test_each_schema_has_its_own_tables(path: Path, schema: int, other: int) -> None:
    """Another schema's number on the same bytes is damage, even with the right sum."""
    if schema == other:
        return
    _age(path, schema)
    chunks = b"".join(codec.encode_checkpoint(checkpoint_file.read(Folder(str(path)))))
    changed = chunks.replace(b'"schema":%d' % schema, b'"schema":%d' % other)
    folder = Folder(str(path))
    (path / "ledger.json").write_bytes(_summed(changed))
    with pytest.raises(LedgerCorrupt, match="not spelled"):
        checkpoint_file.read(folder)


def _summed(data: bytes) -> bytes:
    import hashlib

    body = data[: data.rindex(b'"sha256"')]
    return body + b'"sha256":"%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
