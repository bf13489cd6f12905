"""The filestore: one folder a sandbox for what it writes, removed without a trace.

What is removed was written by a stranger: links are never followed, no depth or name can stop the
removal, and it never reaches into a mount.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Callable

from axern.errors import FilestoreError
from axern.host.linux import (
    FS_APPEND_FL,
    FS_IMMUTABLE_FL,
    RESOLVE_BENEATH,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    get_inode_flags,
    openat2,
    set_inode_flags,
)

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STAY_BELOW = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the file system. Source: stat(2)."""


def create_folder(path: str, *, mode: int, uid: int = 0, gid: int = 0) -> None:
    """Make the folder *path* with exactly this mode and owner; its parent must exist.

    Raises:
        FilestoreError: It exists already, or the file system refused.
    """
    try:
        os.mkdir(path, 0o700)
        os.chown(path, uid, gid)
        os.chmod(path, mode)
    except OSError as err:
        raise FilestoreError(
            f"cannot make the folder {path}", syscall="mkdir", path=path, errno=err.errno
        ) from err


def secure_folder(path: str, mode: int) -> None:
    """Make the folder *path* where it is missing, and take rights beyond *mode* from it.

    Whoever may write there could put anything in our place, so it must be our own.

    Raises:
        FilestoreError: It belongs to somebody else, is no folder, or can't be made.
    """
    try:
        os.makedirs(path, mode=mode, exist_ok=True)
        descriptor = os.open(path, _OPEN_FOLDER)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise FilestoreError(
                    f"the folder {path} belongs to uid {status.st_uid}",
                    syscall="fstat",
                    path=path,
                    hint=f"chown {os.geteuid()} {path}, if nobody else needs it",
                )
            if stat.S_IMODE(status.st_mode) & ~mode:
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode) & mode)
        finally:
            os.close(descriptor)
    except OSError as err:
        raise FilestoreError(
            f"cannot use the folder {path}", syscall="open", path=path, errno=err.errno
        ) from err


def remove_tree(path: str) -> bool:
    """Remove the tree at *path* and return whether there was one; safe to repeat after a crash.

    Each folder that is not empty is first moved up to the top, so that depth costs neither
    descriptors nor recursion: only two levels ever exist.

    Raises:
        FilestoreError: Something resists: a mount, or a file system error.
    """
    parent_path, name = os.path.split(path)
    try:
        parent_fd = os.open(parent_path, _OPEN_FOLDER)
    except FileNotFoundError:
        return False
    try:
        return _remove_below(parent_fd, name)
    except OSError as err:
        raise FilestoreError(
            f"cannot remove {path}", syscall="unlink", path=path, errno=err.errno
        ) from err
    finally:
        os.close(parent_fd)


def _remove_below(parent_fd: int, name: str) -> bool:
    try:
        top_fd = _open_below(parent_fd, name)
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent_fd)
        return True
    try:
        _make_mutable(top_fd)
        serial = _empty(top_fd, top_fd, 0)
        while folders := os.listdir(top_fd):
            for folder in folders:
                folder_fd = _open_below(top_fd, folder)
                try:
                    _make_mutable(folder_fd)
                    serial = _empty(folder_fd, top_fd, serial)
                finally:
                    os.close(folder_fd)
                os.rmdir(folder, dir_fd=top_fd)
    finally:
        os.close(top_fd)
    os.rmdir(name, dir_fd=parent_fd)
    return True


def _empty(folder_fd: int, top_fd: int, serial: int) -> int:
    """Unlink the files of a folder and move its full folders to the top; return the next serial."""
    with os.scandir(folder_fd) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if not is_folder:
            _insist(folder_fd, name, functools.partial(os.unlink, name, dir_fd=folder_fd))
        elif not _remove_if_empty(folder_fd, name) and folder_fd != top_fd:
            serial = _move_up(folder_fd, name, top_fd, serial)
    return serial


def _remove_if_empty(folder_fd: int, name: str) -> bool:
    try:
        _insist(folder_fd, name, functools.partial(os.rmdir, name, dir_fd=folder_fd))
    except OSError as err:
        if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _move_up(folder_fd: int, name: str, top_fd: int, serial: int) -> int:
    """Move a folder to the top under the first serial that is free; return the one after it.

    A name that a removal cut short has left there is either empty, then rename replaces it, or
    full, then the next serial is tried.
    """
    while True:
        fresh = f"axern-removed-{serial}"
        serial += 1
        try:
            _insist(
                folder_fd,
                name,
                functools.partial(os.rename, name, fresh, src_dir_fd=folder_fd, dst_dir_fd=top_fd),
            )
        except OSError as err:
            if err.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return serial


def _insist(folder_fd: int, name: str, action: Callable[[], None]) -> None:
    """Do *action* on the entry *name*; if it is not permitted, make the entry mutable first."""
    try:
        action()
    except PermissionError:
        entry_fd = openat2(
            folder_fd,
            name,
            os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW,
            resolve=_STAY_BELOW,
        )
        try:
            _make_mutable(entry_fd)
        finally:
            os.close(entry_fd)
        action()


def _open_below(folder_fd: int, name: str) -> int:
    return openat2(folder_fd, name, _OPEN_FOLDER, resolve=_STAY_BELOW)


def _make_mutable(fd: int) -> None:
    """Clear the immutable and append-only flags where the file system has such flags."""
    try:
        flags = get_inode_flags(fd)
    except OSError:
        return
    if flags & (FS_IMMUTABLE_FL | FS_APPEND_FL):
        set_inode_flags(fd, flags & ~(FS_IMMUTABLE_FL | FS_APPEND_FL))


MOST_COUNTED = 100_000
"""Entries of a tree that are measured; a stranger may have made any number of them."""


def usage_bytes(path: str) -> int | None:
    """Return the bytes on disk of the tree at *path*, or None where it has too many entries.

    What vanishes meanwhile, or lies too deep to be named, is left out.
    """
    total, left, folders = 0, MOST_COUNTED, [path]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        return None
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue
    return total
