"""Blank segments: filled ahead with zeros that are really written, and the ballast made of one.

The ballast is a segment kept in reserve for a disk without room. It takes its place in the journal
by a rename, so that nobody else can have the room that it gives up.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

from ledger.files import Folder, write_all

SEGMENT_BYTES = 4 * 1024**2
"""Default size: a few thousand admissions, and filled within one or two hundredths of a second."""
BALLAST = "ledger.ballast"
BALLAST_SEGMENTS = 4
"""How large the ballast is: enough to end all that a node of usual size holds, many times over."""
END_BYTES = len("end 0123456789012345\n")

_PAGE_BYTES = 4096
_FILL = bytes(1024**2)


class Blank(NamedTuple):
    """A durable segment without a line, still under a temporary name; `size` in bytes."""

    name: str
    fd: int
    size: int


def end_mark(size: int, *, goes_on: bool = False) -> bytes:
    """Return the last bytes of a segment of *size* bytes; another one follows if it *goes_on*."""
    return b"%b %016d\n" % (b"and" if goes_on else b"end", size)


def is_blank(data: bytes) -> bool:
    """Tell whether *data* is a whole segment without a line."""
    return data == bytes(max(0, len(data) - END_BYTES)) + end_mark(len(data))


def make_blank(folder: Folder, size: int) -> Blank:
    """Make a blank segment of at least *size* bytes.

    The zeros are really written: a flush of a line then changes no metadata of the file system.
    """
    size += -size % _PAGE_BYTES
    name, fd = folder.create_temporary("journal")
    try:
        for offset in range(0, size, len(_FILL)):
            write_all(fd, memoryview(_FILL)[: size - offset], offset)
        write_all(fd, end_mark(size), size - END_BYTES)
        os.fsync(fd)
    except OSError:
        os.close(fd)
        folder.unlink(name)
        raise
    return Blank(name, fd, size)


class Ballast:
    """The segment in reserve: `lay` makes it, in a thread if need be, `take` gives it up."""

    def __init__(self, folder: Folder, segment_bytes: int) -> None:
        self.size = BALLAST_SEGMENTS * segment_bytes
        self._folder = folder
        self._moving = threading.Lock()
        self.is_there = folder.exists(BALLAST)

    def lay(self) -> None:
        """Make it, if it is not there.

        Raises:
            OSError: There is no room for it; nothing is changed.
        """
        if self.is_there:
            return
        blank = make_blank(self._folder, self.size)
        os.close(blank.fd)
        try:
            with self._moving:
                self._folder.rename(blank.name, BALLAST)
                self.is_there = True
        except OSError:
            self._folder.unlink(blank.name)
            raise
        self._folder.sync()

    def take(self, least_bytes: int) -> Blank | None:
        """Give it up as a blank segment, if it is there, whole and of *least_bytes* at least.

        Raises:
            OSError: It can't be read or renamed.
        """
        with self._moving:
            if not self.is_there:
                return None
            name = self._folder.temporary_name("journal")
            self._folder.rename(BALLAST, name)  # swept, should we die before it has its place
            self.is_there = False
        size = len(data := self._folder.read(name))
        if size < least_bytes or not is_blank(data):
            self._folder.unlink(name)
            return None
        return Blank(name, self._folder.open(name, os.O_RDWR), size)
