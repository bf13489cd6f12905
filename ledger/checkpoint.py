"""The checkpoint file: the whole ledger at one generation, replaced atomically, and read back."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ledger import codec
from ledger.codec import Checkpoint, Malformed, NewerSchema, Position
from ledger.errors import LedgerCorrupt, LedgerTooNew
from ledger.files import Folder, check_hint, write_all
from ledger.state import State

CHECKPOINT = "ledger.json"
PREVIOUS = "ledger.json.prev"
_WRITE_BYTES = 64 * 1024


def of(state: State, node_id: str, position: Position) -> Checkpoint:
    """Return the checkpoint of *state*, which must not change before it is written."""
    return Checkpoint(
        node_id, state.generation, state.clock, position, state.balances(), state.all_rows()
    )


def read(folder: Folder, name: str = CHECKPOINT) -> Checkpoint:
    """Return the checkpoint *name* in *folder*.

    Raises:
        LedgerTooNew: It was written by a newer program.
        LedgerCorrupt: It is not exactly what this program writes.
        OSError: It can't be read; FileNotFoundError where there is none.
    """
    data = folder.read(name)
    path = os.path.join(folder.path, name)
    try:
        return codec.decode_checkpoint(data)
    except NewerSchema as err:
        raise LedgerTooNew(
            f"{path}: {err}", hint="start the newer axernd again, or restore what it upgraded from"
        ) from err
    except Malformed as err:
        raise LedgerCorrupt(
            f"{path} ({len(data)} bytes): {err}", hint=check_hint(folder.path)
        ) from err


def write(folder: Folder, checkpoint: Checkpoint) -> int:
    """Replace the checkpoint in *folder* durably, keep the one before, and return its bytes.

    Raises:
        OSError: It is not known to be durable; whoever opens the ledger finds the old or the new
            one, each whole.
    """
    # Theory of operation, numbered as in tests/faults/test_crash.py. Who crashes
    #   1 before the new file is durable, leaves it under a name that the next opener sweeps;
    #   2 before the rename, leaves the old checkpoint, and maybe a second name for it;
    #   3 after it, leaves the new one, since its content was durable before its name.
    # The directory is flushed last; until then the name may be lost, so nobody is told.
    name, fd = folder.create_temporary(CHECKPOINT)
    try:
        size = _write_chunks(fd, codec.encode_checkpoint(checkpoint))
        os.fsync(fd)
    except OSError:
        folder.unlink(name)
        raise
    finally:
        os.close(fd)
    if folder.exists(CHECKPOINT):
        folder.unlink(PREVIOUS)
        folder.link(CHECKPOINT, PREVIOUS)
    folder.rename(name, CHECKPOINT)
    folder.sync()
    return size


def write_small(folder: Folder, name: str, content: bytes) -> None:
    """Replace the small file *name* durably with *content*."""
    temporary, fd = folder.create_temporary(name)
    try:
        write_all(fd, content, 0)
        os.fsync(fd)
    except OSError:
        folder.unlink(temporary)
        raise
    finally:
        os.close(fd)
    folder.rename(temporary, name)
    folder.sync()


def _write_chunks(fd: int, chunks: Iterable[bytes]) -> int:
    offset = 0
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        if len(pending) >= _WRITE_BYTES:
            write_all(fd, bytes(pending), offset)
            offset += len(pending)
            pending.clear()
    write_all(fd, bytes(pending), offset)
    return offset + len(pending)
