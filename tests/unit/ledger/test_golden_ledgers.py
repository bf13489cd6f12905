"""A ledger of each schema, as the program of its time left it, is read, taken over and goes on.

A new schema needs a new one: AXERN_UPDATE_GOLDEN=1 writes it where it is missing. Those that are
there are never written again, since no program can make them any more.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ledger import checkpoint as checkpoint_file
from ledger import codec, invariants, reader
from ledger.contents import as_document, read
from ledger.errors import LedgerTooNew
from ledger.files import Folder
from ledger.store import Ledger
from ledger.testing import releasing
from tests.unit.ledger import golden_life
from tests.unit.ledger.golden_life import LEASE, START

GOLDEN = Path(__file__).parent / "golden"
SCHEMAS = range(1, codec.SCHEMA + 1)
Json = dict[str, Any]


@pytest.fixture(params=SCHEMAS, ids="schema-{}".format)
def schema(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    folder, dump = GOLDEN / f"schema-{number}", GOLDEN / f"schema-{number}.json"
    if not folder.exists() and number == codec.SCHEMA and os.environ.get("AXERN_UPDATE_GOLDEN"):
        golden_life.live(folder)
        (folder / "ledger.lock").unlink()
        dump.write_text(json.dumps(document(folder), indent=2) + "\n", encoding="utf-8")
    return number


@pytest.fixture
def path(schema: int, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / f"schema-{schema}", tmp_path / "ledger"))


def document(path: Path) -> Json:
    """Return all that the ledger in *path* says, in words that no schema changes."""
    folder = Folder(str(path))
    try:
        return json.loads(json.dumps(as_document(read(folder))))  # type: ignore[no-any-return]
    finally:
        folder.close()


def said_then(schema: int) -> Json:
    """Return what the program of its time read in it, with the tables that have come since."""
    found: Json = json.loads((GOLDEN / f"schema-{schema}.json").read_text(encoding="utf-8"))
    assert found["schema"] == schema
    found["tables"] = {name: {} for name in codec.tables_of(codec.SCHEMA)} | found["tables"]
    return found


def files(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_it_is_read_as_it_is(path: Path, schema: int) -> None:
    before = files(path)
    assert document(path) == said_then(schema)
    assert files(path) == before


def test_its_rows_are_decoded_into_the_same_state(path: Path) -> None:
    state = reader.read(path).state
    assert invariants.check(state.all_rows(), state.balances()) == []


def test_it_is_taken_over_and_goes_on(path: Path, schema: int) -> None:
    wanted = said_then(schema) | {"schema": codec.SCHEMA}
    old = (path / "ledger.json").read_bytes()
    with Ledger.open(path, START, segment_bytes=8192) as ledger:
        folder = Folder(str(path))
        assert checkpoint_file.read(folder).schema == codec.SCHEMA
        folder.close()
        assert document(path) == wanted
        if schema < codec.SCHEMA:
            assert (path / "ledger.json.prev").read_bytes() == old
        ledger.commit(releasing(int(LEASE, 16)), START)
        assert invariants.check(ledger.state.all_rows(), ledger.state.balances()) == []
    with Ledger.open(path, START, segment_bytes=8192) as again:
        assert again.generation == wanted["generation"] + 1
        assert again.state.find_reservation(LEASE) is None


def test_the_schema_after_ours_is_refused_untouched(path: Path, schema: int) -> None:
    data = (path / "ledger.json").read_bytes()
    newer = codec.SCHEMA + 1
    data = data.replace(b'"schema":%d,' % schema, b'"schema":%d,\n"unknown":[],' % newer, 1)
    (path / "ledger.json").write_bytes(_summed(data))
    before = files(path)
    with pytest.raises(LedgerTooNew, match=f"it has schema {newer}"):
        Ledger.open(path, START)
    after = files(path)
    assert {name: data for name, data in after.items() if name in before} == before


def test_each_has_every_kind_of_row(schema: int) -> None:
    tables = said_then(schema)["tables"]
    empty = {name for name in codec.tables_of(schema) if not tables[name]}
    assert empty == set()
    phases = {row["phase"] for row in tables["reservations"].values()}
    assert phases == {"reserved", "starting", "running", "stopping", "retiring"}


def _summed(data: bytes) -> bytes:
    import hashlib

    body = data[: data.rindex(b'"sha256"')]
    return body + b'"sha256":"%b"\n}\n' % hashlib.sha256(body).hexdigest().encode()
