"""The lock of a ledger: who has it writes; it goes with its process and is never stolen."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime

import filelock

from ledger import checkpoint
from ledger.clock import Now
from ledger.errors import LedgerBusy, LedgerCorrupt
from ledger.files import FILE_MODE, Folder

Lock = filelock.BaseFileLock

LOCK = "ledger.lock"
HOLDER = "ledger.holder"


def take(
    folder: Folder, timeout_s: float, holder: str, now: Now, undo: contextlib.ExitStack
) -> filelock.BaseFileLock:
    """Return the lock, held until *undo*; whoever waits for it in vain is told who has it.

    Raises:
        LedgerBusy: Another process has had it for *timeout_s*.
        LedgerCorrupt: Something else stands in its place.
        OSError: The kernel says no.
    """
    lock = filelock.FileLock(
        os.path.join(folder.path, LOCK),
        timeout=timeout_s,
        mode=FILE_MODE,
        thread_local=False,
        blocking=True,
        is_singleton=False,
        poll_interval=0.05,
        lifetime=None,
        fallback_to_soft=False,
        preserve_lock_file=True,
    )
    try:
        lock.acquire()
    except filelock.Timeout as err:
        raise LedgerBusy(
            f"the ledger in {folder.path} is held by {_read_holder(folder)}",
            hint="wait until it ends, or stop it; the lock goes with it",
        ) from err
    undo.callback(lock.release)
    os.close(folder.open(LOCK))  # refuses what is no plain file; the lock is not this descriptor's
    since = datetime.fromtimestamp(now.wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = json.dumps({"pid": os.getpid(), "holder": holder, "since": since}) + "\n"
    with contextlib.suppress(OSError):  # a disk without room must still be opened, to make some
        checkpoint.write_small(folder, HOLDER, note.encode())
    return lock


def _read_holder(folder: Folder) -> str:
    try:
        note = json.loads(folder.read(HOLDER))
        return f"{note['holder']} (pid {note['pid']}, since {note['since']})"
    except (OSError, LedgerCorrupt, ValueError, KeyError, TypeError):
        return "a process that did not say who it is"
