"""Retention: how long runs that have ended are kept, by age, number and disk space."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ledger.units import format_bytes, format_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from axern.daemon.parts import Parts
    from axern.daemon.run_index import Entry

_log = logging.getLogger(__name__)


def retain(parts: Parts, now_wall_ms: int, must_stop: Callable[[], bool] = lambda: False) -> int:
    """Remove ended runs beyond what the configuration allows, the oldest end first.

    Stops early where *must_stop* says so. Returns how many were removed.
    """
    settings = parts.settings
    entries = parts.run_index.entries()
    ended = [entry for entry in entries if entry.finished_wall_ms is not None]
    ended.sort(key=lambda entry: (entry.finished_wall_ms or 0, entry.id))
    left, left_bytes = len(ended), sum_bytes(ended)
    surplus: list[Entry] = []
    for entry in ended:
        is_old = now_wall_ms - (entry.finished_wall_ms or 0) > settings.runs_kept_ms
        is_too_much = left > settings.runs_max or left_bytes > settings.runs_disk_max_bytes
        if not (is_old or is_too_much):
            break
        left, left_bytes = left - 1, left_bytes - (entry.disk_bytes or 0)
        surplus.append(entry)
    removed = remove(parts, surplus, must_stop)
    if removed:
        _log.info("retention removed %s; %s are left", told(removed), left)
    return len(removed)


def remove(
    parts: Parts, entries: Iterable[Entry], must_stop: Callable[[], bool] = lambda: False
) -> list[Entry]:
    """Remove those of *entries* that are over, until *must_stop*; return them."""
    removed = []
    for entry in entries:
        if must_stop():
            break
        if is_over(parts, entry):
            parts.runs.discard(entry.id)
            removed.append(entry)
    return removed


def is_over(parts: Parts, entry: Entry) -> bool:
    """Tell whether the run has ended and nothing of it is charged any more."""
    ended = entry.finished_wall_ms is not None
    return ended and parts.ledger.state.find_reservation(entry.id) is None


def sum_bytes(entries: Iterable[Entry]) -> int:
    """Return what the runs take on disk."""
    return sum(entry.disk_bytes or 0 for entry in entries)


def told(entries: list[Entry]) -> str:
    """Return number and size of *entries* as words for the log."""
    return f"{len(entries)} ended runs, {format_short(sum_bytes(entries), format_bytes)}"
