"""What became of one entry, step by step, from the journal and its archive; nothing is written.

The bytes are searched for the id, and only lines that hold it are read, so that a full archive
takes a second or two. A damaged line is said and passed over: the rest still tells something.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from ledger import codec
from ledger.archive import ARCHIVE
from ledger.blank import END_BYTES, end_mark
from ledger.codec import Malformed
from ledger.errors import InvalidArgument, LedgerCorrupt
from ledger.files import Folder, translate
from ledger.journal import segments
from ledger.reservation import RELEASED, Reservation
from ledger.tables import RESERVATIONS

if TYPE_CHECKING:
    from ledger.state import Change, Put

MOST_STEPS = 1000
"""Steps of one entry that are kept, the newest; a lease that is renewed each minute has more."""
_MOST_IDS = 20
_MOST_DAMAGE = 20
"""Places of damage that are named; there may be as many as lines."""
_GENERATION = re.compile(rb'\{"generation":([1-9][0-9]{0,15}),')


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on an entry, as it was journaled; `phase` is the one it led to."""

    generation: int
    wall_ms: int
    operation: str
    by: str
    note: str
    phase: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class History:
    """The steps of one entry, oldest first, and its last row.

    `omitted` steps before those are left out; `damage` names what of the journal can't be read.
    `last` is None where the journal has no more than the end of it.
    """

    reservation_id: str
    steps: tuple[Step, ...]
    last: Reservation | None
    omitted: int
    damage: tuple[str, ...]

    @property
    def released(self) -> Step | None:
        """Return the step that ended it, or None."""
        return self.steps[-1] if self.steps[-1].phase == RELEASED else None


@dataclass(slots=True)
class _Found:
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))
    count: int = 0
    last: Reservation | None = None


def find(
    directory: str | os.PathLike[str], prefix: str, up_to_generation: int | None = None
) -> History | None:
    """Return the history of the entry whose id begins with *prefix*, or None if none is known.

    Args:
        directory: The ledger's folder; a daemon may be writing to it.
        prefix: An id, or the beginning of one; hexadecimal digits.
        up_to_generation: The last commit that counts; one behind it may not be durable yet.
    Raises:
        InvalidArgument: Several ids begin with it.
        NotFound: There is no ledger.
        PermissionDenied: This user may not read it.
    """
    path = os.path.abspath(directory)
    entries: dict[str, _Found] = {}
    damage: list[str] = []
    try:
        for line in _lines(path, prefix.encode(), damage):
            _take(line, prefix, up_to_generation, entries, damage)
    except OSError as err:
        raise translate(err, path) from err
    if len(entries) > 1:
        raise InvalidArgument(
            f"{len(entries)} reservations of the journal have an id that begins with {prefix}",
            hint="give more of the id",
        )
    for key, found in entries.items():
        omitted = found.count - len(found.steps)
        named = tuple(damage[:_MOST_DAMAGE])
        if len(damage) > len(named):
            named += (f"and in {len(damage) - len(named)} more places",)
        return History(key, tuple(found.steps), found.last, omitted, named)
    return None


@dataclass(frozen=True, slots=True)
class _Line:
    place: str
    data: bytes
    following: int | None


def _lines(path: str, prefix: bytes, damage: list[str]) -> Iterator[_Line]:
    """Yield each line that has a row of *prefix*, in the order of the commits."""
    needle = b'"table":"%b","key":"%b' % (RESERVATIONS.encode(), prefix)
    live = Folder(path)
    try:
        archive = _archive(path)
        try:
            present = segments(live)
            # In both for a moment while it is archived; then what is live is gone a moment later.
            merged = segments(archive) | present if archive else present
            firsts = sorted(merged)
            for index, first in enumerate(firsts):
                following = firsts[index + 1] if index + 1 < len(firsts) else None
                data = _read(live, archive, merged[first], damage)
                if data is None:
                    continue
                _check_ends(merged[first], first, following, data, damage)
                yield from _matches(merged[first], following, data, needle)
        finally:
            if archive:
                archive.close()
    finally:
        live.close()


def _archive(path: str) -> Folder | None:
    try:
        return Folder(os.path.join(path, ARCHIVE))
    except FileNotFoundError:
        return None


def _read(live: Folder, archive: Folder | None, name: str, damage: list[str]) -> bytes | None:
    """Return the lines of the segment *name*, wherever it is by now."""
    for folder in (live, archive, live):
        if folder is None:
            continue
        try:
            data = folder.read(name)
        except FileNotFoundError:
            continue
        except LedgerCorrupt as err:
            damage.append(err.message)
            return None
        marks = (end_mark(len(data)), end_mark(len(data), goes_on=True))
        return data[:-END_BYTES] if data[-END_BYTES:] in marks else data
    # The oldest may have been pruned since; of any other the gap is found by its neighbours.
    return None


def _check_ends(
    name: str, first: int, following: int | None, data: bytes, damage: list[str]
) -> None:
    """Note where commits are missing at the ends of a segment; its middle is not looked at."""
    end = data.rfind(b"\n") + 1
    if not end:
        if following is not None:
            damage.append(f"{name}: no line is left of it")
        return
    begun = _GENERATION.match(data)
    if begun is None or int(begun[1]) != first:
        damage.append(f"{name}: it does not begin with commit {first}")
    last = _GENERATION.match(data, data.rfind(b"\n", 0, end - 1) + 1)
    if last is None:
        damage.append(f"{name}: its last line is no commit")
    elif following is not None and int(last[1]) + 1 < following:
        damage.append(f"{name}: commits {int(last[1]) + 1} to {following - 1} are missing")


def _matches(name: str, following: int | None, data: bytes, needle: bytes) -> Iterator[_Line]:
    at = data.find(needle)
    while at >= 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at) + 1
        if not end:
            return  # the last line is torn or just being written: not answered yet
        yield _Line(f"{name}, offset {start}", data[start:end], following)
        at = data.find(needle, end)


def _take(
    line: _Line,
    prefix: str,
    up_to_generation: int | None,
    entries: dict[str, _Found],
    damage: list[str],
) -> None:
    try:
        commit = codec.decode_commit(line.data, None)
    except Malformed as err:
        damage.append(f"{line.place}: {err}")
        return
    if line.following is not None and commit.generation >= line.following:
        return  # void: it stands in a segment that was given up, and was answered as not done
    if up_to_generation is not None and commit.generation > up_to_generation:
        return
    for change in commit.changes:
        for put in change.puts:
            if put.table == RESERVATIONS and put.key.startswith(prefix):
                if put.key not in entries and len(entries) == _MOST_IDS:
                    raise InvalidArgument(
                        f"more than {_MOST_IDS} reservations of the journal have an id that "
                        f"begins with {prefix}",
                        hint="give more of the id",
                    )
                _note(
                    entries.setdefault(put.key, _Found()),
                    commit.generation,
                    commit.clock.wall_ms,
                    change,
                    put,
                )


def _note(found: _Found, generation: int, wall_ms: int, change: Change, put: Put) -> None:
    row = cast("Reservation | None", put.row)
    found.count += 1
    found.last = row or found.last
    found.steps.append(
        Step(
            generation,
            wall_ms,
            change.operation,
            change.by,
            change.note,
            RELEASED if row is None else row.phase,
            found.last.reason if found.last else None,
        )
    )
