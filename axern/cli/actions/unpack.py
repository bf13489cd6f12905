"""Takes what a sandbox sent into a folder of ours, and follows no link on the way, whoever made it.

Each component of a name is opened by itself, and only if it is a folder. A link is made only if it
stays within what is copied: it is relative, and goes up at its beginning alone, no higher than the
top. Every folder that we make is one, so that such a link is resolved within the top whatever
others it passes through. What is left out is told, and the rest goes on.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator

from axern.cli.actions.untar import (
    FILE,
    FOLDER,
    HARD_LINK,
    LINK,
    ArchiveRefused,
    Entry,
    components,
)

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacker:
    """Makes entries below the folder *parent_fd*, what the archive calls *base* as *name*.

    *leave_out* is told of each that can't be made, and why.
    """

    def __init__(
        self,
        parent_fd: int,
        base: tuple[bytes, ...],
        name: bytes,
        leave_out: Callable[[str, str], None],
    ) -> None:
        self._parent_fd = parent_fd
        self._base = base
        self._name = name
        self._leave_out = leave_out
        self._made: set[tuple[int, int]] = set()
        self._modes: list[tuple[tuple[bytes, ...], int]] = []

    def unpack(self, entries: Iterable[Entry], content: Callable[[], Iterator[bytes]]) -> None:
        """Make every one of *entries*, of which *content* gives the bytes of the present one.

        Raises:
            ArchiveRefused: One is not below what was asked for, or would go through a link.
            OSError: It can't be written.
        """
        for entry in entries:
            path = self._placed(entry.path)
            try:
                self._make(entry, path, content)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                raise ArchiveRefused(
                    f"{_shown(path)} would be written through what is no folder"
                ) from None
        for path, mode in reversed(self._modes):
            folder_fd = self._open(path)
            try:
                os.fchmod(folder_fd, mode)
            finally:
                os.close(folder_fd)

    def _placed(self, path: tuple[bytes, ...]) -> tuple[bytes, ...]:
        if path[: len(self._base)] != self._base:
            raise ArchiveRefused(f"the archive has {_shown(path)}, which was not asked for")
        return (self._name, *path[len(self._base) :])

    def _make(
        self, entry: Entry, path: tuple[bytes, ...], content: Callable[[], Iterator[bytes]]
    ) -> None:
        if entry.kind == FOLDER:
            os.close(self._open(path, make=True))
            self._modes.append((path, entry.mode | stat.S_IRWXU))
            return
        if entry.kind not in (FILE, LINK, HARD_LINK):
            self._leave_out(_shown(path), "it is no file, folder or link")
            return
        if entry.kind == LINK and not stays_within(entry.target, len(path) - 2):
            self._leave_out(_shown(path), "it is a link that leads out of what is copied")
            return
        folder_fd = self._open(path[:-1], make=True)
        try:
            if entry.kind == HARD_LINK:
                self._link(entry, path, folder_fd)
                return
            _clear(path[-1], folder_fd)
            if entry.kind == LINK:
                os.symlink(entry.target, path[-1], dir_fd=folder_fd)
            else:
                self._write(entry, path[-1], folder_fd, content)
        finally:
            os.close(folder_fd)

    def _write(
        self, entry: Entry, name: bytes, folder_fd: int, content: Callable[[], Iterator[bytes]]
    ) -> None:
        file_fd = os.open(name, _MAKE_FILE, 0o600, dir_fd=folder_fd)
        with open(file_fd, "wb", buffering=0) as file:
            for part in content():
                rest = memoryview(part)
                while rest:
                    rest = rest[file.write(rest) :]
            os.fchmod(file_fd, entry.mode)
            status = os.fstat(file_fd)
            self._made.add((status.st_dev, status.st_ino))

    def _link(self, entry: Entry, path: tuple[bytes, ...], folder_fd: int) -> None:
        """Make a second name of a file that was made here before, and of no other."""
        target = self._placed(components(entry.target))
        if target == path:
            return
        target_fd = self._open(target[:-1])
        try:
            status = os.stat(target[-1], dir_fd=target_fd, follow_symlinks=False)
            if (status.st_dev, status.st_ino) not in self._made:
                raise ArchiveRefused(f"{_shown(path)} would be a name of a file that is not copied")
            _clear(path[-1], folder_fd)
            os.link(
                target[-1],
                path[-1],
                src_dir_fd=target_fd,
                dst_dir_fd=folder_fd,
                follow_symlinks=False,
            )
        except FileNotFoundError:
            raise ArchiveRefused(f"{_shown(path)} would be a name of nothing") from None
        finally:
            os.close(target_fd)

    def _open(self, path: tuple[bytes, ...], *, make: bool = False) -> int:
        """Return a descriptor of the folder *path*, each component a folder and no link."""
        folder_fd = os.dup(self._parent_fd)
        for component in path:
            try:
                try:
                    below_fd = os.open(component, _OPEN_FOLDER, dir_fd=folder_fd)
                except FileNotFoundError:
                    if not make:
                        raise
                    os.mkdir(component, 0o755, dir_fd=folder_fd)
                    below_fd = os.open(component, _OPEN_FOLDER, dir_fd=folder_fd)
            finally:
                os.close(folder_fd)
            folder_fd = below_fd
        return folder_fd


def stays_within(target: bytes, depth: int) -> bool:
    """Tell whether a link to *target* stays within the top; it lies in a folder *depth* below it.

    A depth of -1 is that of the top itself, which as a link has nothing to stay within.
    """
    if depth < 0 or not target or target.startswith(b"/"):
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = next((place for place, part in enumerate(parts) if part != b".."), len(parts))
    return ups <= depth and b".." not in parts[ups:]


def _clear(name: bytes, folder_fd: int) -> None:
    """Remove the file or link that has this name; a folder stays, and is an error later."""
    try:
        os.unlink(name, dir_fd=folder_fd)
    except FileNotFoundError:
        return


def _shown(path: tuple[bytes, ...]) -> str:
    return b"/".join(path)[:200].decode("utf-8", "backslashreplace")
