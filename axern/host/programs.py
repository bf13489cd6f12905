"""The programs that sandboxes depend on: which file one is, and whether it is still the same."""

from __future__ import annotations

import functools
import hashlib
import os
import stat

from axern.errors import CapabilityMissing
from axern.host.inventory import Program, find_program

_PARTS = ("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
_SHOWN_DIGITS = 12


def identity(path: str) -> str:
    """Return what changes whenever the program at *path* is replaced or written to.

    Raises:
        CapabilityMissing: There is none.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as err:
        raise _missing(path) from err
    return f"{path}:" + ":".join(str(getattr(status, part)) for part in _PARTS)


def digest(path: str) -> str:
    """Return the SHA-256 of the program at *path* in hexadecimal, read again once it changes."""
    return _digest(path, identity(path))


@functools.lru_cache(maxsize=8)
def _digest(path: str, identified: str) -> str:
    del identified
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ask(path: str) -> Program:
    """Return the program at *path* with the version that it says it has.

    Raises:
        CapabilityMissing: It is missing, or can't be executed.
        HostError: It could not be told.
    """
    identified = identity(path)
    before, found = _asked.get(path, ("", None))
    if found is None or before != identified:
        found = find_program(os.path.basename(path), path)
        if found is None:
            raise _missing(path)
        _asked[path] = identified, found
    return found


_asked: dict[str, tuple[str, Program]] = {}
"""What was found at each path, and which program answered; what did not is asked again."""


def known(path: str) -> Program | None:
    """Return what `ask` last found at *path*, without asking; None for what is not there now."""
    try:
        identified = identity(path)
    except (CapabilityMissing, OSError):
        return None
    before, program = _asked.get(path, ("", None))
    return program if before == identified else None


def described(path: str) -> str:
    """Return path, version and the beginning of the digest of the program at *path*.

    Raises:
        CapabilityMissing: It is missing, or can't be executed.
        HostError: It could not be told.
    """
    found = ask(path)
    return f"{path} {found.version} (sha256 {digest(path)[:_SHOWN_DIGITS]}…)"


def who_may_change(path: str) -> str | None:
    """Return what lets somebody but root replace the program at *path*, or None: nothing does."""
    for place in (path, os.path.dirname(os.path.realpath(path))):
        status = os.stat(place)
        if status.st_uid != 0:
            return f"{place} belongs to uid {status.st_uid}"
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{place} may be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _missing(path: str) -> CapabilityMissing:
    name = os.path.basename(path)
    return CapabilityMissing(
        f"{path} is not there, or can't be executed",
        syscall="execve",
        path=path,
        hint=f"apt-get install {name}, or say where it is with the key {name}",
    )
