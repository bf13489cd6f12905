"""The mounts of this process's mount namespace: lists, isolates and undoes them."""

from __future__ import annotations

import errno
import os
import re
import time

from axern.errors import MountError
from axern.host.linux import MS_BIND, MS_PRIVATE, mount, unmount

_OCTAL = re.compile(r"\\([0-7]{3})")
_BACK_OFF_START_S = 0.001
_BACK_OFF_LIMIT_S = 0.05


def mounts_from_text(mountinfo: str, folder: str) -> tuple[str, ...]:
    """Return the mount points at and below *folder*, one for each mount, in the file's order.

    Source: Documentation/filesystems/proc.rst, section 3.5; spaces and the like are octal there.
    """
    points = (_unescape(line.split(" ", 5)[4]) for line in mountinfo.splitlines())
    return tuple(point for point in points if point == folder or point.startswith(folder + "/"))


def mounts_below(folder: str) -> tuple[str, ...]:
    """Return the present mount points at and below *folder*, a path without links."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return mounts_from_text(file.read(), folder)


def identity(folder: str) -> str:
    """Return what changes whenever *folder* comes to lie on another mount, or on a read-only one.

    Cheap: no list of mounts is read. Source: Documentation/filesystems/proc.rst, section 3.8.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        flags = os.fstatvfs(descriptor).f_flag
        device = os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
    return f"{folder} on mount {lines['mnt_id'].strip()}, device {device}, flags {flags:#x}"


def make_private(folder: str) -> None:
    """Make *folder* a mount of its own that spreads nothing to other mount namespaces.

    Safe to repeat; a second call finds the mount and only sets its propagation.

    Raises:
        MountError: The kernel refused.
    """
    try:
        if folder not in mounts_below(folder):
            mount(folder, folder, flags=MS_BIND)
        mount("", folder, flags=MS_PRIVATE)
    except OSError as err:
        raise MountError(
            f"cannot make {folder} a private mount", syscall="mount", path=folder, errno=err.errno
        ) from err


def unmount_below(folder: str, timeout_s: float) -> tuple[str, ...]:
    """Undo every mount at and below *folder*, the newest first, and return where they were.

    Nothing is detached lazily: an unmounted file system is no longer in use here.

    Raises:
        MountError: One is still busy after *timeout_s*.
    """
    deadline_s = time.monotonic() + timeout_s
    pause_s = _BACK_OFF_START_S
    undone: list[str] = []
    while points := mounts_below(folder):
        try:
            for point in sorted(points, key=len, reverse=True):
                unmount(point)
                undone.append(point)
        except OSError as err:
            if err.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise MountError(
                    f"cannot unmount {err.filename}",
                    syscall="umount2",
                    path=err.filename,
                    errno=err.errno,
                ) from err
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACK_OFF_LIMIT_S)
    return tuple(undone)


def _unescape(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
