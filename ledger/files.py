"""File operations below one directory: no link is followed, every new file is made under O_EXCL.

Everything goes through `os` by name and a directory descriptor, so that a test can stop, count or
refuse each step, and so that moving the directory away can't redirect a write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import NoReturn

from ledger.errors import (
    CommitFailed,
    FileSystemRefused,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    NotFound,
    PermissionDenied,
)

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What a disk says that has no room, for anybody or for us."""
_SCARCE = {
    errno.EMFILE: "this process may open no more files: raise its limit (ulimit -n, LimitNOFILE=)",
    errno.ENFILE: "the host may open no more files: close some, or raise fs.file-max",
    errno.ENOMEM: "the kernel has no memory left: end something, then try again",
}
"""What a process or a host runs out of, which says nothing of the ledger, and what helps."""
_SCARCE_RETRY_AFTER_S = 1
LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay"})
"""Where locks, renames and flushes are known to do what the ledger needs; the rest is refused."""

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: a planted pipe must not hang us
_TEMPORARY = re.compile(r".+\.[0-9a-f]{16}\.tmp", re.ASCII)


class Folder:
    """A directory held open; its files are named by their bare name."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the directory; nothing was written through it, so that no error matters."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    def names(self) -> list[str]:
        """Return the names in the directory, sorted."""
        # By a descriptor of its own: how far it was read is shared by all that are made of one.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def exists(self, name: str) -> bool:
        """Tell whether *name* exists, whatever it is."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of the existing plain file *name*.

        Raises:
            LedgerCorrupt: It is a link, a pipe or anything else but a plain file.
            OSError: The kernel says no.
        """
        try:
            fd = os.open(name, flags | _OPEN, dir_fd=self.fd)
        except OSError:
            if self.exists(name) and not self._is_plain(name):
                self._refuse_kind(name)
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            self._refuse_kind(name)
        return fd

    def read(self, name: str) -> bytes:
        """Return the whole content of the plain file *name*; raises as `open` does."""
        fd = self.open(name)
        try:
            chunks = []
            wanted = os.fstat(fd).st_size
            while chunk := os.read(fd, max(4096, wanted)):  # each is as large as it may become
                chunks.append(chunk)
                wanted -= len(chunk)
        finally:
            os.close(fd)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def temporary_name(self, name: str) -> str:
        """Return a name beside *name* that the next opener sweeps."""
        return f"{name}.{os.urandom(8).hex()}.tmp"

    def create_temporary(self, name: str) -> tuple[str, int]:
        """Create an empty file beside *name* and return (its own name, descriptor).

        Beside, because a rename is atomic within a file system only.
        """
        temporary = self.temporary_name(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN
        fd = os.open(temporary, flags, FILE_MODE, dir_fd=self.fd)
        try:
            os.fchmod(fd, FILE_MODE)  # whatever the umask is
        except OSError:
            os.close(fd)
            raise
        return temporary, fd

    def rename(self, old: str, new: str) -> None:
        """Give *old* the name *new*, taking the place of what had it."""
        os.rename(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def link(self, old: str, new: str, target: Folder | None = None) -> None:
        """Give *old* a second name, in *target* or here; raises FileExistsError if it is taken."""
        fd = self.fd if target is None else target.fd
        os.link(old, new, src_dir_fd=self.fd, dst_dir_fd=fd, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        """Remove *name*; one that is gone already is fine."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def sync(self) -> None:
        """Make the names in the directory durable."""
        os.fsync(self.fd)

    def sweep(self) -> None:
        """Remove temporary files that a crash left; only for who holds the lock."""
        for name in self.names():
            if _TEMPORARY.fullmatch(name):
                self.unlink(name)

    def _is_plain(self, name: str) -> bool:
        mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        return stat.S_ISREG(mode)

    def _refuse_kind(self, name: str) -> NoReturn:
        raise LedgerCorrupt(
            f"{os.path.join(self.path, name)} is not a plain file, and links are not followed",
            hint="find out who put it there, then put the file itself back",
        )


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of *data* at *offset*; a short write goes on where it stopped."""
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, offset)
        offset += count
        rest = rest[count:]


def translate(error: OSError, directory: str) -> LedgerError | NotFound | PermissionDenied:
    """Return what *error*, met while opening the ledger in *directory*, means to a user."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    what = str(error.filename or directory)
    if isinstance(error, PermissionError):
        return PermissionDenied(
            f"the ledger in {directory} can't be read: {what}: {reason}",
            hint="members of the group axern may read it",
        )
    if isinstance(error, FileNotFoundError):
        return NotFound(
            f"there is no ledger in {directory}: {what}: {reason}",
            hint="start axernd once, or name the right directory",
        )
    if error.errno in (*NO_ROOM, errno.EROFS):
        return CommitFailed(
            f"the ledger in {directory} can't be written: {what}: {reason}",
            hint="make room on its file system, or mount it writable",
        )
    if error.errno in _SCARCE:
        return LedgerBusy(
            f"the ledger in {directory} can't be opened: {what}: {reason}",
            hint=_SCARCE[error.errno],
            retry_after_s=_SCARCE_RETRY_AFTER_S,
        )
    return LedgerCorrupt(
        f"the ledger in {directory} can't be read: {what}: {reason}", hint=check_hint(directory)
    )


def check_hint(directory: str) -> str:
    """Return the hint that every damage to the ledger in *directory* carries."""
    return f"look at it with: python -m ledger check {directory}"


def file_system_of(path: str) -> str:
    """Return the type of the file system that *path* lies on.

    Source: kernel Documentation/filesystems/proc.rst, section 3.5, /proc/PID/mountinfo.
    """
    path = os.path.realpath(path)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        lines = [line.split() for line in mounts]
    best, kind = "", "unknown"
    for fields in lines:
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts at one point, the later one is seen
            best, kind = point, fields[fields.index("-") + 1]
    return kind


def require_local(path: str) -> None:
    """Do nothing if the ledger may lie in *path*.

    Raises:
        FileSystemRefused: It lies on a network file system, or on one that is not on the list.
    """
    kind = file_system_of(path)
    if kind not in LOCAL_FILE_SYSTEMS:
        raise FileSystemRefused(
            f"{path} is on {kind}, and the ledger needs one of "
            f"{', '.join(sorted(LOCAL_FILE_SYSTEMS))}",
            hint="set the ledger's directory to a local disk",
        )
