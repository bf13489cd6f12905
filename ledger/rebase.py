"""Carry the ledger over to another boot, whose clocks begin anew."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ledger import tables
from ledger.postings import change
from ledger.state import Put

if TYPE_CHECKING:
    from ledger.clock import Now
    from ledger.state import Change, State


def rebase(view: State, now: Now) -> Change:
    """Carry every deadline over to the boot of *now*, and forget beats of the boot before.

    What was left of a deadline at the ledger's last commit is left of it now: the time in between
    is unknown to any clock that can't be set.
    """
    shift_ms = now.boottime_ms - view.clock.boottime_ms
    puts: list[Put] = []
    for table in tables.ROW_TYPES:
        for key, row in view.rows(table):
            moved = {
                field.name: getattr(row, field.name) + shift_ms
                for field in fields(row)
                if field.name.endswith("_boottime_ms") and getattr(row, field.name) is not None
            }
            if moved:
                puts.append(Put(table, key, replace(row, **moved)))
    puts.extend(Put(tables.BEATS, key, None) for key, _ in view.rows(tables.BEATS))
    return change(view, "rebase", tuple(puts), note=f"boot {now.boot_id}")
