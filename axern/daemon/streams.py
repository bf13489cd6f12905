"""The output of a run as server-sent events that can be resumed at any record."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from axern.runtime.output import read_log
from ledger.reservation import RESERVED, RETIRING, STARTING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from axern.daemon.life import Life
    from axern.daemon.watcher import FolderWatcher
    from axern.runtime.layout import SandboxPaths
    from axern.runtime.output import Chunk

_KEEP_ALIVE_S = 15.0
_WAIT_FOR_BURIAL_S = 5.0
"""An exit is told after the burial, so that what it held is free; but not later than this."""
_NOT_STARTED = (RESERVED, STARTING)


@dataclass(frozen=True, slots=True)
class Source:
    """One run to follow: its log, its life (None if it is over), its phase and its JSON object."""

    paths: SandboxPaths
    life: Life | None
    phase: Callable[[], str | None]
    view: Callable[[], dict[str, Any]]


async def follow(
    source: Source,
    watcher: FolderWatcher,
    closing: asyncio.Event,
    *,
    offset: int,
    wait: bool,
) -> AsyncIterator[bytes]:
    """Yield `start`, then the output from *offset* on, then `exit`; ends early if *closing* is set.

    Each output event has the offset after it as its id. Reading waits for the client, and nothing
    else waits for the reading: the log is a file, read a few milliseconds at a time.

    Args:
        source: The run.
        watcher: Tells when the log grows.
        closing: The daemon is about to end; the client comes back to the next one.
        offset: 0 or the id of an output event.
        wait: Whether to wait for what is not there yet.
    """
    life = source.life
    grown = asyncio.Event()
    with contextlib.ExitStack() as stack:
        events = [grown, closing]
        if life is not None:
            stack.callback(watcher.watch(source.paths.run_folder, lambda _: grown.set()))
            events.append(stack.enter_context(life.moved.subscribed()))
        now_s = asyncio.get_running_loop().time
        started = False
        told_by_s: float | None = None
        while not closing.is_set():
            for event in events[:1] + events[2:]:
                event.clear()
            phase = None if life is None else source.phase()
            if not started and phase not in _NOT_STARTED:
                started = True
                yield _event("start", {"run": source.view()})
            if phase == RETIRING and told_by_s is None:
                told_by_s = now_s() + _WAIT_FOR_BURIAL_S
            over = phase is None or (told_by_s is not None and now_s() >= told_by_s)
            chunks = read_log(source.paths.log, offset)
            if chunks:
                offset = chunks[-1].next_offset
                yield b"".join(_output_events(chunks))
                await asyncio.sleep(0)  # a client that reads fast never makes `send` wait
            if over and not chunks:
                yield _event("exit", {"run": source.view()})
            if not chunks and (over or not wait):
                return
            if not chunks:
                timeout_s = _KEEP_ALIVE_S if told_by_s is None else told_by_s - now_s()
                if not await _wait(events, max(0.0, timeout_s)):
                    yield b": waiting\n\n"


def _output_events(chunks: list[Chunk]) -> Iterator[bytes]:
    """Yield one event for each row of chunks of the same output."""
    for stream, row in itertools.groupby(chunks, lambda chunk: chunk.stream):
        same = list(row)
        data = base64.b64encode(b"".join(chunk.data for chunk in same)).decode()
        yield f"id: {same[-1].next_offset}\nevent: {stream}\ndata: {data}\n\n".encode()


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


async def _wait(events: list[asyncio.Event], timeout_s: float) -> bool:
    """Wait for the first of *events*; return False if none came in time."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
