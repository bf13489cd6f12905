"""The checkpoint file: replaced whole, the one before kept, refused unless exact."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import checkpoint, codec
from ledger.codec import NO_CHAIN, Checkpoint, Position
from ledger.errors import LedgerCorrupt, LedgerTooNew
from ledger.files import Folder
from ledger.state import genesis
from ledger.testing import ManualClock

NOW = ManualClock()()
AT = Position("journal-0000000000000001.jsonl", 0, NO_CHAIN)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(str(tmp_path))
    yield folder
    folder.close()


def of(generation: int) -> Checkpoint:
    state = genesis(NOW)
    state.generation = generation
    return checkpoint.of(state, "node-a", AT)


def test_it_is_replaced_and_the_one_before_is_kept(folder: Folder) -> None:
    size = checkpoint.write(folder, of(1))
    assert folder.names() == ["ledger.json"]
    assert size == len(folder.read("ledger.json"))
    first = folder.read("ledger.json")
    for generation in (2, 3):
        checkpoint.write(folder, of(generation))
    assert folder.names() == ["ledger.json", "ledger.json.prev"]
    assert checkpoint.read(folder) == of(3)
    checkpoint.write(folder, of(1))
    checkpoint.write(folder, of(2))
    assert folder.read("ledger.json.prev") == first  # deterministic to the byte


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename", "link", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_what_fails_leaves_the_old_one_whole(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    checkpoint.write(folder, of(1))

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match=os.strerror(code)):
            checkpoint.write(folder, of(2))
    assert checkpoint.read(folder) == of(1)


def test_a_failed_directory_flush_is_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fail(fd: int) -> None:
        if fd == folder.fd:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        checkpoint.write(folder, of(1))


def test_what_crashes_left_is_swept_and_nothing_else(folder: Folder) -> None:
    path = Path(folder.path)
    for name in ("ledger.json.0123456789abcdef.tmp", "journal.00000000000000ff.tmp"):
        (path / name).touch()
    for name in ("notes.tmp", "ledger.json.tmp", "ledger.json.0123.tmp"):
        (path / name).touch()
    folder.sweep()
    assert folder.names() == ["ledger.json.0123.tmp", "ledger.json.tmp", "notes.tmp"]


def test_a_refusal_names_file_rule_and_hint(folder: Folder) -> None:
    path = Path(folder.path) / "ledger.json"
    checkpoint.write(folder, of(1))
    path.write_bytes(path.read_bytes().replace(b"node-a", b"node-b"))
    with pytest.raises(LedgerCorrupt, match=r"ledger\.json \(\d+ bytes\): the sum") as refused:
        checkpoint.read(folder)
    assert refused.value.hint == f"look at it with: python -m ledger check {folder.path}"


def test_a_newer_one_is_refused_as_newer(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(of(1), schema=codec.SCHEMA + 1)
    with monkeypatch.context() as patch:
        patch.setattr("ledger.codec.SCHEMA", newer.schema)
        checkpoint.write(folder, newer)
        assert checkpoint.read(folder) == newer
    with pytest.raises(LedgerTooNew, match="schema 7, this program knows up to 6"):
        checkpoint.read(folder)


def test_a_large_one_is_written_in_few_writes(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = os.pwrite

    def count(fd: int, data: bytes, offset: int) -> int:
        calls.append(len(data))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", count)
    size = checkpoint.write(folder, of(1))
    assert calls == [size]
