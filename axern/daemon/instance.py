"""One daemon for each run folder, and no empty ledger beside what a lost one has left."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from ledger.checkpoint import CHECKPOINT
from ledger.errors import InvalidArgument, LedgerBusy, LedgerCorrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.runtime.layout import Layout

_LOCK = "axernd.lock"
_LONGEST_PID = 20


@contextlib.contextmanager
def sole_user_of(run_dir: str) -> Iterator[None]:
    """Hold *run_dir* for this process: two ledgers must not share sockets, mounts and exits.

    Raises:
        LedgerBusy: Another daemon uses it; the message names its pid.
        InvalidArgument: It can't be made or written to.
    """
    try:
        os.makedirs(run_dir, mode=0o755, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(f"{run_dir}/{_LOCK}", flags, 0o600)
    except OSError as error:
        raise InvalidArgument(f"run_dir: {run_dir}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, _LONGEST_PID, 0).decode(errors="replace").strip()
            raise LedgerBusy(
                f"run_dir {run_dir} is used by another axernd, process {holder}",
                hint="stop that one, or give this one a run_dir of its own",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def require_ledger_for_what_is_there(ledger_dir: str, layout: Layout) -> None:
    """Do nothing if a new ledger may be born: there is one, or nothing speaks of an earlier one.

    Raises:
        LedgerCorrupt: Runs or sandboxes are there and their ledger is not; an empty one would
            charge nobody for what still runs, and forget every run.
    """
    if os.path.lexists(f"{ledger_dir}/{CHECKPOINT}"):
        return
    folders = (layout.runs, layout.sandboxes, layout.filestore)
    left = [f"{folder}/{name}" for folder in folders for name in _names(folder)]
    if left:
        raise LedgerCorrupt(
            f"there is no ledger in {ledger_dir}, but {len(left)} things that one speaks of, "
            f"such as {left[0]}",
            hint=f"put the ledger back, or move {', '.join(folders)} away to begin anew",
        )


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
