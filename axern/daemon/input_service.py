"""The use case of standard input: bytes of a client handed to a sandbox's pipe, in their order.

Each request says where its bytes begin, so that one that is repeated is taken once; it is answered
with how much was taken within a few seconds, and the workload's pace is the client's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from axern.daemon.run_service import thing_of
from axern.runtime import standard_input
from axern.runtime.outcome import STDIN_LOST
from axern.runtime.standard_input import Taken
from ledger import rights
from ledger.errors import InvalidArgument, LedgerBusy, NotFound, StateConflict

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.daemon.life import Life
    from axern.daemon.parts import Json, Parts
    from axern.runtime.layout import SandboxPaths

PART_LIMIT_BYTES = 256 * 1024
_PATIENCE_S = 5.0
"""Less than a request may take, so that a full pipe is an answer and not an overdue request."""


class InputService:
    """What can be done with a run's standard input."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def write(self, run_id: str, data: bytes, peer: Peer, *, offset: int, end: bool) -> Json:
        """Hand *data*, which begins at *offset* of the input, on; with *end* nothing follows it.

        Raises:
            NotFound: No run has this id.
            PermissionDenied: It is somebody else's.
            InvalidArgument: The run was begun without standard input, or there is too much of it.
            StateConflict: *offset* is beyond what was taken so far, or what was taken is not known.
            LedgerBusy: The daemon is stopping, and the run is not.
        """
        found = self._parts.resolve_id(run_id)
        spec = self._parts.runs.spec(found)
        if spec is None:
            raise NotFound(f"no run has the id {run_id}", hint="list them with: axern run list")
        self._parts.require(rights.WRITE_INPUT, peer, thing_of(spec))
        if not spec.stdin:
            raise InvalidArgument(
                f"run {found} has no standard input", hint="begin it with: axern run -i"
            )
        if len(data) > PART_LIMIT_BYTES:
            raise InvalidArgument(f"a part of the input has at most {PART_LIMIT_BYTES} bytes")
        life = self._parts.lives.find(found)
        if life is None:
            if self._is_over(found):
                return {"taken": offset, "closed": True}
            # A daemon that stops has let go of its lives: to the client that is no end.
            raise LedgerBusy("the daemon is stopping", hint="ask the next one")
        until_s = asyncio.get_running_loop().time() + _PATIENCE_S
        try:
            async with asyncio.timeout_at(until_s):
                await life.stdin.acquire()
        except TimeoutError:
            return {"taken": offset, "closed": False}
        try:
            return await self._write(life, data, until_s, offset=offset, end=end)
        finally:
            life.stdin.release()

    async def _write(
        self, life: Life, data: bytes, until_s: float, *, offset: int, end: bool
    ) -> Json:
        paths = self._parts.layout.sandbox(life.reservation_id)
        before = await _begun(life, paths, until_s)
        if before is None or before.ended:
            return {
                "taken": offset,
                "closed": before is not None or self._is_over(life.reservation_id),
            }
        if before.doubtful:
            self._lose(life)
        if offset > before.offset:
            raise StateConflict(f"standard input was taken up to {before.offset}, not {offset}")
        pipe = standard_input.open_pipe(paths)
        if pipe is None:
            return {"taken": before.offset, "closed": True}
        try:
            pending = data[before.offset - offset :]
            taken, closed = await _feed(paths, pipe, pending, before.offset, until_s)
        finally:
            standard_input.close_pipe(pipe)
        if end and not closed and taken == offset + len(data):
            await asyncio.to_thread(standard_input.end, paths)
            standard_input.write_taken(paths, Taken(taken, ended=True))
            closed = True
        return {"taken": taken, "closed": closed}

    def _is_over(self, run_id: str) -> bool:
        return self._parts.ledger.state.find_reservation(run_id) is None

    def _lose(self, life: Life) -> None:
        """End the run: to go on could leave out bytes, or give them twice."""
        grace_ms = self._parts.settings.stop_grace_ms
        self._parts.lives.stop(life.reservation_id, STDIN_LOST, "daemon", grace_ms)
        raise StateConflict(
            "the daemon ended in the middle of a write, so that nobody knows how much of the "
            "input was taken; the run is ended",
            hint="run it again",
        )


async def _begun(life: Life, paths: SandboxPaths, until_s: float) -> Taken | None:
    """Wait for the pipe to be there; None if it is not by then, or the run is over."""
    with life.moved.subscribed() as moved:
        while True:
            taken = standard_input.read_taken(paths)
            left_s = until_s - asyncio.get_running_loop().time()
            if taken is not None or life.over.is_set() or left_s <= 0:
                return taken
            moved.clear()
            try:
                await asyncio.wait_for(moved.wait(), left_s)
            except TimeoutError:
                continue


async def _feed(
    paths: SandboxPaths, pipe: int, data: bytes, offset: int, until_s: float
) -> tuple[int, bool]:
    """Write *data* as the pipe takes it; return the offset behind it, and if it is closed."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        standard_input.write_taken(paths, Taken(offset, doubtful=True))
        count = standard_input.write_some(pipe, rest)
        offset, rest = offset + (count or 0), rest[count or 0 :]
        standard_input.write_taken(paths, Taken(offset))
        if count is None:
            return offset, True
        if rest and not await _writable(pipe, until_s - loop.time()):
            return offset, False
    return offset, False


async def _writable(pipe: int, timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(pipe, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), max(timeout_s, 0))
    except TimeoutError:
        return False
    finally:
        loop.remove_writer(pipe)
    return True
