"""Serve reads while the ledger can't be decided on, and notice when it can be again.

Neither the ledger's lock nor `run_dir` is held meanwhile, so that whoever repairs the ledger can
take both. Sandboxes run on, and nobody touches them: what the ledger does not say for certain must
not be killed, buried or uncharged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, cast

from axern.api import server
from axern.daemon import door, opening, wiring
from axern.daemon.condition import DEGRADED, NOTHING, UNTRUSTED, Condition, Trouble
from axern.daemon.handlers import Handlers, error_response
from axern.daemon.observer import read_now
from axern.host import systemd
from axern.runtime.configured import layout_of, sole_user_of
from ledger.errors import (
    DISK_RETRY_AFTER_S,
    AxernError,
    CommitFailed,
    LedgerCorrupt,
    LedgerError,
)
from ledger.salvage import salvage

if TYPE_CHECKING:
    from axern.daemon.lives import Lives
    from axern.host.systemd import Handover
    from axern.settings import Settings
    from ledger.committer import Committer
    from ledger.state import State
    from ledger.store import Ledger

LOOK_EVERY_S = 2.0
TRY_EVERY_S = 60.0
"""How often to look whether the files have changed, and to try whatever has not."""
_SIGNS_A_WINDOW = 3

_log = logging.getLogger("axernd")


@dataclass(frozen=True, slots=True)
class ReadOnlyLedger:
    """A ledger that was read once and has no writer."""

    state: State
    node_id: str
    generation: int
    failed: bool = False
    is_short: bool = False


class _NoCommitter:
    """Commits nothing; the routes have refused before."""

    def __init__(self, refusal: LedgerError) -> None:
        self._refusal = refusal

    async def submit(self, _operation: object) -> NoReturn:
        """Refuse."""
        raise self._refusal.anew()


class _NoLives:
    """Nobody looks after a sandbox."""

    def find(self, _reservation_id: str) -> None:
        """Find none."""

    def all(self) -> tuple[()]:
        """Return none."""
        return ()


async def serve(
    settings: Settings, handover: Handover, error: LedgerError, *, bury_unknown: bool
) -> bool:
    """Serve reads for as long as *error* stands; return whether the daemon was asked to end.

    Raises:
        AxernError: The socket can't be served on, or what an opened ledger says ends the daemon.
    """
    notifier = systemd.Notifier(handover.notify_socket)
    found = await asyncio.to_thread(salvage, settings.ledger_dir, settings.node_id or None)
    trouble = trouble_of(error)
    async with contextlib.AsyncExitStack() as stack:
        condition = Condition(lambda: trouble, read_now)
        parts = wiring.wire(
            stack,
            settings,
            layout_of(settings),
            cast("Ledger", ReadOnlyLedger(found.state, found.node_id, found.generation)),
            cast("Committer", _NoCommitter(error)),
            condition,
            lives=cast("Lives", _NoLives()),
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, parts.closing.set)
        listening = door.listening(settings, door.second_key(handover))
        serving = server.build(Handlers(parts), error_response)
        served = asyncio.create_task(serving.serve(sockets=[listening]), name="server")
        stop = asyncio.create_task(parts.closing.wait(), name="signal")
        way_back = asyncio.create_task(
            _way_back(settings, error, bury_unknown=bury_unknown), name="way back"
        )
        signs = asyncio.create_task(_signs(notifier, handover.watchdog_s), name="signs of life")
        words = f"read-only: ledger {condition.words()}"
        _log.error("%s; showing generation %s", words, found.generation)
        notifier.tell("READY=1", f"STATUS={words}")
        await asyncio.wait({served, stop, way_back}, return_when=asyncio.FIRST_COMPLETED)
        stopped = parts.closing.is_set()
        parts.closing.set()  # streams end
        if stopped:
            notifier.tell("STOPPING=1", "STATUS=stopping; sandboxes go on")
            door.shut(settings, handover)
        serving.stop()
        await served
        for task in (way_back, signs, stop):
            if not task.done():
                task.cancel()
        await asyncio.wait({way_back, signs, stop})
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a start is ended by them at once
        if not way_back.cancelled():
            way_back.result()
    return stopped


def trouble_of(error: LedgerError) -> Trouble:
    """Return what keeps a daemon from writing that could not open its ledger for *error*."""
    if isinstance(error, CommitFailed):
        refusal: LedgerError = CommitFailed(
            f"the ledger can't be opened for writing: {error.message}",
            hint=error.hint,
            retry_after_s=DISK_RETRY_AFTER_S,
        )
        return Trouble(DEGRADED, NOTHING, error.message, error.hint, refusal)
    remedy = error.hint
    if isinstance(error, LedgerCorrupt):
        more = "to go on with what verifies: axern ledger repair"
        remedy = f"{error.hint}; {more}" if error.hint else more
    refusal = type(error)(error.message, hint=remedy)
    refusal.message = f"nothing is changed, since the ledger can't be trusted: {error.message}"
    return Trouble(UNTRUSTED, NOTHING, error.message, remedy, refusal)


async def _way_back(settings: Settings, error: LedgerError, *, bury_unknown: bool) -> None:
    """Return when the ledger can be opened: its files have changed, or its disk is well."""
    pause_s = DISK_RETRY_AFTER_S if isinstance(error, CommitFailed) else TRY_EVERY_S
    seen, tried_at_s = _files(settings.ledger_dir), time.monotonic()
    said = error.message
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        now = _files(settings.ledger_dir)
        if now == seen and time.monotonic() - tried_at_s < pause_s:
            continue
        try:
            await asyncio.to_thread(_try, settings, bury_unknown=bury_unknown)
        except LedgerError as again:
            if not isinstance(again, opening.REFUSALS) and again.code != "busy":
                raise  # retired, or moved to where no ledger may be: an end, as at any start
            if again.message != said:
                said = again.message
                _log.error("the ledger still can't be opened: %s", said)
        except AxernError as again:
            _log.error("the ledger still can't be opened: %s", again)
        else:
            _log.warning("the ledger opens again: going on with it")
            return
        seen, tried_at_s = _files(settings.ledger_dir), time.monotonic()


def _try(settings: Settings, *, bury_unknown: bool) -> None:
    with sole_user_of(settings.run_dir):
        layout = layout_of(settings)
        opening.open_ledger(settings, layout, bury_unknown=bury_unknown).close(checkpoint=False)


def _files(directory: str) -> frozenset[tuple[str, int, int, int]]:
    """Return what tells whether anything in the ledger's folder was changed."""
    return frozenset(_described(directory))


def _described(directory: str) -> Iterator[tuple[str, int, int, int]]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith((".tmp", ".holder", ".lock")):
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield entry.name, status.st_ino, status.st_size, status.st_mtime_ns


async def _signs(notifier: systemd.Notifier, watchdog_s: float | None) -> None:
    while watchdog_s is not None:
        await asyncio.sleep(watchdog_s / _SIGNS_A_WINDOW)
        notifier.tell("WATCHDOG=1")
