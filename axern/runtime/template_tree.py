"""Take a strange tree over as the root file system of a template: the one way in.

Every step is relative to an open folder and follows no link, so that nothing outside the source
is read and nothing outside the target is written. Whatever could do harm on the host is left out:
devices, sockets, pipes, setuid bits, extended attributes other than `user.*`, other mounts.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field

from axern.errors import TemplateRefused
from axern.host import linux
from axern.host.idmap import IDS_PER_LANE
from axern.runtime.template_meter import Meter

DEPTH_LIMIT = 256
"""Folders below each other; a folder costs two descriptors while it is copied."""
PATH_LIMIT_BYTES = 4_000
"""No program in a sandbox could name a longer path: PATH_MAX is 4,096."""
_SHOWN_LENGTH = 200
_CHUNK_BYTES = 1024**2
_ROOT_MODE = 0o755
_KEPT_OF_FOLDERS = 0o3777
_KEPT_OF_FILES = 0o777
"""Neither setuid nor setgid: the template lies on the host, where they would be alive."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_OPEN_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STAY_BELOW = linux.RESOLVE_BENEATH | linux.RESOLVE_NO_SYMLINKS | linux.RESOLVE_NO_XDEV
_LEFT_OUT = {
    stat.S_IFCHR: "device nodes",
    stat.S_IFBLK: "device nodes",
    stat.S_IFIFO: "named pipes",
    stat.S_IFSOCK: "sockets",
}


@dataclass(slots=True)
class _Level:
    """One folder that is being taken over; `path` is relative to the root, empty for the root."""

    source_fd: int
    target_fd: int
    path: str
    status: os.stat_result
    names: list[str]


@dataclass(slots=True)
class _Taking:
    """One walk through a tree; `linked` has the new path of each file that has several names."""

    target_root_fd: int
    meter: Meter
    moves: bool
    linked: dict[tuple[int, int], str] = field(default_factory=dict)


def take_over(source: str, target: str, meter: Meter, *, moves: bool) -> None:
    """Copy, or with *moves* move, the tree *source* into the new folder *target*.

    Args:
        source: An absolute path, trusted up to its last part; its content is not.
        target: What must not exist, in a folder that nobody else may write to.
        meter: Counts, and ends what is too much.
        moves: Only if both are on one file system and nobody else changes *source*.

    Raises:
        TemplateRefused: Something in it can't be in a template; the message has its path.
        HostFull: The disk has no more room.
    """
    os.mkdir(target, 0o700)
    try:
        source_fd = os.open(source, _OPEN_FOLDER & ~os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as err:
        raise TemplateRefused(f"{shown(source)}: {os.strerror(err.errno or 0)}") from err
    target_fd = os.open(target, _OPEN_FOLDER | os.O_CLOEXEC)
    levels = [_Level(source_fd, target_fd, "", os.fstat(source_fd), os.listdir(source_fd))]
    taking = _Taking(os.dup(target_fd), meter, moves)
    try:
        while levels:
            level = levels[-1]
            if not level.names:
                _finish(level)
                _close(levels.pop())
                continue
            inner = _take(taking, level, level.names.pop())
            if inner is not None:
                levels.append(inner)
                if len(levels) > DEPTH_LIMIT:
                    _refuse(inner.path, f"folders nest deeper than {DEPTH_LIMIT}")
    finally:
        os.close(taking.target_root_fd)
        for level in levels:
            _close(level)


def shown(path: str) -> str:
    """Return *path* as a message may show it: printable, and of bounded length."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    text = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    return text if len(text) <= _SHOWN_LENGTH else f"…{text[-_SHOWN_LENGTH:]}"


def _refuse(path: str, rule: str, hint: str | None = None) -> None:
    raise TemplateRefused(f"/{shown(path)}: {rule}", hint=hint)


def _take(taking: _Taking, level: _Level, name: str) -> _Level | None:
    """Take one entry over; return its level if it is a folder."""
    path = f"{level.path}/{name}" if level.path else name
    if len(os.fsencode(path)) > PATH_LIMIT_BYTES:
        _refuse(path, f"a path may have at most {PATH_LIMIT_BYTES} bytes")
    try:
        status = os.stat(name, dir_fd=level.source_fd, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind in _LEFT_OUT:
            taking.meter.left_out[_LEFT_OUT[kind]] += 1
            taking.meter.look()
            return None
        if max(status.st_uid, status.st_gid) >= IDS_PER_LANE:
            _refuse(
                path,
                f"it belongs to {status.st_uid}:{status.st_gid}; a sandbox has the ids 0 to "
                f"{IDS_PER_LANE - 1} only",
                hint="change its owner: chown -h",
            )
        taking.meter.add(entries=1)
        if kind == stat.S_IFDIR:
            return _take_folder(taking, level, name, path)
        if kind == stat.S_IFLNK:
            _take_link(level, name, status)
        else:
            _take_file(taking, level, name, path, status)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise _changed(path) from err
    except OSError as err:
        if err.errno in (errno.ELOOP, errno.EINVAL):
            raise _changed(path) from err
        if err.errno == errno.EFBIG:
            _refuse(path, "it is larger than a template may be (template_max)")
        raise
    return None


def _changed(path: str) -> TemplateRefused:
    return TemplateRefused(
        f"/{shown(path)}: it changed while it was read",
        hint="import something that nobody writes to",
    )


def _take_folder(taking: _Taking, level: _Level, name: str, path: str) -> _Level | None:
    os.mkdir(name, 0o700, dir_fd=level.target_fd)
    try:
        source_fd = linux.openat2(level.source_fd, name, _OPEN_FOLDER, resolve=_STAY_BELOW)
    except OSError as err:
        if err.errno != errno.EXDEV:
            raise
        taking.meter.left_out["mounts"] += 1
        return None
    status = os.fstat(source_fd)
    target_fd = linux.openat2(level.target_fd, name, _OPEN_FOLDER, resolve=_STAY_BELOW)
    return _Level(source_fd, target_fd, path, status, os.listdir(source_fd))


def _finish(level: _Level) -> None:
    """Give a folder what its source has, now that nothing is written into it any more."""
    _take_attributes(level.source_fd, level.target_fd)
    if level.path:
        os.fchown(level.target_fd, level.status.st_uid, level.status.st_gid)
        os.fchmod(level.target_fd, level.status.st_mode & _KEPT_OF_FOLDERS)
    else:
        os.fchmod(level.target_fd, _ROOT_MODE)
    os.utime(level.target_fd, ns=(level.status.st_mtime_ns, level.status.st_mtime_ns))


def _close(level: _Level) -> None:
    os.close(level.source_fd)
    os.close(level.target_fd)


def _take_link(level: _Level, name: str, status: os.stat_result) -> None:
    os.symlink(os.readlink(name, dir_fd=level.source_fd), name, dir_fd=level.target_fd)
    os.chown(name, status.st_uid, status.st_gid, dir_fd=level.target_fd, follow_symlinks=False)
    times = (status.st_mtime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=level.target_fd, follow_symlinks=False)


def _take_file(
    taking: _Taking, level: _Level, name: str, path: str, status: os.stat_result
) -> None:
    key = (status.st_dev, status.st_ino)
    if key in taking.linked:
        os.link(
            taking.linked[key],
            name,
            src_dir_fd=taking.target_root_fd,
            dst_dir_fd=level.target_fd,
            follow_symlinks=False,
        )
        return
    source_fd = linux.openat2(level.source_fd, name, _OPEN_FILE, resolve=_STAY_BELOW)
    try:
        if not _is_same(os.fstat(source_fd), status):
            raise _changed(path)
        if taking.moves:
            _move_file(taking, level, name, source_fd, status)
        else:
            _copy_file(taking, level, name, path, source_fd, status)
    finally:
        os.close(source_fd)
    if status.st_nlink > 1:
        taking.linked[key] = path


def _move_file(
    taking: _Taking, level: _Level, name: str, source_fd: int, status: os.stat_result
) -> None:
    os.rename(name, name, src_dir_fd=level.source_fd, dst_dir_fd=level.target_fd)
    taking.meter.add(written_bytes=status.st_blocks * 512)
    for attribute in os.listxattr(source_fd):
        if not attribute.startswith("user."):
            os.removexattr(source_fd, attribute)
    os.fchmod(source_fd, status.st_mode & _KEPT_OF_FILES)


def _copy_file(
    taking: _Taking,
    level: _Level,
    name: str,
    path: str,
    source_fd: int,
    status: os.stat_result,
) -> None:
    target_fd = os.open(name, _NEW_FILE, 0o600, dir_fd=level.target_fd)
    try:
        _copy_content(taking.meter, source_fd, target_fd, status.st_size)
        if not _is_same(os.fstat(source_fd), status):
            raise _changed(path)
        _take_attributes(source_fd, target_fd)
        os.fchown(target_fd, status.st_uid, status.st_gid)
        os.fchmod(target_fd, status.st_mode & _KEPT_OF_FILES)
        os.utime(target_fd, ns=(status.st_mtime_ns, status.st_mtime_ns))
    finally:
        os.close(target_fd)


def _copy_content(meter: Meter, source_fd: int, target_fd: int, size: int) -> None:
    """Copy *size* bytes, holes as holes; what grows meanwhile is noticed by the caller."""
    os.ftruncate(target_fd, size)
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(source_fd, offset, os.SEEK_DATA)
        except OSError as err:
            if err.errno == errno.ENXIO:
                return  # nothing but a hole up to the end
            raise
        end = min(size, os.lseek(source_fd, offset, os.SEEK_HOLE))
        while offset < end:
            data = os.pread(source_fd, min(_CHUNK_BYTES, end - offset), offset)
            if not data:
                return
            meter.add(written_bytes=len(data))
            offset += os.pwrite(target_fd, data, offset)


def _is_same(now: os.stat_result, before: os.stat_result) -> bool:
    """Tell whether a file is still the one that *before* describes, with the same content."""
    return (now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns) == (
        before.st_dev,
        before.st_ino,
        before.st_mode,
        before.st_size,
        before.st_mtime_ns,
    )


def _take_attributes(source_fd: int, target_fd: int) -> None:
    try:
        names = os.listxattr(source_fd)
    except OSError:
        return  # such as a file system that has none
    for name in names:
        if name.startswith("user."):
            os.setxattr(target_fd, name, os.getxattr(source_fd, name))
