"""The next deadline of many reservations, without looking at all of them each time."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, cast

from ledger.reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.tables import Row

    Rows = Mapping[str, Row | None]

_STALE_PART = 2
_FEW = 64


def soonest_ms(levels: Sequence[Deadlines]) -> int | None:
    """Return the soonest deadline in *levels*, where the rows of each hide those below."""
    above: list[Rows] = []
    found = []
    for level in levels:
        found.append(level.first_ms(above))
        above.append(level.rows)
    return min((ms for ms in found if ms is not None), default=None)


class Deadlines:
    """The deadlines in *rows*, soonest first; those that have moved since are passed over.

    The rows belong to a state, which tells of each that it puts. Nobody needs this before the first
    refusal, so that a state makes it then.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._heap: list[tuple[int, str]] = []
        self._build()

    def note(self, key: str) -> None:
        """Take the row *key* into account, which was just put."""
        deadline_ms = _deadline_ms(self.rows.get(key))
        if deadline_ms is None:
            return
        heappush(self._heap, (deadline_ms, key))
        if len(self._heap) > _STALE_PART * len(self.rows) + _FEW:
            self._build()

    def first_ms(self, above: Sequence[Rows]) -> int | None:
        """Return the soonest deadline, milliseconds of CLOCK_BOOTTIME, or None.

        Rows whose key is in one of *above* are passed over: there they are newer.
        """
        hidden = []
        found = None
        while self._heap:
            deadline_ms, key = self._heap[0]
            if _deadline_ms(self.rows.get(key)) != deadline_ms:
                heappop(self._heap)
            elif any(key in rows for rows in above):
                hidden.append(heappop(self._heap))
            else:
                found = deadline_ms
                break
        for entry in hidden:
            heappush(self._heap, entry)
        return found

    def _build(self) -> None:
        pairs = ((_deadline_ms(row), key) for key, row in self.rows.items())
        self._heap = [(deadline_ms, key) for deadline_ms, key in pairs if deadline_ms is not None]
        heapify(self._heap)


def _deadline_ms(row: Row | None) -> int | None:
    return None if row is None else cast("Reservation", row).expires_boottime_ms
