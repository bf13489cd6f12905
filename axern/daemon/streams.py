"""The output of a run as a stream of events that can be resumed at any record.

Two forms carry the same: server-sent events for everybody, and frames that hold the log's records
as they are, for readers that keep up with a pipe (`axern.api.frames`).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from axern.api import frames
from axern.api.messages import FilePart
from axern.records import Unpacker
from axern.runtime.output import READ_BYTES, find, read
from axern.runtime.segments import is_doubtful
from ledger.reservation import RESERVED, RETIRING, STARTING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from axern.daemon.life import Life
    from axern.daemon.watcher import FolderWatcher
    from axern.runtime.layout import SandboxPaths
    from axern.runtime.output import Position
    from axern.runtime.segments import Segment

    Part = bytes | FilePart

Json = dict[str, Any]

_KEEP_ALIVE_S = 15.0
_WAIT_FOR_BURIAL_S = 5.0
"""An exit is told after the burial, so that what it held is free; but not later than this."""
_WAIT_FOR_END_S = 5.0
"""A log that can't be brought to rest, on a full disk, is told as cut short after this."""
_PACE_S = 0.005
"""Who has read to the end looks again after this, or a busy monitor would wake it each time."""
_NOT_STARTED = (RESERVED, STARTING)


@dataclass(frozen=True, slots=True)
class Source:
    """One run to follow: its log, its life (None if it is over), its phase and its JSON object.

    `settle` brings the log of a run that is over to rest; until it returns True, some may not be
    found yet.
    """

    paths: SandboxPaths
    life: Life | None
    phase: Callable[[], str | None]
    view: Callable[[], dict[str, Any]]
    settle: Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Step:
    """What there is to say next, if anything, and where to go on after it."""

    said: Part
    after: Position
    segment: Segment | None = None


class Form(Protocol):
    """How events become bytes."""

    content_type: str
    piece_bytes: int
    """How much of a log it takes at once."""

    def event(self, name: str, data: Json, offset: int) -> bytes:
        """Return an event with a JSON object; *offset* is where to go on after it."""

    def step(self, log: str, at: Position, known: Segment | None, *, at_rest: bool) -> Step:
        """Return the next output of *log*, or a word on what is missing; see `output.find`."""

    def silence(self) -> bytes:
        """Return what only says that the stream is alive."""


class ServerSentEvents:
    """The form for everybody; its output is what the workload wrote, in base64."""

    content_type = "text/event-stream"
    piece_bytes = READ_BYTES

    def __init__(self, *, timestamps: bool = False) -> None:
        self._unpacker = Unpacker(timestamps=timestamps)

    def event(self, name: str, data: Json, offset: int) -> bytes:
        """Return one event."""
        head = f"id: {offset}\nevent: {name}\ndata: ".encode()
        return head + msgspec.json.encode(data) + b"\n\n"

    def step(self, log: str, at: Position, known: Segment | None, *, at_rest: bool) -> Step:
        """Return one event for each row of records of the same output."""
        piece = read(log, at, self.piece_bytes, known, at_rest=at_rest)
        said = b""
        if piece.dropped is not None:
            lost = {"bytes": piece.dropped.size_bytes, "records": piece.dropped.records}
            said = self.event("dropped", lost, piece.after.offset)
        elif piece.text:
            said = self._output(piece.text, piece.after.offset)
        return Step(said, piece.after, piece.segment)

    def _output(self, text: bytes, after: int) -> bytes:
        broken = self._unpacker.broken
        outputs = self._unpacker.unpack(text)
        is_whole = self._unpacker.broken == broken
        offset = after - len(text)
        parts = []
        for output in outputs:
            # Where something is left out, no place but the last is known: rather twice than never.
            offset += output.size_bytes if is_whole else 0
            data = base64.b64encode(output.data).decode()
            parts.append(f"id: {offset}\nevent: {output.stream}\ndata: {data}\n\n".encode())
        if not is_whole:
            left_out = len(text) - sum(output.size_bytes for output in outputs)
            parts.append(self.event("dropped", {"bytes": left_out, "records": None}, after))
        return b"".join(parts)

    def silence(self) -> bytes:
        """Return a comment."""
        return b": waiting\n\n"


class Frames:
    """The fast form: the log's records go from their file to the client as they are.

    Nobody here looks at them; so the client counts them, and is told what came before a gap's end.
    """

    content_type = frames.CONTENT_TYPE
    piece_bytes = 512 * 1024

    def event(self, name: str, data: Json, offset: int) -> bytes:
        """Return one event."""
        content = f"{name}\n".encode() + msgspec.json.encode(data)
        return frames.pack(frames.Frame(frames.EVENT, content, offset))

    def step(self, log: str, at: Position, known: Segment | None, *, at_rest: bool) -> Step:
        """Return one frame for all of it."""
        found = find(log, at, self.piece_bytes, known, at_rest=at_rest)
        said: Part = b""
        if found.dropped is not None:
            lost = {"bytes": found.dropped.size_bytes, "records_before": found.after.records}
            said = self.event("dropped", lost, found.after.offset)
        elif (stretch := found.stretch) is not None:
            head = frames.head(frames.RECORDS, stretch.size_bytes, found.after.offset)
            said = FilePart(head, stretch.file, stretch.begin, stretch.size_bytes)
        return Step(said, found.after, found.segment)

    def silence(self) -> bytes:
        """Return an empty frame."""
        return frames.pack(frames.Frame(frames.KEEP_ALIVE, b"", 0))


class _Follower:
    """One reader on its way through a log."""

    def __init__(self, source: Source, form: Form, position: Position) -> None:
        self.source = source
        self.form = form
        self.position = position
        self._begun = position
        self._segment: Segment | None = None
        self._started = False
        self._told_by_s: float | None = None
        self._found_by_s: float | None = None

    def look(self, now_s: float) -> tuple[bytes, bool]:
        """Return what to say of the run's beginning, and whether the run is over."""
        phase = None if self.source.life is None else self.source.phase()
        if phase == RETIRING and self._told_by_s is None:
            self._told_by_s = now_s + _WAIT_FOR_BURIAL_S
        over = phase is None or (self._told_by_s is not None and now_s >= self._told_by_s)
        if self._started or phase in _NOT_STARTED:
            return b"", over
        self._started = True
        start = {"run": self.source.view(), "records": self._begun.records}
        return self.event("start", start), over

    def event(self, name: str, data: Json) -> bytes:
        """Return an event that leaves the reader where it is."""
        return self.form.event(name, data, self.position.offset)

    def read(self, *, at_rest: bool) -> tuple[Part, int]:
        """Return the next output or a word on what is missing, and how many bytes of log it was."""
        before = self.position.offset
        step = self.form.step(self.source.paths.log, self.position, self._segment, at_rest=at_rest)
        self.position, self._segment = step.after, step.segment
        return step.said, step.after.offset - before

    def may_wait(self, now_s: float) -> bool:
        """Tell whether there is time left for the end of the log to be found."""
        if self._found_by_s is None:
            self._found_by_s = now_s + _WAIT_FOR_END_S
        return now_s < self._found_by_s

    def patience_s(self, now_s: float) -> float:
        """Return how long to wait for something new at most."""
        if self._told_by_s is None:
            return _KEEP_ALIVE_S
        return max(0.0, self._told_by_s - now_s)


async def follow(
    source: Source,
    watcher: FolderWatcher,
    closing: asyncio.Event,
    *,
    position: Position,
    form: Form,
    wait: bool,
) -> AsyncIterator[Part]:
    """Yield `start`, the output from *position* on, then `exit`; ends early if *closing* is set.

    Each piece of output says the offset after it. Reading waits for the client, and nothing else
    waits for the reading: the log is files, which are read a little at a time, and what is dropped
    meanwhile is told in a `dropped` event.

    A part of a file is for the caller to close.

    Args:
        source: The run.
        watcher: Tells when the log grows.
        closing: The daemon is about to end; the client comes back to the next one.
        position: Where to begin.
        form: How it is said.
        wait: Whether to wait for what is not there yet.
    """
    now_s = asyncio.get_running_loop().time
    follower = _Follower(source, form, position)
    at_rest = False
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(_Watch(watcher, source))
        moved = asyncio.Event()
        if source.life is not None:
            moved = stack.enter_context(source.life.moved.subscribed())
        while not closing.is_set():
            moved.clear()
            beginning, over = follower.look(now_s())
            if beginning:
                yield beginning
            at_rest = at_rest or (over and await source.settle())
            said, size_bytes = follower.read(at_rest=at_rest)
            if said:
                yield said
            if size_bytes:
                watch.end()
                # A client that reads fast never makes `send` wait.
                pause_s = 0 if over or size_bytes >= form.piece_bytes // 2 else _PACE_S
                await (_wait([moved, closing], pause_s) if pause_s else asyncio.sleep(0))
            elif over and not at_rest and follower.may_wait(now_s()):
                await asyncio.sleep(_PACE_S)
            elif over or not wait:
                if over and (not at_rest or is_doubtful(source.paths.log)):
                    yield follower.event("dropped", {"bytes": 0, "records": None})
                if over:
                    yield follower.event("exit", {"run": source.view()})
                return
            elif watch.begin() and not await _wait(
                [watch.grown, moved, closing], follower.patience_s(now_s())
            ):
                yield form.silence()


class _Watch:
    """Looks at a log's folder while its reader has nothing to do, and only then.

    A monitor writes thousands of times a second; while there is something to read, nobody needs
    to be told that there is more.
    """

    def __init__(self, watcher: FolderWatcher, source: Source) -> None:
        self.grown = asyncio.Event()
        self._watcher = watcher
        self._folder = source.paths.run_folder
        self._unwatch: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> bool:
        """Watch; return False if it did not before, so that one must look once more."""
        self.grown.clear()
        if self._unwatch is not None:
            return True
        self._unwatch = self._watcher.watch(self._folder, lambda _: self.grown.set())
        return False

    def end(self) -> None:
        """Watch no longer."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


async def _wait(events: list[asyncio.Event], timeout_s: float) -> bool:
    """Wait for the first of *events*; return False if none came in time."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
