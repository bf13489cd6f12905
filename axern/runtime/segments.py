"""The files of one run's log: a row of segments that the monitor begins and the daemon names.

The monitor writes `LOG` and, once that has its size, opens `LOG.tmp` and renames it over `LOG`.
So `LOG.tmp` is laid out beforehand, as a second name of `LOG.next` (`LOG.laid` until it is seen
that this was in time), and every file has a name that stays before its first byte is written:
`LOG.START.RECORDS`, the bytes and records before it, `n` for records that nobody has counted yet.
The oldest has a number, or `x` behind a gap. The names are all there is to know, and each step
leaves what the next call can go on from.
Source: conmon, src/ctr_logging.c, reopen_k8s_file; docs/decisions/0010-logs.md.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace

from axern.errors import HostError
from axern.failpoint import failpoint
from axern.records import RECORD_LIMIT_BYTES, count_records, written_at_ns

DEFAULT_MAX_BYTES = 256 * 1024**2
SEGMENTS = 8
"""A log that is full has about this many: what is dropped at once is a part of it."""
_UNKNOWN = "x"
_NOT_COUNTED = "n"
"""To count takes as long as a monitor takes for a part of a file, and is seldom asked for."""
_COUNT_BYTES = 1024 * 1024
_ONE_READ_BYTES = 8192 * 46
"""What the monitor logs at most of what it has read at once, all under one time: bare newlines."""
_FASTEST_BYTES_PER_NS = 8
"""More than any monitor writes: a shorter silence has no room for a whole file."""
_ROOM_BYTES = 1024**2
_RESERVE_BYTES = 64 * 1024**2
"""A disk counts as full with less than the first for users and less than the second for root, of
which ext4 keeps some 16 MiB even from root. Source: Linux, fs/ext4/super.c, ext4_set_resv_clusters.
"""
_SURVEYS = 5
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of the log; `start` and `records` are what came before it in the whole log.

    `records` is None behind a gap, whose extent nobody knows, and where they were not counted:
    there the records before this one are those before the last and those within it.
    """

    path: str
    start: int
    records: int | None
    inode: int
    size: int
    is_counted: bool = True
    is_named: bool = True
    """Whether `path` stays its own, as long as it is kept, but for the count."""

    @property
    def end(self) -> int:
        """Return the offset behind it."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a log there is, in bytes of its files: what is kept, and what is not any more.

    `dropped_records` is None if a gap makes it unknown; `dropped_bytes` then is the least.
    """

    kept_bytes: int
    dropped_bytes: int
    dropped_records: int | None


def records_before(segments: list[Segment], number: int) -> int | None:
    """Return how many records came before the one at *number*; it may read many files to say so.

    None if that can't be known.
    """
    first = max((n for n in range(number + 1) if segments[n].is_counted), default=None)
    records = None if first is None else segments[first].records
    if records is None:
        return None
    return records + sum(count(segment.path) for segment in segments[first:number])


def segment_bytes(max_bytes: int) -> int:
    """Return the size at which the monitor begins another file of a log of *max_bytes*."""
    return max(1, max_bytes // SEGMENTS)


def begin(log: str) -> None:
    """Lay out the first segment and the second, before there is a monitor.

    Raises:
        OSError: The disk refused.
    """
    first = _name(log, 0, 0)
    with contextlib.suppress(FileExistsError):
        _make(first)
    with contextlib.suppress(FileExistsError):
        os.link(first, log)
    _prepare(log)


def survey(log: str) -> list[Segment]:
    """Return the segments, oldest first, as they were at one moment; the last is being written.

    Empty if there is no log. What follows the last known one is left out until it has a name.
    """
    found: list[Segment] = []
    for _ in range(_SURVEYS):
        live = _inode(log)
        found = _named(log)
        if live is None or (found and found[-1].inode == live):
            break
        upcoming = _status(f"{log}.next")
        if found and upcoming is not None and upcoming.st_ino == live:
            end, size = found[-1].end, upcoming.st_size
            found.append(
                Segment(f"{log}.next", end, None, live, size, is_counted=False, is_named=False)
            )
            break
    if not found and (status := _status(log)) is not None:
        return [Segment(log, 0, 0, status.st_ino, status.st_size, is_named=False)]
    return found


def extent(segments: list[Segment]) -> Extent:
    """Return how much of the log of *segments* there is."""
    if not segments:
        return Extent(0, 0, 0)
    kept_bytes = sum(segment.size for segment in segments)
    dropped_bytes = segments[-1].end - kept_bytes
    has_gap = dropped_bytes > segments[0].start
    return Extent(kept_bytes, dropped_bytes, None if has_gap else segments[0].records)


def settle(log: str, max_bytes: int, *, is_live: bool) -> bool:
    """Name what the monitor has begun, drop what exceeds *max_bytes*, lay out what comes next.

    Safe to repeat, and after a crash at any step. Without a live monitor nothing is laid out.

    Returns:
        Whether that is all; False if it must be tried again in a moment.

    Raises:
        OSError: The disk refused; nothing is lost by it.
    """
    for _ in range(_ATTEMPTS):
        if _inode(log) is None:
            return True
        _drop(log, max_bytes)  # first of all: what gets a name stays, and the monitor goes on
        if not _name_all(log, is_live=is_live):
            return False
        _drop(log, max_bytes)
        if is_live and _prepare(log):
            _count_ahead(log, max_bytes)
            return True
        if not is_live:
            for unused in (f"{log}.tmp", f"{log}.next", f"{log}.laid"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(unused)
            return True
    return False


def doubt_if_full(log: str) -> None:
    """Note that output may be missing, if the disk of *log* is full now; a run's end is a time to.

    The monitor drops what it can't write, tells nobody, and writes on where it can.
    """
    with contextlib.suppress(OSError):
        disk = os.statvfs(os.path.dirname(log))
        for_users, for_root = disk.f_bavail * disk.f_frsize, disk.f_bfree * disk.f_frsize
        if for_users < _ROOM_BYTES and for_root < _RESERVE_BYTES:
            _make(f"{log}.full")


def is_doubtful(log: str) -> bool:
    """Tell whether output may be missing somewhere, since the disk was full in the meantime."""
    return os.path.lexists(f"{log}.full")


def _name_all(log: str, *, is_live: bool) -> bool:
    """Give the live file its name, and the one before it if the monitor is two ahead."""
    live = _inode(log)
    named = _named(log)
    if not named:
        os.link(log, _name(log, 0, 0))
        named = _named(log)
    if named[-1].inode == live:
        return True
    if _is_used(log, f"{log}.next"):
        sealed = named[-1]
        os.rename(f"{log}.next", _name(log, sealed.end, _NOT_COUNTED))
        failpoint("log.named")
    elif _is_used(log, f"{log}.laid"):
        if not _name_stray(log, f"{log}.laid", named[-1], is_live=is_live):
            return False
        os.unlink(f"{log}.laid")
    named = _named(log)
    return named[-1].inode == live or _name_stray(log, log, named[-1], is_live=is_live)


def _is_used(log: str, laid_out: str) -> bool:
    """Tell whether the monitor writes to the file that was laid out for it, or has written."""
    upcoming = _status(laid_out)
    return upcoming is not None and (upcoming.st_size > 0 or upcoming.st_ino == _inode(log))


def _name_stray(log: str, path: str, sealed: Segment, *, is_live: bool) -> bool:
    """Name a file that the monitor had to make itself, or that may have been laid out too late.

    Others may have come and gone before it. Each held a whole segment, so that a silence between
    the records that is too short for one proves that there was none.
    """
    with open(path, "rb", buffering=0) as file:
        inode = os.fstat(file.fileno()).st_ino
        if inode in {segment.inode for segment in _named(log)}:
            return True
        first = _time_ns(file.read(RECORD_LIMIT_BYTES))
        if first is None and is_live:
            return False
        last = _last_time_ns(sealed)
        silence_ns = -1 if first is None or last is None else first - last
        follows = 0 <= silence_ns < (sealed.size - _ONE_READ_BYTES) / _FASTEST_BYTES_PER_NS
        name = (
            _name(log, sealed.end, _NOT_COUNTED)
            if follows
            else _name(log, sealed.end + 1, _UNKNOWN)
        )
        try:
            # This very file, for by now another one may be the log. Only with a folder's
            # descriptor, which an absolute path leaves unused, does Python follow the link.
            os.link(f"/proc/self/fd/{file.fileno()}", name, src_dir_fd=file.fileno())
        except FileNotFoundError:
            return False  # gone already
    failpoint("log.stray")
    return True


def _drop(log: str, max_bytes: int) -> None:
    """Remove the oldest until the rest and a full live segment fit into *max_bytes*.

    The last that has a name stays, since the next begins at its end.
    """
    if not (named := _named(log)):
        return
    total = _sealed_bytes(log, named)
    oldest = named[0]
    for following in named[1:]:
        if total <= max_bytes - segment_bytes(max_bytes):
            return
        upcoming = _counted(log, following, oldest)
        os.unlink(oldest.path)
        failpoint("log.dropped")
        total -= oldest.size
        oldest = upcoming


def _count_ahead(log: str, max_bytes: int) -> None:
    """Count what goes next, while there is time: the monitor has its next file."""
    named = _named(log)
    room = max_bytes - 2 * segment_bytes(max_bytes)
    if len(named) > 1 and _sealed_bytes(log, named) > room:
        _counted(log, named[1], named[0])


def _sealed_bytes(log: str, named: list[Segment]) -> int:
    """Return what all files but the live one take; what has no name yet counts too."""
    sizes = {segment.inode: segment.size for segment in named}
    for path in (f"{log}.next", f"{log}.laid"):
        if status := _status(path):
            sizes[status.st_ino] = status.st_size
    sizes.pop(_inode(log) or 0, None)
    return sum(sizes.values())


def _counted(log: str, segment: Segment, before: Segment) -> Segment:
    """Return *segment* under a name that says how many records come before it."""
    if segment.is_counted:
        return segment
    records = None if before.records is None else before.records + count(before.path)
    path = _name(log, segment.start, _UNKNOWN if records is None else records)
    os.rename(segment.path, path)
    failpoint("log.counted")
    return replace(segment, path=path, records=records, is_counted=True)


def _prepare(log: str) -> bool:
    """Let the monitor's next file have a name already; return False if one waits for its own.

    As long as `LOG.tmp` is absent, what is laid out can't become the log: what it is now, it stays.
    To lay out a file that is the log would let the monitor empty it. It is `LOG.next`, which
    surely follows the last named one, only when that was still the log while `LOG.tmp` was there;
    until then `LOG.laid`, for the monitor may have made a file of its own in between, and lose it.
    """
    laid, temporary = f"{log}.laid", f"{log}.tmp"
    if _inode(temporary) is None:
        if _is_used(log, f"{log}.next") or _is_used(log, laid):
            return False
        with contextlib.suppress(FileNotFoundError):  # that a crash left before it was linked
            os.rename(f"{log}.next", laid)
        with contextlib.suppress(FileExistsError):
            _make(laid)
        failpoint("log.laid")
        with contextlib.suppress(FileExistsError):  # the monitor was faster by a moment
            os.link(laid, temporary)
        failpoint("log.prepared")
    is_linked = _inode(temporary) is not None and _inode(temporary) == _inode(laid)
    if is_linked and _named(log)[-1].inode == _inode(log):
        os.rename(laid, f"{log}.next")
    return True


def _named(log: str) -> list[Segment]:
    """Return the files that have a name that stays, oldest first, as they were at one moment."""
    folder, base = os.path.split(log)
    pattern = re.compile(re.escape(base) + rf"\.(\d{{16}})\.(\d+|{_UNKNOWN}|{_NOT_COUNTED})")
    found: list[Segment] = []
    for _ in range(_SURVEYS):
        try:
            matches = filter(None, map(pattern.fullmatch, os.listdir(folder)))
            found = [_segment(f"{folder}/{match[0]}", match[1], match[2]) for match in matches]
            break
        except FileNotFoundError:
            continue  # one of them has got another name, or was dropped
    return sorted(found, key=lambda segment: segment.start)


def _segment(path: str, start: str, records: str) -> Segment:
    status = os.stat(path, follow_symlinks=False)
    number = int(records) if records.isdecimal() else None
    is_counted = records != _NOT_COUNTED
    return Segment(path, int(start), number, status.st_ino, status.st_size, is_counted)


def _name(log: str, start: int, records: int | str) -> str:
    return f"{log}.{start:016d}.{records}"


def _make(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _inode(path: str) -> int | None:
    status = _status(path)
    return status.st_ino if status else None


def count(path: str, limit_bytes: int | None = None) -> int:
    """Return how many records begin in the first *limit_bytes* of *path*, or in all of it."""
    found = 0
    left = limit_bytes
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_COUNT_BYTES if left is None else min(left, _COUNT_BYTES)):
            found += count_records(block)
            left = None if left is None else left - len(block)
    return found


def _last_time_ns(segment: Segment) -> int | None:
    with open(segment.path, "rb", buffering=0) as file:
        text = os.pread(
            file.fileno(), RECORD_LIMIT_BYTES, max(0, segment.size - RECORD_LIMIT_BYTES)
        )
    return _time_ns(text[text.rfind(b"\n", 0, len(text) - 1) + 1 :])


def _time_ns(record: bytes) -> int | None:
    try:
        return written_at_ns(record)
    except HostError:
        return None
