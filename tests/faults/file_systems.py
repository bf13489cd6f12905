"""Real file systems in files, made to fail: shut down, without inodes, on a medium that is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

EXT4, XFS = "ext4", "xfs"
_MIB = 1024**2
_IMAGE_BYTES = {EXT4: 48 * _MIB, XFS: 320 * _MIB}
_BLOCK_BYTES = 4096
_MAKERS = {
    EXT4: ("mkfs.ext4", "-q", "-F", "-b", str(_BLOCK_BYTES)),
    XFS: ("mkfs.xfs", "-q", "-f"),
}
# include/uapi/linux/fs.h
_FIBMAP = 1


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system of one *kind* in the file *image*, to be mounted at *point*."""

    kind: str
    image: Path
    point: Path

    def mount(self) -> None:
        """Mount it, as it was left."""
        run("mount", "-o", "loop", str(self.image), str(self.point))

    def unmount(self) -> None:
        """Unmount it; what is in memory is written, if it still can be."""
        run("umount", str(self.point))

    def again(self) -> None:
        """Forget all that is not on the medium, as a restart of the host does."""
        self.unmount()
        self.mount()

    def shut_down(self) -> None:
        """Let it answer everything with an error from now on; nothing more is written."""
        run("xfs_io", "-x", "-c", "shutdown", str(self.point))

    def become_read_only(self) -> None:
        """Let an ext4 that was made with `-e remount-ro` find an error in itself."""
        device = os.path.basename(run("findmnt", "-no", "SOURCE", str(self.point)).strip())
        Path("/sys/fs/ext4", device, "trigger_fs_error").write_text("1", encoding="ascii")

    def lose(self, path: Path, start: int, end: int) -> None:
        """Give up the medium's blocks of the bytes from *start* to *end* of a file, all zeros."""
        with open(path, "rb") as file:
            for index in range(-(-start // _BLOCK_BYTES), end // _BLOCK_BYTES):
                answer = fcntl.ioctl(file, _FIBMAP, struct.pack("i", index))
                block = struct.unpack("i", answer)[0]
                assert block
                run(
                    *("fallocate", "--punch-hole", "-o", str(block * _BLOCK_BYTES)),
                    *("-l", str(_BLOCK_BYTES), str(self.image)),
                )


@contextlib.contextmanager
def made(folder: Path, kind: str, *options: str) -> Iterator[FileSystem]:
    """Make a file system with an image in *folder*, mounted; afterwards nothing is left of it."""
    system = FileSystem(kind, folder / f"{kind}.image", folder / kind)
    with open(system.image, "wb") as image:
        image.truncate(_IMAGE_BYTES[kind])
    system.point.mkdir()
    run(*_MAKERS[kind], *options, str(system.image))
    if kind == EXT4:  # else what it has reserved for itself could not be written on a full medium
        run("fallocate", "-l", str(_IMAGE_BYTES[kind]), str(system.image))
    system.mount()
    try:
        yield system
    finally:
        system.unmount()
        system.image.unlink()
        system.point.rmdir()


class Medium:
    """Memory that images lie in and that can run out, mounted at *point*."""

    def __init__(self, point: Path) -> None:
        self._point = point

    def run_out(self) -> None:
        """Leave no room: a block that was never written, or was given up, can't be written."""
        used = os.statvfs(self._point)
        self._resize(str((used.f_blocks - used.f_bfree) * used.f_frsize))

    def come_back(self) -> None:
        """Have room again."""
        self._resize("1g")

    def _resize(self, size: str) -> None:
        run("mount", "-o", f"remount,size={size}", str(self._point))


@contextlib.contextmanager
def medium(point: Path) -> Iterator[Medium]:
    """Yield memory at *point*, which lies in no swap; afterwards it is gone."""
    point.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", str(point))
    try:
        yield Medium(point)
    finally:
        run("umount", str(point))
        point.rmdir()


def run(*argv: str) -> str:
    """Run a program to its end and return what it says."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (argv, done.stderr)
    return done.stdout
