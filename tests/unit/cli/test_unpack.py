"""What a sandbox sends is taken in whole, or refused: nothing of it is ever written elsewhere."""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from axern.cli.actions.unpack import Unpacker, stays_within
from axern.cli.actions.untar import ArchiveRefused, Reader, components

ROUNDS = 10_000 if os.environ.get("AXERN_LONG") else 500
NAMES = ("a", "b", "own", "up", "top", "l1", "l2", "etc")
ODD = ("..", ".", "", "a/../..", "/", "top/../../outside", "\udcff", "x" * 300, "top/own/new")
TARGETS = (
    *("..", "../..", "../../outside", "/etc", "a", "./a", "own", "l1", "l1/..", "l2/../..", ""),
    *("own/canary", "../up", "../outside/canary", "a/b/../../../outside", "top/own/canary"),
)
TYPES = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE)
MORE_TYPES = (tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"S", b"V", b"Z")


def unpack(data: bytes, into: Path, base: str = "top", name: str = "top") -> list[str]:
    """Take *data* in as `axern cp` does, and return what was left out."""
    left_out: list[str] = []
    reader = Reader(io.BytesIO(data).read)
    parent_fd = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpacker = Unpacker(
            parent_fd,
            components(base.encode()),
            name.encode(),
            lambda what, _: left_out.append(what),
        )
        unpacker.unpack(reader, reader.content)
    finally:
        os.close(parent_fd)
    return left_out


def snapshot(top: Path) -> list[tuple[object, ...]]:
    """Return all that is below *top*, links not followed."""
    found: list[tuple[object, ...]] = []
    for folder, folders, files in os.walk(top):
        for name in sorted(folders + files):
            path = Path(folder) / name
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found.append((str(path), stat.S_IMODE(status.st_mode), status.st_nlink, content))
    return found


def archive(entries: list[tarfile.TarInfo], form: Literal[0, 1, 2] = tarfile.GNU_FORMAT) -> bytes:
    """Return the bytes of an archive; a file's content is as long as it says, 64 KiB at most."""
    out = io.BytesIO()
    for entry in entries:
        out.write(entry.tobuf(form, errors="surrogateescape"))
        size = min(entry.size, 65536) if entry.type == tarfile.REGTYPE else 0
        out.write(b"x" * size + b"\0" * (-size % 512))
    out.write(b"\0" * 1024)
    return out.getvalue()


def hostile(chance: random.Random) -> bytes:
    """Return an archive that tries to get out."""
    entries = []
    for _ in range(chance.randrange(1, 12)):
        parts = [chance.choice(NAMES) for _ in range(chance.randrange(0, 4))]
        if chance.random() < 0.15:
            parts.insert(chance.randrange(len(parts) + 1), chance.choice(ODD))
        if chance.random() < 0.95:
            parts.insert(0, "top")
        entry = tarfile.TarInfo("/".join(parts))
        entry.type = chance.choice(TYPES if chance.random() < 0.9 else MORE_TYPES)
        entry.mode = chance.choice((0o644, 0o777, 0o4755, 0o000))
        entry.size = chance.choice((0, 5, 700)) if entry.type == tarfile.REGTYPE else 0
        if entry.type in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            entry.linkname = chance.choice(TARGETS)
            if entry.type == tarfile.LNKTYPE and chance.random() < 0.7:
                entry.linkname = "top/" + entry.linkname
        entries.append(entry)
    data = bytearray(archive(entries, chance.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))))
    if chance.random() < 0.1:
        data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


def prepare(base: Path) -> tuple[Path, Path]:
    """Make a folder to copy into, with links of our own in it, and one that nobody may touch."""
    outside, into = base / "outside", base / "into"
    outside.mkdir()
    (outside / "canary").write_bytes(b"canary")
    (into / "top").mkdir(parents=True)
    (into / "top" / "own").symlink_to("../../outside")
    (into / "up").symlink_to("..")
    return outside, into


def escapes(into: Path, before: list[tuple[object, ...]], outside: Path) -> list[str]:
    """Name whatever an archive has reached outside of what is copied, or could be followed to."""
    found = [] if snapshot(outside) == before else ["what is outside has changed"]
    found += [f"{path} is new" for path in into.iterdir() if path.name not in ("top", "up")]
    top = (into / "top").resolve() if not (into / "top").is_symlink() else into / "top"
    for folder, folders, files in os.walk(into / "top"):
        for name in folders + files:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            ours = path == into / "top" / "own" and path.is_symlink()
            if stat.S_ISLNK(mode) and not ours and "own" not in path.readlink().parts:
                target = Path(os.path.realpath(path))
                if not target.is_relative_to(top):
                    found.append(f"{path} leads to {target}")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                found.append(f"{path} is a device")
            if mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(f"{path} is set-uid")
    return found


def play(base: Path, number: int, take: Callable[[bytes, Path], None]) -> list[str]:
    chance = random.Random(number)
    outside, into = prepare(base)
    before = snapshot(base / "outside")
    with contextlib.suppress(ArchiveRefused, OSError):
        take(hostile(chance), into)
    try:
        return escapes(into, before, outside)
    finally:
        shutil.rmtree(base)


def test_hostile_archives_reach_nothing_outside(tmp_path: Path) -> None:
    taken = 0

    def take(data: bytes, into: Path) -> None:
        nonlocal taken
        unpack(data, into)
        taken += 1

    for number in range(ROUNDS):
        base = tmp_path / str(number)
        base.mkdir()
        assert play(base, number, take) == [], number
    assert ROUNDS // 10 < taken < ROUNDS  # some are taken, with what was left out, and some are not


def linked(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


# Relative ways out alone: what is trusted below must not get any further than the test's folder.
WAYS_OUT = (
    [tarfile.TarInfo("top/../../outside/new")],
    [linked("top/l", "../../outside"), tarfile.TarInfo("top/l/new")],
    [tarfile.TarInfo("top/own/new")],
    [linked("top/l", "../../outside")],
    [linked("top/l", "a/../../../outside")],
    [tarfile.TarInfo("other")],
)


@pytest.mark.parametrize("entries", WAYS_OUT)
def test_control_a_trusting_reader_is_caught(
    tmp_path: Path, entries: list[tarfile.TarInfo]
) -> None:
    for name in ("trusted", "ours"):
        (tmp_path / name).mkdir()
        outside, into = prepare(tmp_path / name)
        before = snapshot(outside)
        data = archive(entries)
        if name == "ours":
            with contextlib.suppress(ArchiveRefused):
                unpack(data, into)
            assert escapes(into, before, outside) == []
        else:
            with tarfile.open(fileobj=io.BytesIO(data)) as trusted:
                trusted.extractall(into, filter="fully_trusted")  # noqa: S202 - as it says
            assert escapes(into, before, outside) != []


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_an_honest_archive_is_taken_in_whole(tmp_path: Path, form: int) -> None:
    source, into = tmp_path / "top", tmp_path / "into"
    into.mkdir()
    (source / "a" / "deep").mkdir(parents=True)
    (source / "a" / "file").write_bytes(os.urandom(700_000))
    (source / "a" / "file").chmod(0o751)
    long = "n" * (200 if form != tarfile.USTAR_FORMAT else 90)
    (source / "a" / long).write_bytes(b"long")
    (source / "a" / "deep" / "up").symlink_to("../file")
    (source / "a" / "deep" / "side").symlink_to("up")
    os.link(source / "a" / "file", source / "second")
    (source / "closed").mkdir()
    (source / "closed" / "in").write_bytes(b"in")
    (source / "closed").chmod(0o700)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as packed:
        packed.add(source, "./top")
    assert unpack(out.getvalue(), into, name="other") == []
    made = into / "other"
    assert (made / "a" / "file").read_bytes() == (source / "a" / "file").read_bytes()
    assert stat.S_IMODE((made / "a" / "file").stat().st_mode) == 0o751
    assert (made / "a" / long).read_bytes() == b"long"
    assert (made / "a" / "deep" / "side").read_bytes() == (made / "a" / "file").read_bytes()
    assert (made / "second").samefile(made / "a" / "file")
    assert stat.S_IMODE((made / "closed").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        (b"x", 0, True),
        (b"../x", 0, False),
        (b"../x", 1, True),
        (b"../../x", 1, False),
        (b"x/../y", 5, False),  # where x is a link, its parent is elsewhere
        (b"/x", 5, False),
        (b"", 5, False),
        (b"x", -1, False),
        (b"./../x", 1, True),
    ],
)
def test_which_links_stay_within(target: bytes, depth: int, *, inside: bool) -> None:
    assert stays_within(target, depth) == inside


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    head = bytearray(512)
    head[: len(name)] = name
    head[100:108], head[124:136], head[156:157] = b"0000644\0", size, kind
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + 256 + sum(head[156:]))
    return bytes(head)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut short"),
        (b"x" * 512, "no number"),
        (header(b"top", b"77777777777\0") + b"\0" * 1024, "cut short|too large"),
        (header(b"top", b"\x80" + b"\xff" * 11), "too large"),
        (header(b"top", b"\xff" * 12), "no number"),
        (header(b"top", b"77777777777\0", b"L"), "great length"),
        (header(b"top", b"00000000000\0", b"g") * 9, "without end"),
        (header(b"top", b"00000001000\0", b"S"), "unknown type"),
        (header(b"/etc/passwd", b"00000000000\0"), "absolute"),
        (header(b"top/../x", b"00000000000\0"), "leads out"),
        (header(b"other", b"00000000000\0"), "not asked for"),
        (header(b"top", b"00000000000\0") + b"\0" * 2 * 1024**2, "behind its end"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(ArchiveRefused, match=why):
        unpack(data, tmp_path)


def test_bounds_on_number_and_size() -> None:
    data = archive([tarfile.TarInfo(f"top/{number}") for number in range(10)])
    with pytest.raises(ArchiveRefused, match="too many"):
        list(Reader(io.BytesIO(data).read, entries_limit=9))
    entry = tarfile.TarInfo("top/large")
    entry.size = 1000
    with pytest.raises(ArchiveRefused, match="too large"):
        list(Reader(io.BytesIO(archive([entry])).read, total_limit_bytes=999))
