"""Locks that go with their process: on a file that is open already, or on a folder as such.

Source: flock(2).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING

from axern.errors import HostError

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_S = 0.05


def take(descriptor: int, timeout_s: float) -> bool:
    """Lock what *descriptor* has open; return False where it is still held after *timeout_s*."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True


@contextlib.contextmanager
def alone_in(folder: str, timeout_s: float) -> Iterator[None]:
    """Keep others out who ask for the same *folder*; one that is not there keeps nobody out.

    Raises:
        HostError: Somebody else is still in there after *timeout_s*.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        if not take(descriptor, timeout_s):
            raise HostError(
                f"{folder}: another process tries the same, for more than {timeout_s:g} s",
                syscall="flock",
                path=folder,
            )
        yield
    finally:
        os.close(descriptor)
