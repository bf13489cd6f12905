"""Segments: filled ahead, written once, scanned to the last verified line, archived."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import codec, journal
from ledger.archive import ARCHIVE, archive
from ledger.blank import END_BYTES, is_blank
from ledger.codec import NO_CHAIN, Position
from ledger.errors import CommitFailed, InvariantViolation, LedgerCorrupt
from ledger.files import Folder
from ledger.journal import Journal, Scan, looks_torn, segment_name, segments
from ledger.recovery import seal
from ledger.state import Change, Put
from ledger.tables import BEATS, Beat
from ledger.testing import ManualClock

NOW = ManualClock()()
BYTES = 8192


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(str(tmp_path))
    yield folder
    folder.close()


@pytest.fixture
def writer(folder: Folder) -> Iterator[Journal]:
    writer = Journal(folder, seal(folder, Position("", 0, NO_CHAIN), 0, BYTES), 0, BYTES)
    yield writer
    writer.close()


START = Position(segment_name(1), 0, NO_CHAIN)


def write(writer: Journal, note: str = "x") -> None:
    change = Change("beat", (Put(BEATS, "a", Beat(writer.generation)),), note=note)
    generation = writer.generation + 1
    line, chain = codec.encode_commit(generation, NOW, [change], writer.position.chain)
    writer.append(line, chain)


def scanned(folder: Folder, start: Position = START, generation: int = 0) -> Scan:
    scan = Scan(folder, start, generation)
    generations = [commit.generation for commit in scan]
    assert generations == list(range(generation + 1, scan.generation + 1))
    return scan


def test_a_segment_is_zeros_really_written_and_a_mark(folder: Folder, writer: Journal) -> None:
    data = folder.read(segment_name(1))
    assert data == bytes(BYTES - END_BYTES) + b"end 0000000000008192\n"
    assert is_blank(data)
    assert os.stat(os.path.join(folder.path, segment_name(1))).st_blocks * 512 >= BYTES


def test_what_was_appended_is_scanned(folder: Folder, writer: Journal) -> None:
    for _ in range(3):
        write(writer)
    scan = scanned(folder)
    assert scan.position == writer.position
    assert scan.generation == 3
    assert not scan.torn


def test_a_full_segment_is_followed_by_the_next(folder: Folder, writer: Journal) -> None:
    for _ in range(60):
        write(writer)
    firsts = list(segments(folder))
    assert firsts[0] == 1
    assert len(firsts) == 3
    assert writer.position.segment == segment_name(firsts[-1])
    assert scanned(folder).position == writer.position


def test_a_segment_made_in_advance_is_used(folder: Folder, writer: Journal) -> None:
    writer.prepare()
    writer.prepare()
    (spare,) = [name for name in folder.names() if name.endswith(".tmp")]
    inode = os.stat(spare, dir_fd=folder.fd).st_ino
    write(writer)
    writer.rotate()
    assert os.stat(segment_name(2), dir_fd=folder.fd).st_ino == inode


def test_a_line_longer_than_a_segment_gets_a_longer_one(folder: Folder, writer: Journal) -> None:
    write(writer, "y" * 20_000)  # into the very first, which is still blank
    write(writer)
    writer.prepare()
    write(writer, "z" * 30_000)
    assert scanned(folder).position == writer.position
    assert [name for name in folder.names() if name.endswith(".tmp")] == []
    assert all(len(folder.read(name)) % 4096 == 0 for name in segments(folder).values())


def line_of(writer: Journal, length: int) -> tuple[bytes, str]:
    """Return the next line of exactly *length* bytes, and its chain."""
    for letter in "abcdefgh":  # the CRC has nine or ten digits, so that some lengths are left out
        for size in range(length - 400, length):
            change = Change("beat", (Put(BEATS, "a", Beat(0)),), note=letter * size)
            made = codec.encode_commit(writer.generation + 1, NOW, [change], writer.position.chain)
            if len(made[0]) == length:
                return made
    raise AssertionError("no line is so long")


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("in_advance", [False, True])
def test_a_line_ends_where_the_mark_begins_and_not_behind(
    folder: Folder, writer: Journal, *, more: int, in_advance: bool
) -> None:
    write(writer)
    if in_advance:
        writer.prepare()
        room = BYTES - END_BYTES
    else:
        room = BYTES - END_BYTES - writer.position.offset
    writer.append(*line_of(writer, room + more))
    assert scanned(folder).position == writer.position
    name, size = writer.position.segment, len(folder.read(writer.position.segment))
    assert (name == segment_name(1)) == (not in_advance and more == 0)
    assert (size > BYTES) == (in_advance and more == 1)


def test_a_segment_is_never_written_twice(folder: Folder, writer: Journal) -> None:
    write(writer)
    (Path(folder.path) / segment_name(2)).touch()
    with pytest.raises(InvariantViolation, match="exists"):
        writer.rotate()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_after_a_failure_nothing_is_written_and_no_flush_is_tried_again(
    folder: Folder, writer: Journal, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write(writer)
    before = writer.position
    calls = []

    def fail(*args: object) -> None:
        calls.append(args)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(CommitFailed, match="Input/output error"):
        write(writer)
    for _ in range(3):
        with pytest.raises(CommitFailed, match="nothing more is written"):
            write(writer)
    assert len(calls) == 1
    assert writer.position == before
    assert writer.failed is not None


def test_no_room_for_a_new_segment_leaves_the_present_one_in_use(
    folder: Folder, writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CommitFailed, match="nothing was written"):
            write(writer, "y" * 20_000)
        assert writer.failed is None
        assert [name for name in folder.names() if name.endswith(".tmp")] == []
        write(writer)  # what fits still goes
    assert scanned(folder).generation == 1


def test_a_short_write_goes_on(
    folder: Folder, writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:7], at))
    write(writer)
    assert scanned(folder).generation == 1


def patch_file(folder: Folder, name: str, offset: int, data: bytes) -> None:
    fd = folder.open(name, os.O_RDWR)
    os.pwrite(fd, data, offset)
    os.close(fd)


@pytest.mark.parametrize("missing", ["end", "middle", "start", "all but the first byte"])
def test_a_last_line_without_some_sectors_is_torn(
    folder: Folder, writer: Journal, missing: str
) -> None:
    write(writer)
    torn_at = writer.position.offset
    write(writer, "y" * 3000)
    end = writer.position.offset
    sector = torn_at - torn_at % 512 + 512
    start, stop = {
        "end": (sector + 512, end),
        "middle": (sector, sector + 1024),
        "start": (torn_at, sector),
        "all but the first byte": (torn_at + 1, end),
    }[missing]
    patch_file(folder, segment_name(1), start, bytes(stop - start))
    scan = scanned(folder)
    assert scan.torn
    assert scan.generation == 1
    assert scan.position.offset == torn_at


@pytest.mark.parametrize("harm", [b"\0", b"?", b"\n", b"\0" * 40, b"x" * 40])
def test_a_last_line_that_was_complete_is_damaged(
    folder: Folder, writer: Journal, harm: bytes
) -> None:
    write(writer)
    start = writer.position.offset
    write(writer, "y" * 3000)
    place = start - start % 512 + 1100
    patch_file(folder, segment_name(1), place, harm)
    with pytest.raises(LedgerCorrupt, match=rf"{segment_name(1)}, offset {start}: .*CRC"):
        scanned(folder)


def test_a_last_line_may_be_torn_within_its_seal(folder: Folder, writer: Journal) -> None:
    write(writer)
    start = writer.position.offset
    writer.append(*line_of(writer, 2048 + 20 - start % 512))
    patch_file(folder, segment_name(1), writer.position.offset - 20, bytes(20))
    scan = scanned(folder)
    assert (scan.torn, scan.generation, scan.position.offset) == (True, 1, start)


def test_a_last_line_that_fills_its_sector_is_not_torn_by_damage_to_its_end(
    folder: Folder, writer: Journal
) -> None:
    write(writer)
    start = writer.position.offset
    writer.append(*line_of(writer, 2048 - start % 512))
    patch_file(folder, segment_name(1), writer.position.offset - 1, b"?")
    with pytest.raises(LedgerCorrupt, match=f"offset {start}: "):
        scanned(folder)


def test_a_line_in_the_middle_is_never_torn(folder: Folder, writer: Journal) -> None:
    write(writer, "y" * 3000)
    write(writer)
    patch_file(folder, segment_name(1), 512, bytes(512))
    with pytest.raises(LedgerCorrupt, match="offset 0"):
        scanned(folder)


def test_a_line_that_is_not_the_next_is_damage(folder: Folder, writer: Journal) -> None:
    write(writer)
    writer.generation = 5
    write(writer)
    with pytest.raises(LedgerCorrupt, match="generation 6 follows 1"):
        scanned(folder)


def test_a_missing_segment_is_seen(folder: Folder, writer: Journal) -> None:
    for _ in range(60):
        write(writer)
    first, second, third = segments(folder).values()
    data = {name: folder.read(name) for name in (second, third)}
    folder.unlink(second)
    with pytest.raises(LedgerCorrupt, match=f"{first}.*goes on behind it"):
        scanned(folder)
    (Path(folder.path) / second).write_bytes(data[second])
    folder.unlink(third)
    with pytest.raises(LedgerCorrupt, match=f"{second}.*follows it is missing"):
        scanned(folder)
    (Path(folder.path) / third).write_bytes(data[third])
    assert scanned(folder).generation == 60


def test_a_segment_ends_where_the_next_begins(folder: Folder, writer: Journal) -> None:
    """A line that was answered as not done does not come back, whatever the disk kept of it."""
    write(writer)
    durable, generation = writer.position, writer.generation
    write(writer, "not done")
    position = seal(folder, durable, generation, BYTES)
    fresh = Journal(folder, position, generation, BYTES)
    write(fresh, "done")
    scan = Scan(folder, START, 0)
    notes = [change.note for commit in scan for change in commit.changes]
    assert notes == ["x", "done"]
    assert scan.position == fresh.position
    fresh.close()


def test_sealed_segments_are_archived_cut_to_their_lines(folder: Folder, writer: Journal) -> None:
    for _ in range(60):
        write(writer)
    before = {name: folder.read(name) for name in segments(folder).values()}
    archive(folder, writer.position, NOW.wall_ms)
    assert list(segments(folder).values()) == [writer.position.segment]
    archived = Folder(os.path.join(folder.path, ARCHIVE))
    assert len(segments(archived)) == 2
    for name in segments(archived).values():
        lines = before[name][:-END_BYTES].rstrip(b"\0")
        assert archived.read(name) == lines
    archived.close()


def test_a_segment_is_durable_in_the_archive_before_its_name_goes(
    folder: Folder, writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(60):
        write(writer)
    steps: list[str] = []
    fsync, unlink = os.fsync, os.unlink

    def note_fsync(fd: int) -> None:
        steps.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    def note_unlink(name: str, *, dir_fd: int) -> None:
        steps.append(f"-{name}")
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "unlink", note_unlink)
    sealed = [name for name in segments(folder).values() if name != writer.position.segment]
    archive(folder, writer.position, NOW.wall_ms)
    assert steps == [step for name in sealed for step in (name, ARCHIVE, f"-{name}")]


def test_archiving_goes_on_after_a_crash_in_its_middle(folder: Folder, writer: Journal) -> None:
    for _ in range(60):
        write(writer)
    first = segment_name(1)
    os.mkdir(os.path.join(folder.path, ARCHIVE))
    os.link(os.path.join(folder.path, first), os.path.join(folder.path, ARCHIVE, first))
    archive(folder, writer.position, NOW.wall_ms)
    assert list(segments(folder).values()) == [writer.position.segment]


def test_the_archive_forgets_the_oldest(
    folder: Folder, writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.archive.ARCHIVE_BYTES", 10_000)
    for _ in range(100):
        write(writer)
    archive(folder, writer.position, NOW.wall_ms)
    archived = Folder(os.path.join(folder.path, ARCHIVE))
    assert len(segments(archived)) == 1
    last = next(iter(segments(archived).values()))
    os.utime(last, (0, 0), dir_fd=archived.fd)
    writer.rotate()
    archive(folder, writer.position, NOW.wall_ms)
    assert last not in segments(archived).values()
    archived.close()


def test_looks_torn_takes_zeros_only_from_where_a_sector_begins() -> None:
    assert looks_torn(b"a" * 512 + bytes(512) + b"c" * 100 + b"\n" + bytes(3000), 0)
    assert looks_torn(b"a" * 700 + bytes(3000), 0)
    assert not looks_torn(b"a" * 500 + bytes(12 + 512) + b"c\n" + bytes(3000), 0)
    assert not looks_torn(b"a" * 512 + b"\n" + b"b" * 511 + bytes(3000), 0)
    assert not looks_torn(b"a" * 700 + b"\n" + bytes(3000), 0)


@pytest.mark.parametrize("name", ["journal-1.jsonl", "journal-0000000000000001.jsonl.x", "x"])
def test_other_names_are_no_segments(name: str) -> None:
    assert journal.first_generation(name) is None
    assert journal.first_generation(segment_name(12)) == 12
