"""The archive: sealed segments cut to their lines, kept for a while and up to a size.

A segment is in the archive before its name in the ledger's folder goes, so that a crash leaves it
twice and never nowhere.
"""

from __future__ import annotations

import contextlib
import os

from ledger.codec import Position
from ledger.files import DIRECTORY_MODE, Folder
from ledger.journal import first_generation, lines_end, segments

ARCHIVE = "archive"
ARCHIVE_DAYS = 30
ARCHIVE_BYTES = 1024**3


def archive(folder: Folder, position: Position, wall_ms: int) -> None:
    """Move the segments before *position* to the archive, cut to their lines, and prune that.

    What is older than `ARCHIVE_DAYS` goes, and the oldest of what is more than `ARCHIVE_BYTES`.

    Raises:
        OSError: A segment stays where it is; the next call takes it up again.
    """
    here = first_generation(position.segment) or 0
    sealed = [name for first, name in segments(folder).items() if first < here]
    if not folder.exists(ARCHIVE):
        if not sealed:
            return
        os.mkdir(ARCHIVE, DIRECTORY_MODE, dir_fd=folder.fd)
        os.chmod(ARCHIVE, DIRECTORY_MODE, dir_fd=folder.fd)  # whatever the umask is
    target = Folder(os.path.join(folder.path, ARCHIVE))
    try:
        for name in sealed:
            with contextlib.suppress(FileExistsError):  # left by a crash in the middle of this
                folder.link(name, name, target)
            fd = target.open(name, os.O_RDWR)
            try:
                os.ftruncate(fd, lines_end(target.read(name)))
                os.fsync(fd)
            finally:
                os.close(fd)
            target.sync()
            folder.unlink(name)
        _prune(target, wall_ms)
    finally:
        target.close()


def _prune(target: Folder, wall_ms: int) -> None:
    """Remove the oldest segments until the rest is within the bound on size.

    Of those that are too old the oldest goes, one a call: a wall clock that leaps for a moment must
    not take the whole past.
    """
    oldest_s = wall_ms / 1000 - ARCHIVE_DAYS * 86_400
    total = 0
    aged = None
    for name in sorted(segments(target).values(), reverse=True):
        status = os.stat(name, dir_fd=target.fd, follow_symlinks=False)
        total += status.st_size
        if total > ARCHIVE_BYTES:
            target.unlink(name)
        elif status.st_mtime < oldest_s:
            aged = name
    if aged is not None and total <= ARCHIVE_BYTES:
        target.unlink(aged)
