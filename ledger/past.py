"""Every commit that a ledger's files still hold, archive first; read without the lock.

Nothing here decides on anything: what does not verify is told as a flaw, and the rest is told all
the same. A daemon may be writing, rotating and archiving meanwhile.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from ledger import codec
from ledger.archive import ARCHIVE
from ledger.blank import END_BYTES, end_mark
from ledger.codec import NO_CHAIN, Commit, Malformed
from ledger.errors import LedgerCorrupt
from ledger.files import Folder
from ledger.journal import looks_torn, segments

REPAIR = "repair"
"""The operation that says which commits were given up; a line of it may skip their numbers."""

DAMAGED = "damaged"
MISSING = "missing"
UNCHAINED = "unchained"
TORN = "torn"
"""The kinds of flaws. `UNCHAINED`: whole, and not what followed the line before it."""


_GENERATION = re.compile(rb'\{"generation":([1-9][0-9]{0,15}),', re.ASCII)


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: its lines without its mark, and the first generation of the next one.

    `path` is where it was found. A line that belongs to the next segment is void.
    """

    first: int
    following: int | None
    path: str
    lines: bytes


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the journal, with its line break, and where it stands."""

    path: str
    offset: int
    data: bytes

    @property
    def place(self) -> str:
        """Return where it stands, for people."""
        return f"{self.path}, offset {self.offset}"

    @property
    def generation(self) -> int | None:
        """Return the commit that it is, as far as its CRC tells; None where it is not whole."""
        claimed = _GENERATION.match(self.data)
        try:
            codec.seal_of(self.data)
        except Malformed:
            return None
        return int(claimed[1]) if claimed else None


@dataclass(frozen=True, slots=True)
class Flaw:
    """What does not verify: `generation` is the first commit that is in doubt."""

    kind: str
    place: str
    rule: str
    generation: int


class Past:
    """The segments of the ledger in *directory*, wherever each is by now; close it in the end."""

    def __init__(self, directory: str) -> None:
        self._live = Folder(directory)
        self._archive: Folder | None = None
        self._open_archive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folders."""
        self._live.close()
        if self._archive is not None:
            self._archive.close()

    def firsts(self) -> list[int]:
        """Return the first generation of each segment, ascending."""
        self._open_archive()
        archived = segments(self._archive) if self._archive else {}
        return sorted(archived | segments(self._live))

    def segments(self, since: int = 0) -> Iterator[Segment]:
        """Yield the segments that may hold commits from generation *since* on.

        Raises:
            OSError: One can't be read; not raised for one that was pruned meanwhile.
        """
        firsts = self.firsts()
        for index, first in enumerate(firsts):
            following = firsts[index + 1] if index + 1 < len(firsts) else None
            if following is None or following > since:
                found = self._read(first)
                if found is not None:
                    yield Segment(first, following, *found)

    def _open_archive(self) -> None:
        if self._archive is None:
            try:
                self._archive = Folder(os.path.join(self._live.path, ARCHIVE))
            except (FileNotFoundError, NotADirectoryError):
                return

    def _read(self, first: int) -> tuple[str, bytes] | None:
        """Return (path, lines) of a segment; what is archived meanwhile is found there."""
        name = f"journal-{first:016d}.jsonl"
        for folder in (self._live, self._archive, self._live):
            if folder is None:
                continue
            path = os.path.join(folder.path, name)
            try:
                data = folder.read(name)
            except FileNotFoundError:
                continue
            except LedgerCorrupt:  # no plain file: nothing of it is believed
                return path, b""
            marks = (end_mark(len(data)), end_mark(len(data), goes_on=True))
            return path, data[:-END_BYTES] if data[-END_BYTES:] in marks else data
        return None


def lines_of(segment: Segment, offset: int = 0) -> Iterator[Line]:
    """Yield what of *segment* ends in a line break, from *offset* on; some of it may be void."""
    data = segment.lines
    while end := data.find(b"\n", offset) + 1:
        yield Line(segment.path, offset, data[offset:end])
        offset = end


@dataclass(slots=True)
class _Course:
    """Where a walk stands: behind `generation`, whose chain hash is `chain` where that is known."""

    generation: int
    chain: str | None


def walk(past: Past, since: int = 0) -> Iterator[tuple[Line, Commit] | Flaw]:
    """Yield each commit that verifies with its line, and each flaw, in the order of the files.

    Args:
        past: The segments.
        since: Segments that end before this generation are passed over.
    """
    course: _Course | None = None
    for segment in past.segments(since):
        if course is None:
            first = segment.first
            course = _Course(first - 1, NO_CHAIN if first == 1 else None)
        yield from _walk_segment(segment, course)


def _walk_segment(segment: Segment, course: _Course) -> Iterator[tuple[Line, Commit] | Flaw]:
    end = 0
    for line in lines_of(segment):
        if course.generation + 1 == segment.following:
            return  # what follows is void
        end = line.offset + len(line.data)
        commit, flaw = _verify(line, course)
        if flaw is not None:
            last = commit is None and segment.following is None
            torn = last and looks_torn(segment.lines, line.offset)
            yield replace(flaw, kind=TORN) if torn else flaw
            if torn:
                return
        if commit is None:
            # Its number is taken for granted: one flaw is told once.
            course.generation, course.chain = course.generation + 1, None
            continue
        course.generation, course.chain = commit.generation, commit.chain
        yield line, commit
    if end == 0 and segment.first > course.generation + 1:
        rule = f"generation {segment.first} follows {course.generation}"
        yield Flaw(MISSING, segment.path, rule, course.generation + 1)
        course.generation, course.chain = segment.first - 1, None
    rest = segment.lines[end:]
    if segment.following is None and rest.strip(b"\0"):
        kind = TORN if looks_torn(segment.lines, end) else DAMAGED
        place = f"{segment.path}, offset {end}"
        yield Flaw(kind, place, "what is no line should be zeros", course.generation + 1)


def _verify(line: Line, course: _Course) -> tuple[Commit | None, Flaw | None]:
    """Return what *line* says, if it is whole, and what is wrong with it, if anything."""
    wanted, rule = course.generation + 1, None
    try:
        commit = codec.decode_commit(line.data, course.chain)
    except Malformed as err:
        rule = str(err)
        try:
            commit = codec.decode_commit(line.data, None)
        except Malformed:
            return None, Flaw(DAMAGED, line.place, rule, wanted)
    if commit.generation != wanted:
        if rule is None and course.chain is not None and gives_up(commit, wanted):
            return commit, None
        words = f"generation {commit.generation} follows {course.generation}"
        return commit, Flaw(MISSING, line.place, words, wanted)
    return commit, None if rule is None else Flaw(UNCHAINED, line.place, rule, wanted)


def gives_up(commit: Commit, wanted: int) -> bool:
    """Tell whether *commit* is a repair's, which gave up the numbers from *wanted* on."""
    repairs = any(change.operation == REPAIR for change in commit.changes)
    return repairs and commit.generation > wanted
