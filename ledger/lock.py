"""The lock of a ledger: who has it writes; it goes with its process and is never stolen.

It is on the file that stands for it and on the folder itself: a file can be removed under its
holder, and then a second one be locked, the folder can't.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from datetime import UTC, datetime

import filelock

from ledger import checkpoint
from ledger.clock import Now
from ledger.errors import LedgerBusy, LedgerCorrupt
from ledger.files import FILE_MODE, Folder

LOCK = "ledger.lock"
HOLDER = "ledger.holder"
_POLL_S = 0.05


class Lock:
    """Both locks, as they are held; `take` makes it."""

    def __init__(self, folder: Folder, file: filelock.BaseFileLock) -> None:
        self._folder = folder
        self._file = file

    def release(self) -> None:
        """Let go, while the folder is still open; what the kernel refuses goes with the process.

        The folder first: whoever has the file then needs to wait for nobody.
        """
        with contextlib.suppress(OSError):
            fcntl.flock(self._folder.fd, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):
            self._file.release()


def take(
    folder: Folder, timeout_s: float, holder: str, now: Now, undo: contextlib.ExitStack
) -> Lock:
    """Return the lock, held until *undo*; whoever waits for it in vain is told who has it.

    Raises:
        LedgerBusy: Another process has had it for *timeout_s*.
        LedgerCorrupt: Something else stands in its place.
        OSError: The kernel says no.
    """
    deadline_s = time.monotonic() + timeout_s
    file = filelock.FileLock(
        os.path.join(folder.path, LOCK),
        timeout=timeout_s,
        mode=FILE_MODE,
        thread_local=False,
        blocking=True,
        is_singleton=False,
        poll_interval=_POLL_S,
        lifetime=None,
        fallback_to_soft=False,
        preserve_lock_file=True,
    )
    try:
        file.acquire()
    except filelock.Timeout as err:
        raise _busy(folder) from err
    lock = Lock(folder, file)
    undo.callback(lock.release)
    while not _lock_folder(folder):
        if time.monotonic() >= deadline_s:
            raise _busy(folder)
        time.sleep(_POLL_S)
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile: the folder is locked too
        # Refuses what is no plain file; the lock is not this descriptor's.
        os.close(folder.open(LOCK))
    since = datetime.fromtimestamp(now.wall_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    note = json.dumps({"pid": os.getpid(), "holder": holder, "since": since}) + "\n"
    with contextlib.suppress(OSError):  # a disk without room must still be opened, to make some
        checkpoint.write_small(folder, HOLDER, note.encode())
    return lock


def _lock_folder(folder: Folder) -> bool:
    """Lock the folder itself; return False if somebody else has it."""
    try:
        fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(folder: Folder) -> LedgerBusy:
    return LedgerBusy(
        f"the ledger in {folder.path} is held by {_read_holder(folder)}",
        hint="wait until it ends, or stop it; the lock goes with it",
    )


def _read_holder(folder: Folder) -> str:
    try:
        note = json.loads(folder.read(HOLDER))
        return f"{note['holder']} (pid {note['pid']}, since {note['since']})"
    except (OSError, LedgerCorrupt, ValueError, KeyError, TypeError):
        return "a process that did not say who it is"
