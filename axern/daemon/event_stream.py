"""All events in one order, from some number on: what commits did, and the notes between them.

A reader that comes back with the last number that it was told goes on right behind it, whatever
has become of the daemon meanwhile: numbers are a property of what is durable. What is no longer
kept is said, and nobody is told of something that may still be undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from axern.daemon import event_view
from axern.daemon.event_number import Number, behind, of_note
from ledger import codec, occurrences
from ledger.codec import Malformed
from ledger.reservation import Reservation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from axern.daemon.event_view import Told
    from axern.daemon.parts import Parts
    from ledger.rights import Caller
    from ledger.state import State
    from ledger.tail import Line, Tail

Json = dict[str, Any]

SHARE = 0.2
"""The part of the loop's time that all readers of events together may take: commits go first."""
_KEEP_ALIVE_S = 15.0
_OWNERS_KEPT = 32_768


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events to tell, to whom; None and empty are all but those nobody asks for unnamed."""

    viewer: Caller
    namespace: str | None = None
    kinds: frozenset[str] = frozenset()
    since_wall_ms: int = 0

    def admits(self, told: Told) -> bool:
        """Tell whether *told* is one of them."""
        return (
            (told.kind in self.kinds if self.kinds else told.kind not in event_view.UNASKED)
            and self.namespace in (None, told.namespace)
            and told.wall_ms >= self.since_wall_ms
        )


class Pace:
    """Lets one reader work at a time, and then nobody for a while."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._free_at_s = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the turn; what is done in it must not wait for anything."""
        async with self._turn:
            await asyncio.sleep(max(0.0, self._free_at_s - self._clock()))
            began_s = self._clock()
            try:
                yield
            finally:
                now_s = self._clock()
                self._free_at_s = now_s + (now_s - began_s) * (1 / SHARE - 1)


class Owners:
    """Whose a reservation was: the line that releases it does not say so.

    `spec` finds the namespace and user of a run that is kept.
    """

    def __init__(self, spec: Callable[[str], tuple[str, int] | None]) -> None:
        self._spec = spec
        self._known: dict[str, tuple[str, int]] = {}
        self._readers = 0

    @contextlib.contextmanager
    def read(self, state: State) -> Iterator[None]:
        """Remember all of *state*, and what is met until the last reader leaves."""
        self._readers += 1
        for row in state.reservations():
            self.remember(row)
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._known.clear()

    def remember(self, row: Reservation) -> None:
        """Note whose *row* is."""
        self._known[row.id] = (row.namespace, row.owner.uid)
        if len(self._known) > _OWNERS_KEPT:
            del self._known[next(iter(self._known))]

    def of(self, told: Told) -> Told:
        """Return *told* with whose it is, where that is known."""
        if not told.is_owned or told.owner_uid is not None or told.id is None:
            return told
        found = self._known.get(told.id) or self._spec(told.id)
        return told.of(*found) if found else told


@dataclass(slots=True)
class _Batch:
    """What comes next; `lacking` says which events can't be told."""

    told: list[Told]
    lacking: list[str]


class Follower:
    """One reader on its way: `number` is the place behind which it goes on."""

    def __init__(self, parts: Parts, tail: Tail, number: Number, owners: Owners) -> None:
        self.number = number
        self._parts = parts
        self._tail = tail
        self._owners = owners
        self._told_dropped = of_note(0, 0)

    def horizon(self) -> int:
        """Return the last commit that may be told by now."""
        generation, held = self._parts.ledger.generation, self._parts.events.held
        return generation if held is None else min(generation, held)

    async def fetch(self, horizon: int) -> list[Line]:
        """Return the next lines of the journal up to *horizon*."""
        if self._tail.generation >= horizon:
            return []
        if self._tail.is_cold:
            return await asyncio.to_thread(self._tail.read, horizon)
        return self._tail.read(horizon)

    def take(self, lines: list[Line], horizon: int) -> _Batch:
        """Return the events of *lines* and the notes between them, and go on behind them."""
        batch = _Batch([], [])
        for line in lines:
            self._decode(line, batch)
        reached = self._tail.generation if lines else horizon
        events = self._parts.events
        dropped = events.dropped
        if dropped > max(self.number, self._told_dropped):
            batch.lacking.append(f"some notes up to {dropped} are kept no more")
            self._told_dropped = dropped
        batch.told += map(event_view.of_note, events.behind(self.number, reached))
        batch.told.sort(key=lambda told: told.number)
        self.number = max(self.number, behind(reached), *(told.number for told in batch.told))
        return batch

    def _decode(self, line: Line, batch: _Batch) -> None:
        first = line.generation - line.missing
        try:
            commit = codec.decode_commit(line.data, None)
        except Malformed as error:
            batch.lacking.append(f"commit {line.generation} can't be read: {error}")
            return
        given_up = any(change.operation == "repair" for change in commit.changes)
        if line.missing and not given_up:
            batch.lacking.append(f"commits {first} to {line.generation - 1} are missing")
        for occurrence in occurrences.of(commit.generation, commit.clock.wall_ms, commit.changes):
            if isinstance(occurrence.row, Reservation):
                self._owners.remember(occurrence.row)
            told = self._owners.of(event_view.of_occurrence(occurrence))
            if told.number > self.number:
                batch.told.append(told)


class Form:
    """How events become bytes: server-sent events, or lines of JSON."""

    def __init__(self, *, as_lines: bool) -> None:
        self._as_lines = as_lines
        self.content_type = "application/x-ndjson" if as_lines else "text/event-stream"

    def event(self, told: Told, viewer: Caller) -> bytes:
        """Return one event."""
        return self._said(told.kind, told.view(viewer), told.number)

    def begin(self, number: Number) -> bytes:
        """Return where the stream begins, so that who is told nothing more can come back there."""
        return self._said("begin", {"kind": "begin", "sequence": str(number)}, number)

    def lacking(self, words: str, number: Number) -> bytes:
        """Return that something can't be told."""
        return self._said("dropped", {"kind": "dropped", "message": words}, number)

    def silence(self, number: Number) -> bytes:
        """Return what only says that the stream is alive, and where its reader is by now."""
        return b"\n" if self._as_lines else f"id: {number}\n: waiting\n\n".encode()

    def _said(self, name: str, data: Json, number: Number) -> bytes:
        encoded = msgspec.json.encode(data)
        if self._as_lines:
            return encoded + b"\n"
        return f"id: {number}\nevent: {name}\ndata: ".encode() + encoded + b"\n\n"


async def follow(
    parts: Parts,
    follower: Follower,
    wanted: Wanted,
    form: Form,
    pace: Pace,
    *,
    wait: bool,
) -> AsyncGenerator[bytes, None]:
    """Yield the events behind the follower's number; without *wait* until now.

    With it, the first word says where that is.

    Reading waits for the client, and nothing waits for the reading.
    """
    with contextlib.ExitStack() as stack:
        moved = stack.enter_context(parts.events.told.subscribed())
        parts.committer.watchers.add(moved)
        stack.callback(parts.committer.watchers.discard, moved)
        if wait:
            yield form.begin(follower.number)
        while not parts.closing.is_set():
            moved.clear()
            horizon = follower.horizon()
            behind_of = follower.number
            lines = await follower.fetch(horizon)
            async with pace.turn():
                batch = follower.take(lines, horizon)
                said = [form.lacking(words, behind_of) for words in batch.lacking]
                said += [form.event(t, wanted.viewer) for t in batch.told if wanted.admits(t)]
            if said:
                yield b"".join(said)
            if lines or batch.told:
                continue
            if not wait:
                return
            if not await _wait(moved, parts.closing):
                yield form.silence(follower.number)


async def _wait(moved: asyncio.Event, closing: asyncio.Event) -> bool:
    """Wait for something new; return False where nothing comes."""
    tasks = [asyncio.ensure_future(event.wait()) for event in (moved, closing)]
    try:
        done, _ = await asyncio.wait(
            tasks, timeout=_KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)
    finally:
        for task in tasks:
            task.cancel()
