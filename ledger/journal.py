"""The journal: segments filled ahead with zeros, one line a commit, flushed before anyone is told.

A segment ends behind its zeros in a mark that names its size, so a file that lost or gained
anything is recognised. A line holds no NUL, and a disk writes whole sectors: so a last line that
never became durable shows zeros where its missing sectors are, and anything else that does not
verify was damaged later.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import deque
from collections.abc import Iterator
from typing import NoReturn

from ledger import codec
from ledger.blank import END_BYTES, Ballast, Blank, end_mark, make_blank
from ledger.codec import Commit, Malformed, Position
from ledger.errors import DISK_RETRY_AFTER_S, CommitFailed, InvariantViolation, LedgerCorrupt
from ledger.files import NO_ROOM, Folder, check_hint, write_all

SECTOR_BYTES = 512
"""The least that a disk writes whole; larger sectors are multiples of it."""

_NAME = re.compile(r"journal-([0-9]{16})\.jsonl", re.ASCII)


def segment_name(first_generation: int) -> str:
    """Return the name of the segment whose first line is *first_generation*."""
    return f"journal-{first_generation:016d}.jsonl"


def first_generation(name: str) -> int | None:
    """Return the generation that the segment *name* starts at, or None for any other file."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def segments(folder: Folder) -> dict[int, str]:
    """Return the segments in *folder* by their first generation, ascending."""
    found = ((first_generation(name), name) for name in folder.names())
    return dict(sorted((first, name) for first, name in found if first is not None))


class Scan:
    """Walk the verified commits behind a position; iterate once, then ask where it ended.

    A segment ends where the next one begins, whatever else stands in it: a segment that was given
    up after a failed flush may hold a line that was answered as not done. The chain runs through
    the answered ones only, so nothing can be lost in between unseen.

    `position` and `generation` are where the last verified line ends; `torn` says whether a line
    that was never answered stands behind it.
    """

    def __init__(self, folder: Folder, position: Position, generation: int) -> None:
        self.position = position
        self.generation = generation
        self.torn = False
        self.replayed_bytes = 0
        self._folder = folder

    def __iter__(self) -> Iterator[Commit]:
        """Yield each commit.

        Raises:
            LedgerCorrupt: Something does not verify and can't be torn, or commits are missing.
            OSError: A file can't be read; FileNotFoundError where it is gone.
        """
        while True:
            following = self._following()
            yield from self._read_segment(following)
            if following is None:
                return
            self.position = Position(segment_name(following), 0, self.position.chain)

    def _following(self) -> int | None:
        """Return the first generation of the next segment, or None if this one is the last."""
        here = first_generation(self.position.segment)
        if here is None:
            self._damaged(0, "this is not the name of a segment")
        return next((first for first in segments(self._folder) if first > here), None)

    def _read_segment(self, following: int | None) -> Iterator[Commit]:
        name, offset, chain = self.position.segment, self.position.offset, self.position.chain
        data = self._folder.read(name)
        lines, mark = data[:-END_BYTES], data[-END_BYTES:]
        goes_on = end_mark(len(data), goes_on=True)
        if following is None and mark == goes_on:
            self._damaged(len(data), "the segment that follows it is missing")
        while self.generation + 1 != following:
            if mark not in (end_mark(len(data)), goes_on) or offset > len(lines):
                self._damaged(len(data), "it does not end in the mark of its size: cut or grown")
            end = lines.find(b"\n", offset) + 1
            if lines[offset : offset + 1] in (b"", b"\0"):
                self._check_end(lines, offset, following, "what is no line should be zeros")
                return
            try:
                commit = codec.decode_commit(lines[offset:end], chain)
                if commit.generation != self.generation + 1:
                    raise Malformed(f"generation {commit.generation} follows {self.generation}")
            except Malformed as err:
                self._check_end(lines, offset, following, str(err))
                return
            self.replayed_bytes += end - offset
            offset, chain = end, commit.chain
            self.position = Position(name, offset, chain)
            self.generation = commit.generation
            yield commit

    def _check_end(self, lines: bytes, offset: int, following: int | None, rule: str) -> None:
        """Prove that the journal may end at *offset* of *lines*, where no verified line begins."""
        if following is not None:
            self._damaged(offset, f"{rule}; {segment_name(following)} goes on behind it")
        if lines[offset:] == bytes(len(lines) - offset):
            return
        if not looks_torn(lines, offset):
            self._damaged(offset, rule)
        self.torn = True

    def _damaged(self, offset: int, rule: str) -> NoReturn:
        path = os.path.join(self._folder.path, self.position.segment)
        raise LedgerCorrupt(f"{path}, offset {offset}: {rule}", hint=check_hint(self._folder.path))


def looks_torn(lines: bytes, offset: int) -> bool:
    """Tell whether all behind *offset* can be one write that was cut short.

    That is a line of which whole sectors are missing, or its end. A complete line that does not
    verify was answered, so it is damage; so is one that is complete up to its seal and does not
    stop where a sector does.
    """
    written = len(lines.rstrip(b"\0"))
    tail = lines[offset:written]
    if b"\n" in tail[:-1] or _verifies(tail[:-1] + b"\n"):
        return False
    if tail.endswith(b"\n"):
        if b"\0" not in tail:
            return False
    elif written % SECTOR_BYTES and b'"chain":"' in tail:
        return False
    start = offset
    while start < written:
        end = min(written, start - start % SECTOR_BYTES + SECTOR_BYTES)
        sector = lines[start:end]
        if b"\0" in sector and sector.strip(b"\0"):
            return False
        start = end
    return True


def lines_end(data: bytes) -> int:
    """Return where the whole lines of the segment *data* end."""
    offset = 0
    while (end := data.find(b"\n", offset) + 1) and _verifies(data[offset:end]):
        offset = end
    return offset


def _verifies(line: bytes) -> bool:
    try:
        codec.seal_of(line)
    except Malformed:
        return False
    return True


class Journal:
    """The writer of the present segment: one write and one flush an append, never a second try.

    After a failed write or flush nobody knows what the disk holds (the kernel may have dropped the
    page and forgotten the error), so the segment is dead: `failed` stays set until `reseal`.
    Where the disk has no room for another segment, the ballast becomes one, and `short` stays set
    until there is room for both again. Source: docs/decisions/0005-ledger-format.md, 0024.
    """

    def __init__(
        self, folder: Folder, position: Position, generation: int, segment_bytes: int
    ) -> None:
        self.position = position
        self.generation = generation
        self.failed: OSError | None = None
        self.short: OSError | None = None
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._spares: deque[Blank] = deque()  # its pop and append are safe between threads
        self._ballast = Ballast(folder, segment_bytes)
        self._fd = folder.open(position.segment, os.O_RDWR)
        self._room = os.fstat(self._fd).st_size - END_BYTES

    def close(self) -> None:
        """Let go of the files; a segment that was made in advance is removed."""
        os.close(self._fd)
        while self._spares:
            self._discard(self._spares.pop())

    @property
    def has_spare(self) -> bool:
        """Tell whether the next segment is there already."""
        return bool(self._spares)

    @property
    def wants_room(self) -> bool:
        """Tell whether it is time for `prepare`: half of this segment is full, or room is short."""
        if not self._ballast.is_there or self.short is not None:
            return True
        return 2 * self.position.offset > self._room and not self._spares

    def append(self, line: bytes, chain: str, *, may_take_ballast: bool = True) -> None:
        """Write *line* behind the last one and flush it; the ballast is for what gives back.

        Raises:
            CommitFailed: It is not durable, and the segment may be dead (`failed`).
        """
        if self.failed is not None:
            raise self._dead() from self.failed
        if self.position.offset + len(line) > self._room:
            self.rotate(len(line), may_take_ballast=may_take_ballast)
        name, offset = self.position.segment, self.position.offset
        try:
            write_all(self._fd, line, offset)
            os.fdatasync(self._fd)
        except OSError as err:
            self.failed = err
            raise self._dead() from err
        self.position = Position(name, offset + len(line), chain)
        self.generation += 1

    def prepare(self) -> None:
        """Make the next segment in advance, then the ballast; may run in another thread.

        Raises:
            OSError: There is no room for one of them; `short` says so until there is for both.
        """
        try:
            if not self._spares:
                self._spares.append(make_blank(self._folder, self._segment_bytes))
            self._ballast.lay()
        except OSError as err:
            if err.errno in NO_ROOM:
                self.short = err
            raise
        self.short = None

    def rotate(self, least_bytes: int = 0, *, may_take_ballast: bool = False) -> None:
        """Go on in a new segment.

        Raises:
            CommitFailed: It could not be made; the present one stays in use unless `failed` is set.
        """
        if self.failed is not None:
            raise self._dead() from self.failed
        following = segment_name(self.generation + 1)
        if following == self.position.segment:
            if least_bytes <= self._room:
                return
        elif self._is_taken(following):
            raise InvariantViolation(f"{following} exists before its first commit")
        self._enter(following, self._next_blank(least_bytes, may_take_ballast=may_take_ballast))

    def reseal(self) -> None:
        """Go on after a failure, in a new segment on a new inode; may run beside `prepare`.

        What stands behind the last durable line in the dead segment is void from then on. A dead
        segment that holds nothing else is replaced.

        Raises:
            CommitFailed: The disk still refuses; `failed` stays set.
        """
        blank = self._next_blank(0, may_take_ballast=True)
        self._enter(segment_name(self.generation + 1), blank)
        self.failed = None

    def _enter(self, following: str, blank: Blank) -> None:
        """Give *blank* the name *following* and write to it from now on."""
        try:
            self._folder.rename(blank.name, following)
            self._folder.sync()
        except OSError as err:
            self.failed = err
            with contextlib.suppress(OSError):
                self._discard(blank)
            raise self._dead() from err
        if self.failed is None:
            with contextlib.suppress(OSError):  # a help for the next opener, nothing depends on it
                write_all(self._fd, end_mark(self._room + END_BYTES, goes_on=True), self._room)
        with contextlib.suppress(OSError):  # it is closed all the same
            os.close(self._fd)
        self.position = Position(following, 0, self.position.chain)
        self._fd, self._room = blank.fd, blank.size - END_BYTES

    def _is_taken(self, following: str) -> bool:
        try:
            return self._folder.exists(following)
        except OSError as err:
            raise _no_segment(err) from err

    def _next_blank(self, least_bytes: int, *, may_take_ballast: bool) -> Blank:
        try:
            while self._spares:
                spare = self._spares.pop()
                if spare.size >= least_bytes + END_BYTES:
                    return spare
                self._discard(spare)
            return self._new_blank(least_bytes + END_BYTES, may_take_ballast=may_take_ballast)
        except OSError as err:
            raise _no_segment(err) from err

    def _new_blank(self, least_bytes: int, *, may_take_ballast: bool) -> Blank:
        """Make a segment of *least_bytes* at least; where there is no room, out of the ballast."""
        try:
            return make_blank(self._folder, max(self._segment_bytes, least_bytes))
        except OSError as err:
            if err.errno not in NO_ROOM:
                raise
            self.short = err
            blank = self._ballast.take(least_bytes) if may_take_ballast else None
            if blank is None:
                raise
            return blank

    def _discard(self, blank: Blank) -> None:
        os.close(blank.fd)
        self._folder.unlink(blank.name)

    def _dead(self) -> CommitFailed:
        reason = os.strerror(self.failed.errno or 0) if self.failed else "unknown"
        return CommitFailed(
            f"{self.position.segment} could not be made durable: {reason}; nothing more is "
            "written to it",
            hint="look at the disk (df, dmesg); a new segment is tried again and again",
            retry_after_s=DISK_RETRY_AFTER_S,
        )


def _no_segment(error: OSError) -> CommitFailed:
    return CommitFailed(
        f"no new segment can be made: {error.strerror}; nothing was written",
        hint="make room on the file system of the ledger, then try again",
    )
