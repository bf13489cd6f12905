"""Repair a damaged ledger: a copy beside it, which takes its place in one step where asked for."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from axern.host import linux
from axern.runtime.configured import sole_user_of
from axern.runtime.offline import LOCK_TIMEOUT_S, now, require_root
from ledger import lock, remembered
from ledger import repair as copies
from ledger.errors import CommitFailed
from ledger.files import Folder, require_local, translate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.repair import Plan

HOLDER = "axern ledger repair"


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done: `copy` is where the repaired ledger is, `damaged` where the damaged one.

    `damaged` is None as long as nothing took the ledger's place.
    """

    plan: Plan
    copy: str
    damaged: str | None


def repair(settings: Settings, reason: str | None, *, apply: bool) -> Repair | None:
    """Write a repaired copy, put it in place with *apply*; None where nothing is to be repaired.

    Raises:
        PermissionDenied: Not root.
        LedgerBusy: With *apply*, a daemon or another command holds the ledger.
        LedgerCorrupt: Nothing verifies to begin with.
        NotFound: There is no ledger.
        CommitFailed: The disk refused; the ledger is as it was, or repaired if the message says so.
    """
    require_root("repair the ledger")
    directory, clock = os.path.abspath(settings.ledger_dir), now()
    stamp = datetime.fromtimestamp(clock.wall_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    copy = f"{directory}.repaired-{stamp}"
    with contextlib.ExitStack() as held:
        if apply:
            held.enter_context(_alone(settings, directory, clock))
        plan = copies.repair(
            directory,
            copy,
            now=clock,
            by="uid:0",
            reason=reason or "a copy to look at",
            least=lambda node_id: remembered.least(settings.run_dir, node_id, clock.boot_id),
        )
        if plan is None:
            return None
        if not apply:
            return Repair(plan, copy, None)
        damaged = f"{directory}.damaged-{stamp}"
        _exchange(copy, directory, damaged)
        return Repair(plan, directory, damaged)


@contextlib.contextmanager
def _alone(settings: Settings, directory: str, clock: Now) -> Iterator[None]:
    """Hold both locks that a daemon has; one that serves reads alone has neither."""
    try:
        require_local(directory)
        folder = Folder(directory)
    except OSError as error:
        raise translate(error, directory) from error
    with contextlib.ExitStack() as undo:
        undo.callback(folder.close)
        undo.enter_context(sole_user_of(settings.run_dir, HOLDER, LOCK_TIMEOUT_S))
        try:
            lock.take(folder, LOCK_TIMEOUT_S, HOLDER, clock, undo)
            undo.callback(_take_away_note, folder)
        except OSError as error:
            raise translate(error, directory) from error
        yield


def _take_away_note(folder: Folder) -> None:
    """Remove the note of who holds the lock: with the lock gone nobody is told of it."""
    with contextlib.suppress(OSError):
        folder.unlink(lock.HOLDER)


def _exchange(copy: str, directory: str, damaged: str) -> None:
    """Let the copy and the ledger change names in one step, then name the damaged one so."""
    try:
        linux.exchange(copy, directory)
    except OSError as error:
        raise CommitFailed(
            f"{copy} could not take the place of {directory}: {error.strerror}",
            hint="is the folder a mount of its own? Then move the files by hand: the copy is whole",
        ) from error
    kept = copy
    try:
        os.rename(copy, damaged)
        kept = damaged
        parent = Folder(os.path.dirname(directory))
        try:
            parent.sync()
        finally:
            parent.close()
    except OSError as error:
        raise CommitFailed(
            f"{directory} is repaired, but a power cut may undo that: {error.strerror}; "
            f"the damaged files are in {kept}",
            hint="look at the disk (df, dmesg), then: sync; axern ledger check",
        ) from error
