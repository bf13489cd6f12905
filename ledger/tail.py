"""The journal from some commit on, piece by piece, beside the daemon that goes on writing it.

The files are the buffer: who reads slowly keeps nothing in memory and holds nobody up. Only
commits up to a generation that was published are read, so that none is that was not answered.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from dataclasses import dataclass
from typing import Self

from ledger.archive import ARCHIVE
from ledger.files import Folder
from ledger.journal import segment_name, segments

PIECE_BYTES = 64 * 1024
"""What is read at once: a few dozen operations, a millisecond's work to decode."""
_GENERATION = re.compile(rb'\{"generation":([1-9][0-9]{0,15}),', re.ASCII)
_WALL = re.compile(rb'"wall_ms":([0-9]{1,16}),"facts"', re.ASCII)
_NO_LINE = (b"\0", b"e", b"a")
"""What a line never begins with: zeros, and the marks at a segment's end."""
_MORE, _OVER, _BEYOND = "more", "over", "beyond"
_FOLDERS = (".", ARCHIVE, ".")
"""Where a segment may be; one that is archived while it is looked for is found on the way."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of one commit; *missing* commits before it are nowhere in the files."""

    generation: int
    data: bytes
    missing: int


class Tail:
    """Reads on behind the commit *after* of the ledger in *directory*; close it in the end.

    `generation` is the last commit that was passed. A thread may read, one at a time.
    """

    def __init__(self, directory: str, after: int) -> None:
        self.generation = after
        self._path = os.path.abspath(directory)
        self._first: int | None = None
        self._following: int | None = None
        self._fd = -1
        self._offset = 0
        self._reading = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the segment, when nobody reads it any more."""
        with self._reading:
            self._leave()

    def _leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._first, self._following = -1, None, None

    @property
    def is_cold(self) -> bool:
        """Tell whether the next piece may have to come from the disk, which is for a thread."""
        return self._fd < 0 or self._following is not None

    def read(self, horizon: int) -> list[Line]:
        """Return some of the commits up to *horizon*, which is published; none is all of them.

        Raises:
            OSError: A file can't be read.
        """
        with self._reading:
            return self._read(horizon)

    def _read(self, horizon: int) -> list[Line]:
        while self.generation < horizon and (self._fd >= 0 or self._open()):
            self._look_ahead()
            found, ends = self._piece(horizon)
            if found:
                return found
            if ends == _BEYOND or (ends == _OVER and self._following is None):
                break
            if ends == _OVER:
                self._go_on()
        return []

    def firsts(self) -> set[int]:
        """Return the first generation of each segment that there is."""
        # In this order: what is archived meanwhile is there before it is gone here.
        return self._firsts(".") | self._firsts(ARCHIVE)

    def _open(self) -> bool:
        """Open the segment that has the next commit, or the first one behind where it should be."""
        known = sorted(self.firsts())
        before = [first for first in known if first <= self.generation + 1]
        return any(map(self._enter, (*before[-1:], *known[len(before) :])))

    def _go_on(self) -> None:
        """Open the segment that follows, or the next one that is there."""
        known = sorted(self.firsts())
        following = self._following or 0
        self._leave()
        any(map(self._enter, (first for first in known if first >= following)))

    def _enter(self, first: int) -> bool:
        for place in _FOLDERS:
            with contextlib.suppress(FileNotFoundError):
                folder = Folder(os.path.join(self._path, place))
                try:
                    self._fd = folder.open(segment_name(first))
                finally:
                    folder.close()
                self._first, self._following, self._offset = first, None, 0
                return True
        return False

    def _firsts(self, place: str) -> set[int]:
        try:
            folder = Folder(os.path.join(self._path, place))
        except FileNotFoundError:
            return set()
        try:
            return set(segments(folder))
        finally:
            folder.close()

    def _look_ahead(self) -> None:
        """Find out whether another segment follows, and whether this one was replaced.

        The newest one is always in the ledger's own folder. One without a commit may be replaced by
        another of its name, after a failed flush.
        """
        if self._following is not None or self._first is None:
            return
        newest = max(self._firsts("."), default=0)
        if newest > self._first:
            known = self.firsts()
            self._following = min(each for each in known if each > self._first)
        elif not self._is_same():
            first = self._first
            self._leave()
            self._enter(first)

    def _is_same(self) -> bool:
        if self._first is None:
            return False
        try:
            there = os.stat(os.path.join(self._path, segment_name(self._first)))
        except FileNotFoundError:
            return True
        return os.path.samestat(there, os.fstat(self._fd))

    def _piece(self, horizon: int) -> tuple[list[Line], str]:
        """Return (lines, what comes behind them): more, nothing in this segment, or what waits."""
        data = self._pread()
        found: list[Line] = []
        at = 0
        while end := data.find(b"\n", at) + 1:
            line = data[at:end]
            begun = _GENERATION.match(line)
            if begun is None and line[:1] in _NO_LINE:
                return found, _OVER
            number = int(begun[1]) if begun else self.generation  # damaged: missed by the next one
            if self._following is not None and number >= self._following:
                return found, _OVER  # void
            if number > horizon:
                return found, _BEYOND
            at = end
            self._offset += len(line)
            if number > self.generation:
                found.append(Line(number, line, number - self.generation - 1))
                self.generation = number
        return found, _MORE if at else _OVER

    def _pread(self) -> bytes:
        """Return what stands at the offset: one line at least, if there is one."""
        size = PIECE_BYTES
        while True:
            data = os.pread(self._fd, size, self._offset)
            if b"\n" in data or len(data) < size or data[:1] == b"\0":
                return data
            size *= 2


def oldest(directory: str) -> int:
    """Return the generation at which the oldest segment of *directory* begins; 1 without any."""
    with Tail(directory, 0) as tail:
        return min(tail.firsts(), default=1)


def before(directory: str, wall_ms: int) -> int:
    """Return a commit behind which everything is that was committed since *wall_ms*.

    By the wall clock of the first commit of each segment; 0 is before the first one.
    """
    with Tail(directory, 0) as tail:
        known = sorted(tail.firsts(), reverse=True)
    for first in known:
        with Tail(directory, first - 1) as tail:
            lines = tail.read(first)
        wall = _WALL.search(lines[0].data) if lines else None
        if wall is not None and int(wall[1]) < wall_ms:
            return first - 1
    return known[-1] - 1 if known else 0
