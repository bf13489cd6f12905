"""The use case of all events: follow them from some number, some moment or now on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.daemon import event_stream
from axern.daemon.event_number import Number, behind, of_note
from axern.daemon.event_stream import Follower, Owners, Pace
from ledger import tail
from ledger.errors import NotFound, StateConflict
from ledger.tail import Tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from axern.daemon.event_stream import Form, Wanted
    from axern.daemon.parts import Parts

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a reader begins: behind `number`, or since `wall_ms`, or now; else with the oldest.

    Nothing before `wall_ms` is told, whatever comes behind `number`.
    """

    number: Number | None = None
    wall_ms: int | None = None
    now: bool = False


class EventService:
    """What can be asked of events: all may look, others' details are for their owners and root."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pace = Pace()
        self._owners = Owners(self._owner_of_run)

    async def stream(
        self, begin: Begin, wanted: Wanted, form: Form, *, wait: bool
    ) -> AsyncIterator[bytes]:
        """Return the events from where *begin* says on.

        Raises:
            NotFound: Some behind its number are kept no more; the message has the oldest.
            StateConflict: Its number is none of this ledger.
            LedgerError: The ledger can't be trusted just now.
        """
        parts = self._parts
        parts.condition.require_writable()
        try:
            await parts.events.flush(parts.ledger.generation, parts.clock().wall_ms)
        except OSError as error:
            _log.warning("events are in memory only: %s", error)
        directory = parts.settings.ledger_dir
        if begin.number is not None:
            await self._require_kept(begin.number)
            number = begin.number
        elif begin.now:
            generation, told = parts.ledger.generation, parts.events.last_told
            number = of_note(generation, told) if told else behind(generation)
        elif begin.wall_ms is not None:
            number = behind(await parts.search(tail.before, directory, begin.wall_ms))
        else:
            number = behind(await parts.search(tail.oldest, directory) - 1)
        return self._follow(Tail(directory, number.after), number, wanted, form, wait=wait)

    async def _follow(
        self, journal: Tail, number: Number, wanted: Wanted, form: Form, *, wait: bool
    ) -> AsyncIterator[bytes]:
        parts = self._parts
        with journal, self._owners.read(parts.ledger.state):
            follower = Follower(parts, journal, number, self._owners)
            following = event_stream.follow(parts, follower, wanted, form, self._pace, wait=wait)
            async with contextlib.aclosing(following):
                async for said in following:
                    yield said

    async def _require_kept(self, number: Number) -> None:
        """Raise NotFound where something behind *number* is gone, or StateConflict."""
        generation = self._parts.ledger.generation
        if number.generation > generation:
            raise StateConflict(
                f"{number} is no event of this ledger, which is at commit {generation}",
                hint="it was given by another ledger, or by this one before a backup was put back",
            )
        directory = self._parts.settings.ledger_dir
        first = await asyncio.to_thread(tail.oldest, directory)
        if number.after + 1 < first:
            raise NotFound(
                f"events behind {number} are kept no more: the oldest is {first}.1",
                hint=f"what is left begins behind {first - 1}",
            )

    def _owner_of_run(self, run_id: str) -> tuple[str, int] | None:
        spec = self._parts.runs.spec(run_id)
        return (spec.namespace, spec.uid) if spec else None
