"""What the files of a ledger say, after making whole what a crash left unfinished; else nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ledger import checkpoint as checkpoint_file
from ledger import codec, invariants
from ledger.archive import ARCHIVE
from ledger.blank import Ballast, is_blank, make_blank
from ledger.clock import Now
from ledger.codec import Position
from ledger.errors import LedgerCorrupt, NotFound
from ledger.files import NO_ROOM, Folder, check_hint
from ledger.journal import segment_name, segments
from ledger.replay import replay, without_gc
from ledger.state import State, genesis

NODE_ID = "node-id"
"""Marks a directory as a ledger's, so that one without a checkpoint is never taken for new."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A ledger as it was read: its state, and where the journal goes on."""

    node_id: str
    state: State
    position: Position
    checkpoint_generation: int
    checkpoint_bytes: int
    replayed_bytes: int


def load(
    folder: Folder,
    now: Now,
    node_id: str | None,
    least: Callable[[str | None], int],
    *,
    create: bool,
    segment_bytes: int,
) -> Loaded:
    """Return what the files say, after making whole what a crash left unfinished.

    *least* returns the least generation that the ledger of a node must have by now.
    """
    if not folder.exists(checkpoint_file.CHECKPOINT):
        _require_unborn(folder)
        _require_newest(folder, 0, least(node_id))
        if not create:
            raise NotFound(f"there is no ledger in {folder.path}", hint="start axernd once")
        _bear(folder, now, node_id or os.urandom(16).hex(), segment_bytes)
    with without_gc():
        base = checkpoint_file.read(folder)
        _check_node_id(folder, base.node_id, node_id)
        try:
            state, scan = replay(folder, base)
        except FileNotFoundError as err:
            raise LedgerCorrupt(
                f"a segment behind {base.position.segment} in {folder.path}, or that itself, is "
                "missing",
                hint=check_hint(folder.path),
            ) from err
        _require_newest(folder, state.generation, least(base.node_id))
    violations = invariants.check(state.all_rows(), state.balances())
    if violations:
        raise LedgerCorrupt(
            f"the ledger in {folder.path} contradicts itself {len(violations)} times, first: "
            f"{violations[0].message}",
            hint=check_hint(folder.path),
        )
    position, generation, size = scan.position, base.generation, 0
    is_old = base.schema != codec.SCHEMA
    if scan.torn or is_old:
        position = seal(folder, position, state.generation, segment_bytes)
        renewed = checkpoint_file.of(state, base.node_id, position)
        try:
            size = checkpoint_file.write(folder, renewed)
            generation = state.generation
        except OSError as err:
            # What is torn is void by the new segment alone.
            if is_old or err.errno not in NO_ROOM:
                raise
    return Loaded(base.node_id, state, position, generation, size, scan.replayed_bytes)


def _require_newest(folder: Folder, generation: int, least: int) -> None:
    """Do nothing if a ledger at *generation* may be the newest one.

    Raises:
        LedgerCorrupt: This boot has seen a later one.
    """
    if generation < least:
        found = f"is at generation {generation}" if generation else "is gone"
        raise LedgerCorrupt(
            f"the ledger in {folder.path} {found}, but this boot has seen {least}: "
            "an older copy, or nothing, was put in its place",
            hint="put the newest one back; " + check_hint(folder.path),
        )


def _require_unborn(folder: Folder) -> None:
    """Do nothing if no ledger has ever been in *folder*: at most a birth that was cut short.

    Raises:
        LedgerCorrupt: There are remains of one.
    """
    remains = [name for name in (NODE_ID, checkpoint_file.PREVIOUS, ARCHIVE) if folder.exists(name)]
    remains += [name for name in segments(folder).values() if not is_blank(folder.read(name))]
    if remains:
        raise LedgerCorrupt(
            f"{folder.path} has {', '.join(remains)}, but {checkpoint_file.CHECKPOINT} is missing",
            hint=f"put it back, or start from {checkpoint_file.PREVIOUS}; "
            + check_hint(folder.path),
        )


def _bear(folder: Folder, now: Now, node_id: str, segment_bytes: int) -> None:
    """Make a new ledger. The checkpoint is its birth; the first segment comes before it."""
    state = genesis(now)
    position = seal(folder, Position("", 0, codec.NO_CHAIN), 0, segment_bytes)
    checkpoint_file.write(folder, checkpoint_file.of(state, node_id, position))


def seal(folder: Folder, position: Position, generation: int, segment_bytes: int) -> Position:
    """Put a blank segment behind *generation*, and return the position at its start.

    What stands behind *position* in its own segment is void from then on: the segment ends where
    the next one begins. One that holds nothing else is replaced.
    """
    following = segment_name(generation + 1)
    try:
        blank = make_blank(folder, segment_bytes)
    except OSError as err:
        ballast = Ballast(folder, segment_bytes).take(0) if err.errno in NO_ROOM else None
        if ballast is None:
            raise
        blank = ballast
    os.close(blank.fd)
    folder.rename(blank.name, following)
    folder.sync()
    return Position(following, 0, position.chain)


def _check_node_id(folder: Folder, node_id: str, wanted: str | None) -> None:
    """Compare the checkpoint's node id with the marker beside it, and with what is *wanted*."""
    if folder.exists(NODE_ID):
        marked = folder.read(NODE_ID).decode(errors="replace").strip()
    else:
        checkpoint_file.write_small(folder, NODE_ID, f"{node_id}\n".encode())
        marked = node_id
    for other, whose in ((marked, f"the file {NODE_ID}"), (wanted, "this node")):
        if other is not None and other != node_id:
            raise LedgerCorrupt(
                f"the ledger in {folder.path} is of node {node_id}, but {whose} says {other}",
                hint="put the right ledger back; " + check_hint(folder.path),
            )
