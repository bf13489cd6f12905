"""As much of a damaged ledger as verifies, to be looked at and never to be decided on."""

from __future__ import annotations

import contextlib
import os

from ledger import checkpoint
from ledger.clock import Now
from ledger.errors import LedgerError, NotFound, PermissionDenied
from ledger.files import Folder
from ledger.journal import Scan
from ledger.reader import Snapshot
from ledger.replay import without_gc
from ledger.state import State

UNKNOWN = "unknown"
"""Stands for the node's id where nothing tells it."""


def salvage(directory: str | os.PathLike[str], node_id: str | None = None) -> Snapshot:
    """Return the ledger in *directory* as far as it verifies from its newest checkpoint on.

    Where neither checkpoint does, that is a ledger without entries, of *node_id* if it is known.
    Nothing is written, and no lock is needed.
    """
    with contextlib.suppress(OSError):
        folder = Folder(os.path.abspath(directory))
        try:
            for name in (checkpoint.CHECKPOINT, checkpoint.PREVIOUS):
                with contextlib.suppress(LedgerError, NotFound, PermissionDenied, OSError):
                    return _follow(folder, name)
        finally:
            folder.close()
    return Snapshot(State(Now("", 0, 0, 0)), node_id or UNKNOWN, 0)


def _follow(folder: Folder, name: str) -> Snapshot:
    with without_gc():
        base = checkpoint.read(folder, name)
        state = State.load(base.clock, base.generation, base.tables, base.balances)
        with contextlib.suppress(LedgerError, OSError):
            for commit in Scan(folder, base.position, base.generation):
                for change in commit.changes:
                    state.apply(change)
                state.generation, state.clock = commit.generation, commit.clock
    return Snapshot(state, base.node_id, state.generation)
