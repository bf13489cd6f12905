"""Heartbeats in memory, and which of them are due to be written: all together, and rarely."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.clock import Now


class Heartbeats:
    """The last beat of each entry, on CLOCK_MONOTONIC in milliseconds.

    Losing what was not written yet costs nothing: after a restart every owner has a full stale
    window of grace.
    """

    def __init__(self, persisted: Mapping[str, int], persist_every_ms: int = 15_000) -> None:
        self._beats = dict(persisted)
        self._moved: set[str] = set()
        self._persist_every_ms = persist_every_ms
        self._persisted_at_ms: int | None = None

    @property
    def beats(self) -> Mapping[str, int]:
        """Return the last beat by reservation id."""
        return self._beats

    def beat(self, reservation_id: str, now: Now) -> None:
        """Note that the owner of *reservation_id* is alive."""
        self._beats[reservation_id] = now.monotonic_ms
        self._moved.add(reservation_id)

    def forget(self, reservation_id: str) -> None:
        """Drop the entry *reservation_id*, which has ended."""
        self._beats.pop(reservation_id, None)
        self._moved.discard(reservation_id)

    def retain(self, exists: Callable[[str], bool]) -> None:
        """Drop every entry of which *exists* says that it has ended."""
        for reservation_id in [key for key in self._beats if not exists(key)]:
            self.forget(reservation_id)

    def take_due(self, now: Now) -> dict[str, int]:
        """Return the beats to write now, by id: none before the interval is over."""
        last = self._persisted_at_ms
        if not self._moved or (
            last is not None and now.monotonic_ms - last < self._persist_every_ms
        ):
            return {}
        self._persisted_at_ms = now.monotonic_ms
        due = {key: self._beats[key] for key in self._moved}
        self._moved.clear()
        return due
