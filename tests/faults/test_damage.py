"""Damaged files: what is read is equal to the bit, or refused with place and rule; never partly."""

import hashlib
import os
import random
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from ledger import checkpoint as checkpoint_file
from ledger import codec, reader
from ledger.blank import END_BYTES, end_mark
from ledger.codec import SCHEMA
from ledger.errors import LedgerCorrupt, LedgerError, LedgerTooNew, NotFound
from ledger.files import Folder
from ledger.journal import Scan, segments
from ledger.replay import replay
from ledger.testing import ManualClock
from tests.conftest import LONG
from tests.faults import lives

CASES = 100_000 if LONG else 3_000


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    path = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    yield Path(path)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def intact(root: Path) -> Path:
    """A ledger with a checkpoint and some commits behind it."""
    directory = root / "intact"
    clock = ManualClock()
    ledger = lives.open_ledger(str(directory), clock, segment_bytes=32_768)
    lives.observe(ledger, clock)
    for number in range(1, 5):
        lives.reserve(ledger, clock, number, lives.silent)
    ledger.checkpoint(rotate=False)
    for number in range(5, 8):
        lives.reserve(ledger, clock, number, lives.silent)
    lives.release(ledger, clock, 3, lives.silent)
    ledger.close(checkpoint=False)
    return directory


@pytest.fixture
def damaged(intact: Path, root: Path) -> Iterator[Path]:
    copy = root / "damaged"
    shutil.copytree(intact, copy)
    yield copy
    shutil.rmtree(copy)


def seen(directory: Path) -> bytes:
    """Return all that a reader sees, in one canonical spelling, without its further tries."""
    folder = Folder(str(directory))
    try:
        base = checkpoint_file.read(folder)
        state, _ = replay(folder, base)
    finally:
        folder.close()
    content = checkpoint_file.of(state, base.node_id, codec.Position("", 0, ""))
    return b"".join(codec.encode_checkpoint(content))


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def append(data: bytearray, chance: random.Random) -> None:
    data += chance.choice(
        (b"\n", b"\0", b" ", b"{}\n", bytes(4096), end_mark(len(data)), bytes(data))
    )


def duplicate(data: bytearray, chance: random.Random) -> None:
    lines = data.splitlines(keepends=True)
    index = chance.randrange(len(lines))
    lines.insert(chance.randrange(len(lines)), lines[index])
    data[:] = b"".join(lines)


def remove(data: bytearray, chance: random.Random) -> None:
    lines = data.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    data[:] = b"".join(lines)


def swap(data: bytearray, chance: random.Random) -> None:
    start = chance.randrange(max(1, len(data) - 32))
    data[start : start + 16] = chance.randbytes(16)


def test_it_is_read_equal_or_refused(intact: Path, damaged: Path) -> None:
    whole = seen(intact)
    chance = random.Random(20261130)
    segment = next(intact.glob("journal-*")).name
    originals = {name: (intact / name).read_bytes() for name in ("ledger.json", segment)}
    refusals: list[tuple[str, LedgerError]] = []
    for number in range(CASES):
        victim = chance.choice(list(originals))
        harm = chance.choice((flip, flip, cut, append, duplicate, remove, swap))
        data = bytearray(originals[victim])
        harm(data, chance)
        (damaged / victim).write_bytes(data)
        try:
            assert seen(damaged) == whole, f"case {number}: {harm.__name__} of {victim}"
        except LedgerError as err:
            refusals.append((victim, err))
        (damaged / victim).write_bytes(originals[victim])
    assert len(refusals) > CASES // 2
    assert {err.code for _, err in refusals} == {"ledger_corrupt"}
    assert [err for victim, err in refusals if victim not in err.message or not err.hint] == []


def test_each_bit_of_the_last_line_counts(intact: Path, damaged: Path) -> None:
    whole = seen(intact)
    path = next(damaged.glob("journal-*"))
    data = bytearray(path.read_bytes())
    end = len(bytes(data[:-END_BYTES]).rstrip(b"\0"))
    start = bytes(data).rindex(b"\n", 0, end - 1) + 1
    accepted = 0
    for offset in range(start, end + 1):
        for bit in range(8) if LONG else (offset % 8,):
            data[offset] ^= 1 << bit
            path.write_bytes(data)
            try:
                assert seen(damaged) == whole, f"offset {offset}, bit {bit}"
                accepted += 1
            except LedgerCorrupt:
                pass
            data[offset] ^= 1 << bit
    assert accepted == (8 if LONG else 1)  # only the byte behind the line, where nothing stands yet


def test_a_writer_refuses_what_a_reader_refuses(damaged: Path) -> None:
    path = next(damaged.glob("journal-*"))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"request-6")] ^= 1
    path.write_bytes(data)
    before = contents(damaged)
    with pytest.raises(LedgerCorrupt, match=r"journal-\d+\.jsonl, offset "):
        lives.open_ledger(str(damaged), ManualClock())
    assert contents(damaged) == before


def contents(directory: Path) -> dict[str, bytes]:
    names = {path.name for path in directory.iterdir()} - {"ledger.holder"}
    return {name: (directory / name).read_bytes() for name in names}


def reseal(data: bytes) -> bytes:
    """Give a changed checkpoint the right sum again, as a buggy writer would."""
    body = data[: data.rindex(b'"sha256":"')]
    return body + b'"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


SPELLINGS: list[tuple[str, str]] = [
    (r'"generation":(\d+)', r'"generation":\1,\n"generation":\1'),
    (r'"uid":1000', '"uid":1000,"uid":1000'),
    (r'"uid":1000', '"uid":1000,"gid":1000'),
    (r'"uid":1000', '"uid":1e3'),
    (r'"uid":1000', '"uid":1000.0'),
    (r'"uid":1000', '"uid":NaN'),
    (r'"uid":1000', '"uid":Infinity'),
    (r'"uid":1000', '"uid":true'),
    (r'"uid":1000', '"uid":"1000"'),
    (r'"uid":1000', '"uid":01000'),
    (r'"uid":1000', '"uid": 1000'),
    (r'"uid":1000', '"uid":+1000'),
    (r'"uid":1000', '"uid":1' + "0" * 5000),
    (r'"uid":1000,"name"', '"name"'),
    (r'"kind":"external"', '"kind":"external","kind":"external"'),
    (r'"kind":"external"', r'"kind":"\\u0065xternal"'),
    (r'"enforced":false', '"enforced":0'),
    (r'"enforced":false', '"enforced":null'),
    (r'"phase":"reserved"', '"phase":null'),
    (r'"requires":\[\]', '"requires":' + "[" * 2000 + "]" * 2000),
    (r'\{\n"schema"', '\ufeff{\n"schema"'),
    (r'"tables":\{', '"tables":{"ghosts":{},'),
]


@pytest.mark.parametrize(("pattern", "instead"), SPELLINGS)
def test_other_spellings_are_refused(damaged: Path, pattern: str, instead: str) -> None:
    path = damaged / "ledger.json"
    text = path.read_text(encoding="utf-8")
    changed, count = re.subn(pattern, instead, text, count=1)
    assert count == 1
    path.write_bytes(reseal(changed.encode()))
    with pytest.raises(LedgerCorrupt, match=r"ledger\.json"):
        reader.read(damaged)


def test_control_the_sum_alone_would_let_them_through(damaged: Path) -> None:
    path = damaged / "ledger.json"
    path.write_bytes(reseal(path.read_bytes()))
    reader.read(damaged)


def test_rows_that_contradict_the_accounts_are_refused(damaged: Path) -> None:
    path = damaged / "ledger.json"
    text = path.read_text(encoding="utf-8")
    changed = text.replace('["headroom","cpu_milli",', '["headroom","cpu_milli",1')
    path.write_bytes(reseal(changed.encode()))
    with pytest.raises(LedgerCorrupt, match="contradicts itself"):
        lives.open_ledger(str(damaged), ManualClock())


def test_a_newer_schema_is_named_as_such(damaged: Path) -> None:
    path = damaged / "ledger.json"
    ours, next_one = (b'"schema":%d,' % number for number in (SCHEMA, SCHEMA + 1))
    newer = path.read_bytes().replace(ours, next_one)
    path.write_bytes(newer)
    with pytest.raises(LedgerCorrupt):
        reader.read(damaged)  # the sum says that nobody wrote this
    path.write_bytes(reseal(newer))
    words = f"schema {SCHEMA + 1}, this program knows up to {SCHEMA}"
    for opening in (reader.read, lambda _: lives.open_ledger(str(damaged), ManualClock())):
        with pytest.raises(LedgerTooNew, match=words):
            opening(damaged)


@pytest.mark.parametrize("gone", ["ledger.json", "journal"])
def test_a_missing_file_is_damage_and_nothing_starts_empty(damaged: Path, gone: str) -> None:
    path = next(damaged.glob("journal-*")) if gone == "journal" else damaged / gone
    path.unlink()
    with pytest.raises(LedgerCorrupt, match="missing"):
        lives.open_ledger(str(damaged), ManualClock())
    with pytest.raises((LedgerCorrupt, NotFound)):
        reader.read(damaged)
    assert not path.exists()


@pytest.mark.parametrize("left", ["node-id", "journal", "archive", "ledger.json.prev"])
def test_each_remain_alone_forbids_a_new_ledger(damaged: Path, left: str) -> None:
    keep = next(damaged.glob("journal-*")).name if left == "journal" else left
    if left == "archive":
        (damaged / left).mkdir()
    for path in damaged.iterdir():
        if path.name != keep:
            path.unlink()
    with pytest.raises(LedgerCorrupt, match=re.escape(keep)):
        lives.open_ledger(str(damaged), ManualClock())


def unchained(damaged: Path) -> None:
    """Change a committed line and repair its CRC, as one who hides something would."""
    path = next(damaged.glob("journal-*"))
    lines = path.read_bytes().splitlines(keepends=True)
    line = lines[2].replace(b'"by":"uid:1000"', b'"by":"uid:1001"')
    assert line != lines[2]
    sealed = line[: line.rindex(b',"crc32":')]
    lines[2] = sealed + b',"crc32":%d}\n' % zlib.crc32(sealed)
    path.write_bytes(b"".join(lines))


def test_a_line_that_was_rewritten_breaks_the_chain(intact: Path, damaged: Path) -> None:
    unchained(damaged)
    first, name = next(iter(segments(_folder(damaged)).items()))
    start = codec.Position(name, 0, codec.NO_CHAIN)
    assert len(list(Scan(_folder(intact), start, first - 1))) == 9
    with pytest.raises(LedgerCorrupt, match="chain"):
        list(Scan(_folder(damaged), start, first - 1))


def _folder(path: Path) -> Folder:
    return Folder(str(path))


PLANTS: list[Callable[[Path, Path], None]] = [
    lambda path, other: path.symlink_to(other),
    lambda path, other: os.mkfifo(path),
    lambda path, other: path.mkdir(),
]


@pytest.mark.parametrize("plant", PLANTS, ids=["link", "pipe", "folder"])
@pytest.mark.parametrize("name", ["ledger.json", "journal", "node-id", "ledger.lock"])
def test_nothing_but_a_plain_file_is_opened(
    damaged: Path, plant: Callable[[Path, Path], None], name: str
) -> None:
    path = next(damaged.glob("journal-*")) if name == "journal" else damaged / name
    other = damaged.with_name("other")
    path.rename(other)
    before = other.read_bytes()
    plant(path, other)
    with pytest.raises(LedgerError):
        lives.open_ledger(str(damaged), ManualClock())
    assert other.read_bytes() == before
