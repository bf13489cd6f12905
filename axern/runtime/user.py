"""Who the workload is: `--user` looked up in the root file system's own passwd and group files.

Those files are the workload's, so that they are read through no link that leads out of the root,
up to a bound, and a line that makes no sense is passed over. As container engines do it: an id need
not be known, its group is then 0; who names no group gets all that the user is a member of.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from axern.errors import RootfsRefused
from axern.host import idmap, linux

_FILE_LIMIT_BYTES = 1024**2
_GROUPS_LIMIT = 1024
"""Supplementary groups of one user; the kernel takes 65,536."""
_PATH_LIMIT_BYTES = 4095
_PASSWD, _GROUP = "/etc/passwd", "/etc/group"
_PASSWD_FIELDS, _GROUP_FIELDS = 7, 4


@dataclass(frozen=True, slots=True)
class Identity:
    """The ids inside the sandbox that a workload starts with, and its home folder there."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def resolve(user: str, rootfs: str) -> Identity:
    """Return who *user*, `UID[:GID]` or `NAME[:GROUP]`, is inside the mounted *rootfs*.

    Raises:
        RootfsRefused: A name is not in the file that would know it, or the file can't be read.
    """
    wanted, _, wanted_group = user.partition(":")
    root_fd = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name, uid, gid, home = _find_user(wanted, _lines(root_fd, _PASSWD, _PASSWD_FIELDS))
        if wanted_group.isdigit():
            return Identity(uid, int(wanted_group), (), home)
        groups = list(_lines(root_fd, _GROUP, _GROUP_FIELDS))
    finally:
        os.close(root_fd)
    if wanted_group:
        return Identity(uid, _find_group(wanted_group, groups), (), home)
    member = {_id(line[2]) for line in groups if name and name in line[3].split(b",")}
    known = sorted(group for group in member if group is not None and group != gid)
    return Identity(uid, gid, tuple(known[:_GROUPS_LIMIT]), home)


def _find_user(wanted: str, lines: Iterator[list[bytes]]) -> tuple[bytes, int, int, str]:
    """Return name, uid, gid and home; the name is empty for an id that the file does not know."""
    is_id = wanted.isdigit()
    for line in lines:
        uid, gid = _id(line[2]), _id(line[3])
        is_meant = uid == int(wanted) if is_id else line[0] == wanted.encode()
        if is_meant and uid is not None and gid is not None:
            return line[0], uid, gid, _home(line[5])
    if is_id:
        return b"", int(wanted), 0, "/"
    raise RootfsRefused(
        f"user {wanted} is not in {_PASSWD} of the root file system",
        hint="give a number, for example --user 1000:1000",
    )


def _find_group(wanted: str, lines: list[list[bytes]]) -> int:
    name = wanted.encode()
    found = (_id(line[2]) for line in lines if line[0] == name)
    gid = next((gid for gid in found if gid is not None), None)
    if gid is not None:
        return gid
    raise RootfsRefused(
        f"group {wanted} is not in {_GROUP} of the root file system",
        hint="give a number, for example --user 1000:1000",
    )


def _id(text: bytes) -> int | None:
    """Return the id that *text* is, or None where a sandbox has no such id."""
    if not text.isdigit() or len(text) > len(str(idmap.IDS_PER_LANE)):
        return None
    return int(text) if int(text) < idmap.IDS_PER_LANE else None


def _home(field: bytes) -> str:
    """Return the home folder, or `/` for what could not be one."""
    try:
        text = field.decode()
    except UnicodeDecodeError:
        return "/"
    usable = text.startswith("/") and text.isprintable() and len(field) <= _PATH_LIMIT_BYTES
    return text if usable else "/"


def _lines(root_fd: int, path: str, fields: int) -> Iterator[list[bytes]]:
    """Yield the fields of each whole line of *path* inside the root; none if it is not there."""
    for line in _read(root_fd, path).split(b"\n"):
        parts = line.split(b":")
        if len(parts) == fields:
            yield parts


def _read(root_fd: int, path: str) -> bytes:
    rules = linux.RESOLVE_IN_ROOT | linux.RESOLVE_NO_MAGICLINKS
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # a pipe must not keep us; devices are dead
    try:
        descriptor = linux.openat2(root_fd, path, flags, resolve=rules)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as err:
        reason = os.strerror(err.errno or 0)
        raise RootfsRefused(f"{path} of the root file system: {reason}") from err
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RootfsRefused(f"{path} of the root file system is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            text = file.read(_FILE_LIMIT_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(text) > _FILE_LIMIT_BYTES:
        raise RootfsRefused(f"{path} of the root file system is larger than 1 MiB")
    return text
