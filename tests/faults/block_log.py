"""A disk that logs each write and flush of a real file system, and what a power cut leaves of it.

image <- blklogwrites (QEMU's filter; the log is dm-log-writes') <- FUSE file <- loop <- mount.

What was written before the last flush is there. Of what was written after it, each piece is there
or not, as a disk with a cache has it; how small the pieces are is up to the file system.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

from axern.host import linux, loop_file

SECTOR = 512


class FileSystem(NamedTuple):
    """How one is made, and what it takes for granted: so many bytes are written whole."""

    maker: list[str]
    size_bytes: int
    atom_bytes: int


FILE_SYSTEMS = {
    "ext4": FileSystem(
        "/usr/sbin/mke2fs -q -t ext4 -b 4096 -E lazy_itable_init=0,nodiscard".split(),
        32 * 1024**2,
        SECTOR,
    ),
    # mkfs.xfs makes nothing below 300 MiB; most of it are holes. Recovery leaves a block alone
    # whose first sector is newer than the journal, so it must not find a torn one.
    "xfs": FileSystem("/usr/sbin/mkfs.xfs -q -K".split(), 320 * 1024**2, 4096),
}
START_LIMIT_S = 60.0

# Source: kernel Documentation/admin-guide/device-mapper/log-writes.rst, drivers/md/dm-log-writes.c.
_MAGIC = 0x6A736677736872
_SUPER = struct.Struct("<QQQI")
"""Magic, version, entries, bytes of a sector; alone in the first sector."""
_ENTRY = struct.Struct("<QQQQ")
"""First sector, sectors, flags, bytes of text; alone in a sector, the data behind it."""
_FLUSH, _FUA, _DISCARD = 1, 2, 4
_PIECE_BYTES = 64 * 1024

_LOOP_SET_DIRECT_IO = 0x4C08
"""Without it one request at a time comes to QEMU, which mixes up writes that overlap in time.

Source: QEMU's commit "fuse: Copy write buffer content before polling", which 7.2 does not have.
"""


class Entry(NamedTuple):
    """One thing that the disk was asked for; the log was `end` bytes long when it had been done."""

    offset: int
    data: bytes
    is_flush: bool
    end: int


def read(fd: int) -> list[Entry]:
    """Return what the log behind *fd* holds."""
    log = os.pread(fd, os.fstat(fd).st_size, 0)
    magic, version, _, sector = _SUPER.unpack_from(log)
    assert (magic, version, sector) == (_MAGIC, 1, SECTOR)
    entries, at = [], sector
    while at < len(log):
        first, count, flags, _ = _ENTRY.unpack_from(log, at)
        at += sector
        size = count * sector
        data = bytes(size) if flags & _DISCARD else log[at : at + size]
        at += 0 if flags & _DISCARD else size
        assert len(data) == size, "the log ends within an entry"
        assert not flags & _FUA, "a loop device has no such writes"
        assert not (flags & _FLUSH and data), "its flushes come alone"
        entries.append(Entry(first * sector, data, bool(flags & _FLUSH), at))
    return entries


class Cutter:
    """What power cuts leave of an image, as it was before `entries` were done to it."""

    def __init__(self, image: int, kind: str) -> None:
        self.entries: list[Entry] = []
        self._durable = copy(image)
        self._atom_bytes = FILE_SYSTEMS[kind].atom_bytes
        self._done = 0
        self._pending: list[Entry] = []

    def close(self) -> None:
        """Let go of the image."""
        os.close(self._durable)

    def cut(self, count: int, chance: random.Random) -> int:
        """Return a descriptor of what may be left after *count* entries, which may only grow."""
        for entry in self.entries[self._done : count]:
            self._pending.append(entry)
            if entry.is_flush:
                _write(self._durable, self._pending)
                self._pending.clear()
        self._done = count
        left = copy(self._durable)
        _write(left, _survivors(self._pending, self._atom_bytes, chance))
        return left

    def require_whole(self, image: int) -> None:
        """Prove that the log holds all that was done: it ends in *image*."""
        _write(self._durable, [*self._pending, *self.entries[self._done :]])
        assert content(self._durable) == content(image), "not all that was done is in the log"


def _survivors(pending: list[Entry], atom_bytes: int, chance: random.Random) -> list[Entry]:
    """Draw what has reached the disk: some writes, some pieces, or the first ones and no more."""
    luck = chance.choice((0.0, 0.5, 0.9, 1.0))
    way = chance.choice(("writes", "pieces", "in order"))
    if way == "writes":
        return [entry for entry in pending if chance.random() < luck]
    pieces = [piece for entry in pending for piece in _pieces(entry, atom_bytes)]
    if way == "pieces":
        return [piece for piece in pieces if chance.random() < luck]
    return pieces[: chance.randint(0, len(pieces))]


def _pieces(entry: Entry, atom_bytes: int) -> list[Entry]:
    if entry.offset == 0:  # ext4's superblock has one sum over two sectors
        return [entry]
    pieces, at = [], 0
    while at < len(entry.data):
        end = at + atom_bytes - (entry.offset + at) % atom_bytes
        pieces.append(entry._replace(offset=entry.offset + at, data=entry.data[at:end]))
        at = end
    return pieces


def _write(fd: int, entries: list[Entry]) -> None:
    for entry in entries:
        os.pwrite(fd, entry.data, entry.offset)


def content(image: int) -> dict[int, bytes]:
    """Return what *image* holds by its offset; what is missing is zeros."""
    found = {}
    end = 0
    with contextlib.suppress(OSError):  # ENXIO: nothing but a hole is left
        while True:
            start = os.lseek(image, end, os.SEEK_DATA)
            end = os.lseek(image, start, os.SEEK_HOLE)
            end += -end % _PIECE_BYTES
            for at in range(start - start % _PIECE_BYTES, end, _PIECE_BYTES):
                piece = os.pread(image, _PIECE_BYTES, at)
                if piece != bytes(len(piece)):
                    found[at] = piece
    return found


def copy(image: int) -> int:
    """Return a descriptor of a copy of *image* in memory."""
    made = os.memfd_create("image")
    os.ftruncate(made, os.fstat(image).st_size)
    for offset, piece in content(image).items():
        os.pwrite(made, piece, offset)
    return made


def make_image(kind: str) -> int:
    """Return a descriptor of an empty file system in memory."""
    image = os.memfd_create("image")
    os.ftruncate(image, FILE_SYSTEMS[kind].size_bytes)
    argv = [*FILE_SYSTEMS[kind].maker, _path(image)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return image


@contextlib.contextmanager
def private_mounts() -> Iterator[None]:
    """Mount out of the sight of all others: who copies the host's mounts would keep ours alive."""
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.open(".", os.O_PATH)
    before = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY)
    linux.unshare(linux.CLONE_NEWNS)
    try:
        linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        yield
    finally:
        assert libc.setns(before, linux.CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
        os.fchdir(folder)
        os.close(before)
        os.close(folder)


@contextlib.contextmanager
def mounted(image: int, kind: str, folder: str) -> Iterator[None]:
    """Mount *image* on *folder*; its loop device goes with the mount."""
    device, loop_fd = loop_file._attach(image, "image")
    try:
        fcntl.ioctl(loop_fd, _LOOP_SET_DIRECT_IO, 0)
        linux.mount(device, folder, kind)
    finally:
        os.close(loop_fd)
    try:
        yield
    finally:
        linux.unmount(folder)


@contextlib.contextmanager
def recorded(image: int, log: int, kind: str, folder: str) -> Iterator[None]:
    """Mount *image* on *folder*, and write into the empty file *log* all that is asked of it."""
    with tempfile.NamedTemporaryFile(prefix="axern-disk-") as export:
        disk = subprocess.Popen(
            [
                "qemu-storage-daemon",
                *("--blockdev", f"driver=file,node-name=image,filename={_path(image)}"),
                *("--blockdev", f"driver=file,node-name=log,filename={_path(log)}"),
                *("--blockdev", "driver=blklogwrites,node-name=disk,file=image,log=log"),
                "--export",
                f"type=fuse,id=disk,node-name=disk,mountpoint={export.name},writable=on",
            ],
            stdin=subprocess.DEVNULL,
        )
        try:
            with (
                open(_served(export.name, disk), "r+b", buffering=0) as file,
                mounted(file.fileno(), kind, folder),
            ):
                yield
        finally:
            disk.terminate()
            disk.wait()


def _served(export: str, disk: subprocess.Popen[bytes]) -> str:
    """Return *export* once it is the disk."""
    deadline_s = time.monotonic() + START_LIMIT_S
    while os.stat(export).st_size == 0:
        assert disk.poll() is None, "qemu-storage-daemon has ended"
        assert time.monotonic() < deadline_s, "qemu-storage-daemon did not start"
        time.sleep(0.005)
    return export


def _path(fd: int) -> str:
    """Return a path by which another process can open *fd* of this one."""
    return f"/proc/{os.getpid()}/fd/{fd}"
