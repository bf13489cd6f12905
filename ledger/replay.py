"""Rebuild the state from a checkpoint and the commits behind it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from ledger.codec import Checkpoint
from ledger.files import Folder
from ledger.journal import Scan
from ledger.state import State


def replay(folder: Folder, base: Checkpoint) -> tuple[State, Scan]:
    """Return (the state after the last verified commit behind *base*, the scan that ended there).

    Raises:
        LedgerCorrupt: Something behind the checkpoint does not verify.
        OSError: A segment can't be read; FileNotFoundError where it is gone.
    """
    state = State.load(base.clock, base.generation, base.tables, base.balances)
    scan = Scan(folder, base.position, base.generation)
    for commit in scan:
        for change in commit.changes:
            state.apply(change)
        state.generation, state.clock = commit.generation, commit.clock
    return state, scan


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Suspend the search for garbage, which a ledger being read does not make: half the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
