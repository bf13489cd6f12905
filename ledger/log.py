"""Who did what to the ledger, when and why: the operations of the journal, oldest first.

Read from the files without the lock. A line that does not verify is said and passed over; one that
is just being written comes with the next look.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ledger import codec
from ledger.codec import Commit, Malformed
from ledger.files import translate
from ledger.past import Line, Past, Segment, lines_of
from ledger.reservation import RELEASED, Reservation
from ledger.resources import Resources
from ledger.state import Change, Put
from ledger.tables import BEATS, CLAIMS, NODE_KEY, REQUESTS, RESERVATIONS, WAITS

BEAT = "beat"
_REBASE = "rebase"
_BESIDE = frozenset({BEATS, REQUESTS, WAITS})
"""Tables whose rows are told with what they belong to."""
_WALL = re.compile(rb'"wall_ms":([0-9]{1,16}),"facts"', re.ASCII)
_ADMITTED = re.compile(
    rb'"table":"reservations","key":"([^"]+)","row":\{"id":"[^"]+","namespace":"([^"]+)"'
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which operations to tell; None and empty are all, but heartbeats only when named.

    `prefix` is the beginning of an id, `since_wall_ms` a time in milliseconds since the epoch.
    """

    prefix: str | None = None
    namespace: str | None = None
    operations: tuple[str, ...] = ()
    since_wall_ms: int = 0

    def takes(self, operation: str) -> bool:
        """Tell whether *operation* is one of them."""
        return operation in self.operations if self.operations else operation != BEAT


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation on one thing: `table` and `id` name it, `note` says why.

    `phase`, `namespace`, `owner_uid` and `requests` are those of a reservation, as far as they are
    known; of one that was released, none but its namespace is.
    """

    generation: int
    wall_ms: int
    operation: str
    by: str
    note: str
    table: str | None
    id: str | None
    namespace: str | None
    phase: str | None
    owner_uid: int | None
    requests: Resources | None


class Log:
    """The log of the ledger in *directory*; each call of `new` goes on where the last one ended.

    `damage` names what could not be read.
    """

    def __init__(self, directory: str | os.PathLike[str], wanted: Wanted) -> None:
        self.damage: list[str] = []
        self._path = os.path.abspath(directory)
        self._wanted = wanted
        self._at = (0, 0)
        self._namespaces: dict[str, str] = {}

    def new(self) -> Iterator[Entry]:
        """Yield what has been added since the last call.

        Raises:
            NotFound: There is no ledger.
            PermissionDenied: This user may not read it.
        """
        try:
            with Past(self._path) as past:
                for segment in past.segments(self._at[0]):
                    if segment.first >= self._at[0]:
                        yield from self._segment(segment)
        except OSError as err:
            raise translate(err, self._path) from err

    def _segment(self, segment: Segment) -> Iterator[Entry]:
        offset = self._at[1] if segment.first == self._at[0] else 0
        self._at = (segment.first, offset)
        for line in lines_of(segment, offset):
            end = line.offset + len(line.data)
            if not self._may_matter(line):
                self._at = (segment.first, end)
                continue
            try:
                commit = codec.decode_commit(line.data, None)
            except Malformed as err:
                if segment.following is None and end == len(segment.lines.rstrip(b"\0")):
                    return  # it is just being written, or torn
                self.damage.append(f"{line.place}: {err}")
                self._at = (segment.first, end)
                continue
            self._at = (segment.first, end)
            if segment.following is None or commit.generation < segment.following:
                yield from self._commit(commit)

    def _may_matter(self, line: Line) -> bool:
        """Tell from its bytes whether *line* must be decoded; learn what it tells all the same."""
        wanted, data = self._wanted, line.data
        wall = _WALL.search(data)
        matters = wall is None or int(wall[1]) >= wanted.since_wall_ms
        if wanted.prefix is not None:
            matters &= b'"key":"' + wanted.prefix.encode() in data
        if wanted.operations:
            matters &= any(
                b'"operation":"%b"' % name.encode() in data for name in wanted.operations
            )
        if not matters:
            for hit in _ADMITTED.finditer(data):
                self._namespaces[hit[1].decode()] = hit[2].decode()
        return matters

    def _commit(self, commit: Commit) -> Iterator[Entry]:
        wanted = self._wanted
        for change in commit.changes:
            for put in _subjects(change):
                entry = self._entry(commit, change, put)
                if (
                    wanted.takes(entry.operation)
                    and entry.wall_ms >= wanted.since_wall_ms
                    and (wanted.prefix is None or (entry.id or "").startswith(wanted.prefix))
                    and wanted.namespace in (None, entry.namespace)
                ):
                    yield entry

    def _entry(self, commit: Commit, change: Change, put: Put | None) -> Entry:
        row = put.row if put else None
        is_reservation = put is not None and put.table == RESERVATIONS
        reservation = row if isinstance(row, Reservation) else None
        namespace = getattr(row, "namespace", None)
        if put is not None and is_reservation:
            if reservation is None:
                namespace = self._namespaces.pop(put.key, None)
            else:
                self._namespaces[put.key] = reservation.namespace
        phase = reservation.phase if reservation else RELEASED if is_reservation else None
        return Entry(
            generation=commit.generation,
            wall_ms=commit.clock.wall_ms,
            operation=change.operation,
            by=change.by,
            note=change.note or (reservation.reason if reservation else None) or "",
            table=put.table if put else None,
            id=put.key if put and put.key != NODE_KEY else None,
            namespace=namespace,
            phase=phase,
            owner_uid=reservation.owner.uid if reservation else None,
            requests=reservation.requests if reservation else None,
        )


def _subjects(change: Change) -> list[Put] | list[None]:
    """Return the puts that *change* is about: each reservation, or whatever else there is."""
    if change.operation == _REBASE:
        return [None]
    found = [put for put in change.puts if put.table == RESERVATIONS]
    found = found or [put for put in change.puts if put.table not in {*_BESIDE, CLAIMS}]
    found = found or [put for put in change.puts if put.table in (CLAIMS, WAITS)]
    return found or [None]
