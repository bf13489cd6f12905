"""Read the ledger without its lock, while a daemon may be writing: for whoever finds no daemon."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ledger import checkpoint
from ledger.errors import LedgerBusy, LedgerCorrupt
from ledger.files import Folder, check_hint, translate
from ledger.replay import replay, without_gc

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.codec import Checkpoint
    from ledger.state import State

T = TypeVar("T")

_TRIES = 5
"""A rotation or an archived segment can take a file away under a reader, though not for ever."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ledger as its files had it at one moment."""

    state: State
    node_id: str
    generation: int


def read(directory: str | os.PathLike[str]) -> Snapshot:
    """Return the ledger in *directory* as of the last durable commit; nothing is written.

    Raises:
        NotFound: There is none.
        PermissionDenied: This user may not read it.
        LedgerBusy: The files changed under the reader each time.
        LedgerCorrupt: They are damaged, or missing where they should be.
        LedgerTooNew: A newer program wrote them.
    """
    path = os.path.abspath(directory)
    try:
        folder = Folder(path)
    except OSError as err:
        raise translate(err, path) from err
    try:
        with without_gc():
            return stable(folder, _replay)
    except OSError as err:
        raise translate(err, path) from err
    finally:
        folder.close()


def stable(folder: Folder, read_on: Callable[[Folder, Checkpoint], T]) -> T:
    """Return what *read_on* makes of the checkpoint in *folder* and the segments behind it.

    What looks missing or damaged is looked at again: a writer may have been in the middle of it.

    Raises:
        LedgerBusy: The files changed each time.
        LedgerCorrupt: They stayed the same and can't be trusted.
        OSError: There is no checkpoint, or a file can't be read.
    """
    seen: set[int] = set()
    failure: LedgerCorrupt | FileNotFoundError | None = None
    for _ in range(_TRIES):
        base = checkpoint.read(folder)
        seen.add(base.generation)
        try:
            return read_on(folder, base)
        except (FileNotFoundError, LedgerCorrupt) as err:
            failure = err
    if isinstance(failure, LedgerCorrupt):
        raise failure
    if len(seen) > 1:
        raise LedgerBusy(
            f"the ledger in {folder.path} changed {_TRIES} times while it was read",
            hint="try again in a moment",
        ) from failure
    raise LedgerCorrupt(
        f"a segment of the journal in {folder.path} is missing", hint=check_hint(folder.path)
    ) from failure


def _replay(folder: Folder, base: Checkpoint) -> Snapshot:
    state, _ = replay(folder, base)
    return Snapshot(state, base.node_id, state.generation)
