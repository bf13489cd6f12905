"""Reads a run's log from any record on, over its segments, and says what is not there any more.

An offset counts the bytes of the log since the run began, over all segments, so that it stays true
when older ones are dropped. Only whole records are given out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import FileIO

from axern.errors import HostError
from axern.records import (
    HEAD_BYTES,
    RECORD_LIMIT_BYTES,
    count_records,
    is_whole_line,
    written_at_ns,
)
from axern.runtime.segments import Segment, count, records_before, survey
from ledger.errors import InvalidArgument

READ_BYTES = 256 * 1024
"""Read and cut in well under a millisecond: readers share one event loop."""
_SCAN_BYTES = 1024 * 1024
_LOOKS = 5
"""The names of files change seldom; twice within one look hardly ever."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two records; `records` is how many came before it, None if unknown."""

    offset: int
    records: int | None


@dataclass(frozen=True, slots=True)
class Dropped:
    """What can't be read any more; `records` None if unknown, and `size_bytes` then is the least.

    `size_bytes` counts what the records took in the log.
    """

    size_bytes: int
    records: int | None


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole records in a row, where they are: *size_bytes* of an open file from *begin* on."""

    file: FileIO
    begin: int
    size_bytes: int

    def read(self) -> bytes:
        """Return them, and close the file."""
        with self.file:
            return os.pread(self.file.fileno(), self.size_bytes, self.begin)


@dataclass(frozen=True, slots=True)
class Found:
    """Records, for the caller to read and close, or a word on what is missing; or neither.

    The records of `after` are not counted where some were found.
    """

    after: Position
    stretch: Stretch | None = None
    dropped: Dropped | None = None
    segment: Segment | None = None
    """Where the records are: the first place to look for the next ones."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole records, as the monitor wrote them, or a word on what is missing; both may be empty."""

    after: Position
    text: bytes = b""
    dropped: Dropped | None = None
    segment: Segment | None = None


BEGINNING = Position(0, 0)


def read(
    log: str,
    position: Position,
    limit_bytes: int = READ_BYTES,
    known: Segment | None = None,
    *,
    at_rest: bool = False,
) -> Piece:
    """Return about *limit_bytes* of records from *position* on, counted, or what is missing there.

    As `find`.
    """
    found = find(log, position, limit_bytes, known, at_rest=at_rest)
    if found.stretch is None:
        return Piece(found.after, dropped=found.dropped)
    text = found.stretch.read()
    records = None if position.records is None else position.records + count_records(text)
    return Piece(Position(found.after.offset, records), text, segment=found.segment)


def find(
    log: str,
    position: Position,
    limit_bytes: int = READ_BYTES,
    known: Segment | None = None,
    *,
    at_rest: bool = False,
) -> Found:
    """Return where about *limit_bytes* of records are from *position* on, or what is missing there.

    Nothing of both when there is nothing new yet, or no log; a record that is still being written
    is left for the next call. *known* is the segment of those before, if there were some. With
    *at_rest* nobody writes any more: a record without an end was cut short by a full disk, and what
    came behind it was lost.
    """
    # What has no name of its own may be another file by now, even of the same inode.
    if known is not None and known.is_named:
        found = _find(known, position, limit_bytes, is_sealed=False)
        if found is not None and found.stretch:
            return found
    for _ in range(_LOOKS):
        found = _find_in(survey(log), position, limit_bytes, at_rest=at_rest)
        if found is not None:
            return found
    return Found(position)


def _find_in(
    segments: list[Segment], position: Position, limit_bytes: int, *, at_rest: bool
) -> Found | None:
    """Return what *segments* have from *position* on, or None if it has another name by now."""
    for number, segment in enumerate(segments):
        if position.offset < segment.start:
            return _skip(position, segment.start, segment.records)
        if position.offset < segment.end:
            is_last = number == len(segments) - 1
            return _find(segment, position, limit_bytes, is_sealed=at_rest or not is_last)
    return Found(position)


def _find(
    segment: Segment, position: Position, limit_bytes: int, *, is_sealed: bool
) -> Found | None:
    """Return what *segment* has from *position* on, or None if its name is gone."""
    begin = position.offset - segment.start
    if (file := _open(segment)) is None:
        return None
    there = max(0, os.fstat(file.fileno()).st_size - begin)
    size = _whole(file, begin, min(there, limit_bytes)) or _first(file, begin)
    if size:
        after = Position(position.offset + size, None)
        return Found(after, Stretch(file, begin, size), segment=segment)
    file.close()
    if is_sealed or there > RECORD_LIMIT_BYTES:
        # A full disk cut it short, or it is none at all.
        return _skip(position, position.offset + min(there, RECORD_LIMIT_BYTES), None)
    return Found(position)


def _open(segment: Segment) -> FileIO | None:
    """Open *segment*, or return None if it was counted or dropped a moment ago."""
    try:
        file = FileIO(segment.path)
    except FileNotFoundError:
        return None
    if os.fstat(file.fileno()).st_ino == segment.inode:
        return file
    file.close()
    return None


@contextmanager
def _held(log: str) -> Iterator[list[Segment]]:
    """Yield the segments of *log*, under names that last, whatever becomes of their own."""
    while True:
        with ExitStack() as stack:
            held = []
            for segment in survey(log):
                if (file := _open(segment)) is None:
                    break
                stack.enter_context(file)
                held.append(replace(segment, path=f"/proc/self/fd/{file.fileno()}"))
            else:
                yield held
                return


def _whole(file: FileIO, begin: int, limit_bytes: int) -> int:
    """Return how many bytes of whole records *file* has from *begin* on, at most *limit_bytes*."""
    ahead = max(0, limit_bytes - RECORD_LIMIT_BYTES)
    text = os.pread(file.fileno(), limit_bytes - ahead, begin + ahead)
    end = text.rfind(b"\n") + 1
    return ahead + end if end else 0


def _first(file: FileIO, begin: int) -> int:
    """Return the size of the one record at *begin*, 0 if it has no end yet."""
    return os.pread(file.fileno(), RECORD_LIMIT_BYTES, begin).find(b"\n") + 1


def _skip(position: Position, offset: int, records: int | None) -> Found:
    missing = None
    if records is not None and position.records is not None:
        missing = records - position.records
    return Found(Position(offset, records), dropped=Dropped(offset - position.offset, missing))


def locate(log: str, offset: int) -> Position:
    """Return the position at *offset*, which a reader was given earlier.

    Raises:
        InvalidArgument: It is in the middle of a record, or nothing was written so far.
    """
    with _held(log) as segments:
        end = segments[-1].end if segments else 0
        if offset > end:
            raise InvalidArgument(
                f"from: {offset} is behind the log's end, which is at {end}",
                hint="give an offset that was told, as by an event, or 0",
            )
        if offset == 0:
            return BEGINNING
        for number in reversed(range(len(segments))):
            if segments[number].start <= offset <= segments[number].end:
                return _within(segments, number, offset)
        return Position(offset, None)


def _within(segments: list[Segment], number: int, offset: int) -> Position:
    segment = segments[number]
    size = offset - segment.start
    with open(segment.path, "rb", buffering=0) as file:
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n" and size != segment.size:
            raise InvalidArgument(
                f"from: no record ends at {offset}",
                hint="give an offset that was told, as by an event, or 0",
            )
    before = records_before(segments, number)
    return Position(offset, None if before is None else before + count(segment.path, size))


def tail(log: str, lines: int) -> Position:
    """Return where the last *lines* lines begin; the beginning of a line counts as one."""
    with _held(log) as segments:
        return _tail(segments, lines) if segments else BEGINNING


def _tail(segments: list[Segment], lines: int) -> Position:
    if lines == 0:
        return _before(segments, len(segments) - 1, segments[-1].end)
    left = lines
    at_end = True
    for number in reversed(range(len(segments))):
        for offset, record in _backwards(segments[number]):
            if at_end and not is_whole_line(record):
                left -= 1  # a line without an end yet
            elif is_whole_line(record):
                if left == 0:
                    return _before(segments, number, offset + len(record) + 1)
                left -= 1
            at_end = False
    return Position(segments[0].start, segments[0].records)


def since(log: str, since_ns: int) -> Position:
    """Return the position before the first record written at *since_ns* or later, wall clock.

    Where somebody has set the clock back the times are not in order, and some such place is found.
    """
    with _held(log) as segments:
        for number in reversed(range(len(segments))):
            low = _first_since(segments[number], since_ns)
            if low:
                return _before(segments, number, segments[number].start + low)
        return Position(segments[0].start, segments[0].records) if segments else BEGINNING


def _first_since(segment: Segment, since_ns: int) -> int:
    """Return where in *segment* the first record of *since_ns* or later begins, by halving."""
    low, high = 0, segment.size
    while low < high:
        middle = (low + high) // 2
        found = _record_at(segment, middle)
        if found is not None and found[1] < since_ns:
            low = found[0]
        else:
            high = middle
    return low


def _before(segments: list[Segment], number: int, offset: int) -> Position:
    """Return the position at the end of the last whole record before *offset*."""
    segment = segments[number]
    with open(segment.path, "rb", buffering=0) as file:
        size = offset - segment.start
        begin = max(0, size - RECORD_LIMIT_BYTES)
        text = os.pread(file.fileno(), size - begin, begin)
    return _within(segments, number, segment.start + begin + text.rfind(b"\n") + 1)


def _record_at(segment: Segment, place: int) -> tuple[int, int] | None:
    """Return the end and the time of the first whole record that begins at *place* or later."""
    begin = max(0, place - 1)
    with open(segment.path, "rb", buffering=0) as file:
        text = os.pread(file.fileno(), 2 * RECORD_LIMIT_BYTES, begin)
    start = text.find(b"\n") + 1 if place else 0
    end = text.find(b"\n", start) + 1
    if (place and start == 0) or end == 0:
        return None
    try:
        return begin + end, written_at_ns(text[start : start + HEAD_BYTES])
    except HostError:
        return begin + end, 0


def _backwards(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """Yield the whole records of *segment*, each with its offset, the last one first."""
    end, carried = segment.size, b""
    with open(segment.path, "rb", buffering=0) as file:
        while end > 0:
            begin = max(0, end - _SCAN_BYTES)
            text = os.pread(file.fileno(), end - begin, begin) + carried
            first = text.find(b"\n") + 1 if begin else 0
            records = text[first:].split(b"\n")
            offset = segment.start + begin + len(text) - len(records.pop())
            for record in reversed(records):
                offset -= len(record) + 1
                yield offset, record
            end, carried = begin, text[:first]
