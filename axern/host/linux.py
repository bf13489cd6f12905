"""Constants and thin wrappers for system calls that the standard library lacks."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_M_MMAP_THRESHOLD = -3
_libc = ctypes.CDLL(None, use_errno=True)

# include/uapi/asm-generic/unistd.h; the numbers above 403 are the same on every architecture.
_NR_OPEN_TREE = 428
_NR_MOVE_MOUNT = 429
_NR_FSOPEN = 430
_NR_FSCONFIG = 431
_NR_FSMOUNT = 432
_NR_OPENAT2 = 437
_NR_MOUNT_SETATTR = 442

# include/uapi/linux/sched.h
CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWNET = 0x40000000

# include/uapi/linux/mount.h
MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x00100000
OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
FSOPEN_CLOEXEC = 0x1
FSMOUNT_CLOEXEC = 0x1
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6

# include/linux/fs.h
MNT_DETACH = 0x2
UMOUNT_NOFOLLOW = 0x8

# include/uapi/linux/fs.h
RENAME_NOREPLACE = 0x1
RENAME_EXCHANGE = 0x2

# include/uapi/linux/fcntl.h
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

# include/uapi/linux/openat2.h
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
RESOLVE_IN_ROOT = 0x10

# include/uapi/linux/fs.h: _IOR('f', 1, long) and _IOW('f', 2, long)
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_SETFLAGS = 0x40086602
FS_IMMUTABLE_FL = 0x10
FS_APPEND_FL = 0x20

# include/uapi/linux/inotify.h
IN_MODIFY = 0x002
IN_CLOSE_WRITE = 0x008
IN_MOVED_TO = 0x080
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000

_INOTIFY_HEADER = struct.Struct("iIII")
_INOTIFY_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class InotifyEvent:
    """One change in a watched folder; `name` is empty for the folder itself."""

    watch: int
    mask: int
    name: str


def oserror(path: str | None = None) -> OSError:
    """Return the error that the last wrapped call left in errno, with *path* if it had one."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)


def _check(result: int, path: str | None = None) -> int:
    if result < 0:
        raise oserror(path)
    return result


def mount(
    source: str, target: str, filesystem: str | None = None, flags: int = 0, options: str = ""
) -> None:
    """Mount *source* on *target* with MS_* *flags*; raise OSError naming *target*."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        filesystem.encode() if filesystem else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _check(result, target)


def unmount(target: str, flags: int = UMOUNT_NOFOLLOW) -> None:
    """Undo the topmost mount on *target*, following no link; raise OSError naming *target*."""
    _check(_libc.umount2(os.fsencode(target), flags), target)


def detached_mount(filesystem: str, options: Mapping[str, str]) -> int:
    """Return a descriptor of a new mount that is nowhere, and goes with its last descriptor."""
    context = _check(_libc.syscall(_NR_FSOPEN, filesystem.encode(), FSOPEN_CLOEXEC))
    try:
        for key, value in options.items():
            text = (key.encode(), os.fsencode(value))
            _check(_libc.syscall(_NR_FSCONFIG, context, FSCONFIG_SET_STRING, *text, 0))
        _check(_libc.syscall(_NR_FSCONFIG, context, FSCONFIG_CMD_CREATE, None, None, 0))
        return _check(_libc.syscall(_NR_FSMOUNT, context, FSMOUNT_CLOEXEC, 0))
    finally:
        os.close(context)


def open_tree(path: str, *, dir_fd: int = AT_FDCWD, flags: int = OPEN_TREE_CLONE) -> int:
    """Return a descriptor of a detached clone of the one mount at *path*, submounts left out."""
    call = flags | OPEN_TREE_CLOEXEC | (0 if path else AT_EMPTY_PATH)
    return _check(_libc.syscall(_NR_OPEN_TREE, dir_fd, os.fsencode(path), call), path)


def mount_setattr(tree_fd: int, attributes: int, userns_fd: int | None = None) -> None:
    """Set MOUNT_ATTR_* on a detached tree; with *userns_fd* also map its ids through it.

    Source: include/uapi/linux/mount.h, struct mount_attr, 32 bytes.
    """
    if userns_fd is not None:
        attributes |= MOUNT_ATTR_IDMAP
    request = struct.pack("QQQQ", attributes, 0, 0, userns_fd or 0)
    _check(_libc.syscall(_NR_MOUNT_SETATTR, tree_fd, b"", AT_EMPTY_PATH, request, len(request)))


def change_mount(path: str, *, add: int = 0, clear: int = 0, recursive: bool = False) -> None:
    """Add and clear MOUNT_ATTR_* on the mount at *path*, and on all below it if *recursive*."""
    request = struct.pack("QQQQ", add, clear, 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    result = _libc.syscall(
        _NR_MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, request, len(request)
    )
    _check(result, path)


def unshare(flags: int) -> None:
    """Give this process the new CLONE_NEW* namespaces in *flags*; it must have one thread."""
    _check(_libc.unshare(flags))


def setns(fd: int, kind: int) -> None:
    """Move this thread into the namespace that *fd* has open, which is of the CLONE_NEW* *kind*."""
    _check(_libc.setns(fd, kind))


def syncfs(fd: int) -> None:
    """Write everything of the file system that *fd* lies on to the disk."""
    _check(_libc.syncfs(fd))


def rename_new(source: str, target: str) -> None:
    """Rename *source* to *target*, which must not exist; raise OSError naming *target*."""
    _rename(source, target, RENAME_NOREPLACE)


def exchange(one: str, other: str) -> None:
    """Let *one* and *other*, on one file system, change names in one step; raise OSError."""
    _rename(one, other, RENAME_EXCHANGE)


def _rename(source: str, target: str, flags: int) -> None:
    result = _libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags)
    _check(result, target)


def move_mount(tree_fd: int, target: str) -> None:
    """Attach a detached tree at *target*; raise OSError naming it."""
    _check(
        _libc.syscall(
            _NR_MOVE_MOUNT, tree_fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH
        ),
        target,
    )


def openat2(dir_fd: int, path: str, flags: int, *, resolve: int, mode: int = 0) -> int:
    """Open *path* below *dir_fd* under RESOLVE_* rules; raise OSError naming *path*.

    Source: include/uapi/linux/openat2.h, struct open_how, 24 bytes.
    """
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, resolve)
    return _check(_libc.syscall(_NR_OPENAT2, dir_fd, os.fsencode(path), how, len(how)), path)


def inotify_init() -> int:
    """Return a new inotify descriptor, non-blocking and closed on exec."""
    return _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(inotify_fd: int, path: str, mask: int) -> int:
    """Watch *path* for the IN_* events in *mask* and return the watch's number."""
    return _check(
        _libc.inotify_add_watch(inotify_fd, os.fsencode(path), ctypes.c_uint32(mask)), path
    )


def inotify_rm_watch(inotify_fd: int, watch: int) -> None:
    """End a watch; one that the kernel has already ended is no error."""
    if _libc.inotify_rm_watch(inotify_fd, watch) < 0 and ctypes.get_errno() != errno.EINVAL:
        raise oserror()


def inotify_read(inotify_fd: int) -> Iterator[InotifyEvent]:
    """Yield what has happened since the last read; nothing if nothing has."""
    try:
        data = os.read(inotify_fd, _INOTIFY_READ_BYTES)
    except BlockingIOError:
        return
    offset = 0
    while offset < len(data):
        watch, mask, _cookie, length = _INOTIFY_HEADER.unpack_from(data, offset)
        offset += _INOTIFY_HEADER.size
        name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
        offset += length
        yield InotifyEvent(watch, mask, name)


def get_inode_flags(fd: int) -> int:
    """Return the FS_*_FL flags of an open file; raise OSError where the file system has none."""
    answer = fcntl.ioctl(fd, FS_IOC_GETFLAGS, struct.pack("l", 0))
    return int(struct.unpack("l", answer)[0])


def set_inode_flags(fd: int, flags: int) -> None:
    """Set the FS_*_FL flags of an open file."""
    fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("l", flags))


def give_back_from(size_bytes: int) -> None:
    """Let each buffer of *size_bytes* or more go back to the kernel as soon as it is freed.

    By itself glibc raises that bound to the largest that was freed, up to 32 MiB, and keeps the
    memory for every thread apart. Other C libraries have no such bound.
    Source: mallopt(3), M_MMAP_THRESHOLD; malloc.h.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, size_bytes)
