"""The use cases of a run's log: follow it from some place on, tell how much of it there is."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from axern.daemon import streams
from axern.daemon.parts import Json, Parts
from axern.daemon.run_service import thing_of
from axern.runtime import output, segments
from ledger import rights
from ledger.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from axern.api.messages import Peer
    from axern.daemon.run_service import RunService
    from axern.runtime.layout import SandboxPaths

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a reader wants to begin: at an offset, or at the later one of tail and since."""

    offset: int = 0
    tail_lines: int | None = None
    since_ms: int | None = None

    def position(self, log: str) -> output.Position:
        """Return the place in *log*; it may read much of it.

        Raises:
            InvalidArgument: No record ends at the offset.
        """
        found = output.locate(log, self.offset)
        if self.tail_lines is not None:
            found = max(found, output.tail(log, self.tail_lines), key=_by_offset)
        if self.since_ms is not None:
            found = max(found, output.since(log, self.since_ms * 1_000_000), key=_by_offset)
        return found


def _by_offset(position: output.Position) -> int:
    return position.offset


class LogService:
    """What can be asked of logs; they are told to whoever may read the run."""

    def __init__(self, parts: Parts, runs: RunService) -> None:
        self._parts = parts
        self._runs = runs

    async def stream(
        self, run_id: str, begin: Begin, peer: Peer, form: streams.Form, *, wait: bool
    ) -> AsyncIterator[streams.Part]:
        """Return the run's events from where *begin* says on.

        Raises:
            NotFound: No run has this id, or its log was removed.
            PermissionDenied: It is somebody else's.
            InvalidArgument: Nothing of the log ends at the offset that *begin* has.
        """
        found = self._parts.resolve_id(run_id)
        self._parts.require(rights.TELL_RUN, peer, thing_of(self._runs.spec(found)))
        if not self._parts.runs.has_ended(found):
            self._parts.condition.require_writable()  # else nobody sees it end
        paths = self._parts.layout.sandbox(found)

        def phase() -> str | None:
            row = self._parts.ledger.state.find_reservation(found)
            return row.phase if row else None

        async def settle() -> bool:
            try:
                return await self._parts.keeper.settle(paths, is_live=False)
            except OSError as error:
                _log.warning("run %s: its log can't be kept: %s", found, error)
                return False

        life = self._parts.lives.find(found)
        if phase() is None:  # and not: nobody lets it live, as while the daemon stops
            await settle()
        self._require_log(found, paths)
        position = await asyncio.to_thread(begin.position, paths.log)
        source = streams.Source(paths, life, phase, partial(self._runs.view, found, peer), settle)
        return streams.follow(
            source,
            self._parts.watcher,
            self._parts.closing,
            position=position,
            form=form,
            wait=wait,
        )

    def _require_log(self, run_id: str, paths: SandboxPaths) -> None:
        """Raise NotFound if the run has started, so that it had a log, and has none now."""
        row = self._parts.ledger.state.find_reservation(run_id)
        record = self._parts.runs.exit(run_id)
        started_ms = record.started_wall_ms if record else row.started_wall_ms if row else None
        if started_ms is not None and not os.path.lexists(paths.log):
            raise NotFound(
                f"the log of run {run_id} was removed: {paths.log} is not there",
                hint=f"the run itself: axern run get {run_id}",
            )

    def view(self, run_id: str) -> Json:
        """Return how much of the run's output there is, in bytes of the log that holds it."""
        found = segments.extent(segments.survey(self._parts.layout.sandbox(run_id).log))
        return {
            "kept_bytes": found.kept_bytes,
            "dropped_bytes": found.dropped_bytes,
            "dropped_records": found.dropped_records,
        }
