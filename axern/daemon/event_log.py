"""Notes: events that are no change of the ledger, such as refusals, in a file outside of commits.

They are kept in memory and written when somebody ticks, so that no client waits for the disk.
What a client repeats is counted, and the namespace with the most events is the first that gives
some up. Source: docs/decisions/0029-namespaces.md.

Each gets a number among all events when it is final and is written: the commit that it was written
behind, and a count. It is told to followers once it is durable, and until then nobody is told of
later commits. Source: docs/decisions/0034-events.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from axern.daemon.event_number import Number, of_note
from axern.daemon.watcher import Signal
from axern.runtime.record import sync_folder

KEPT_MS = 7 * 86_400_000
MOST_EVENTS = 10_000
MOST_OF_A_NAMESPACE = 1_000
SAME_IN_A_WINDOW = 10
WINDOW_MS = 60_000
"""So many events of one kind stand for themselves in one window; more are counted in the last."""
_SLACK_LINES = 1_000
_MODE = 0o640

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Happening:
    """What happened: two that differ in nothing but `detail` are of the same kind."""

    kind: str
    namespace: str
    uid: int
    code: str
    reason: str
    message: str = field(compare=False, default="")
    detail: Json = field(compare=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A happening, `count` times between two moments of the wall clock, the last one in words.

    `told` counts those that are final, and was given behind commit `generation`; 0 is not yet.
    """

    sequence: int
    first_wall_ms: int
    last_wall_ms: int
    count: int
    what: Happening
    generation: int = 0
    told: int = 0

    @property
    def number(self) -> Number:
        """Return where it stands among all events."""
        return of_note(self.generation, self.told)


@dataclass(frozen=True, slots=True)
class Counters:
    """A line of the file: what comes next, whatever was dropped from it."""

    next_sequence: int
    next_told: int


@dataclass(frozen=True, slots=True)
class Due:
    """What has to be written: `anew` replaces the file, `told` are those that are final now."""

    data: bytes
    anew: bool
    sequences: tuple[int, ...] = ()
    told: tuple[int, ...] = ()
    last_told: int = 0


class EventLog:
    """The newest events, in memory and in the file *path*; without one in memory alone.

    `last_told` is the last count that is durable, `dropped` the last number that is kept no more.
    While `held` is set, nobody may be told of a later commit: what is being written comes first.
    """

    def __init__(self, path: str | None = None, generation: int = 0) -> None:
        self.told = Signal()
        self.last_told = 0
        self.dropped = of_note(0, 0)
        self.held: int | None = None
        self._path = path
        self._events: dict[int, Event] = {}
        self._of_namespace: Counter[str] = Counter()
        self._recent: dict[Happening, tuple[int, int, int]] = {}
        self._dirty: dict[int, None] = {}
        self._untold: dict[int, None] = {}
        self._lines = 0
        self._next = self._next_told = 1
        self._lost = 0
        self._writing = asyncio.Lock()
        self._anew = False
        self._in_doubt = False
        if path is not None:
            self._load(path, generation)

    def record(self, what: Happening, wall_ms: int) -> Event:
        """Note that *what* happened at *wall_ms*."""
        began_ms, number, last = self._recent.get(what, (wall_ms, 0, 0))
        if not 0 <= wall_ms - began_ms < WINDOW_MS:
            began_ms, number = wall_ms, 0
        previous = self._events.get(last)
        if previous is not None and not previous.told and number >= SAME_IN_A_WINDOW:
            event = replace(previous, last_wall_ms=wall_ms, count=previous.count + 1, what=what)
        else:
            event = Event(self._next, wall_ms, wall_ms, 1, what)
            self._next += 1
        self._recent[what] = (began_ms, number + 1, event.sequence)
        self._keep(event)
        self._dirty[event.sequence] = self._untold[event.sequence] = None
        self._make_room(what.namespace)
        return event

    def newest(
        self, namespace: str, limit: int, wall_ms: int, kinds: Iterable[str] | None = None
    ) -> list[Event]:
        """Return at most *limit* events of *namespace*, the newest first."""
        wanted = None if kinds is None else frozenset(kinds)
        found = [
            event
            for event in self._events.values()
            if event.what.namespace == namespace
            and wall_ms - event.last_wall_ms < KEPT_MS
            and (wanted is None or event.what.kind in wanted)
        ]
        return found[: -limit - 1 : -1]

    def forget_old(self, wall_ms: int) -> None:
        """Drop what is older than it is kept."""
        for event in list(self._events.values()):
            if wall_ms - event.last_wall_ms >= KEPT_MS:
                self._drop(event.sequence)
        self._recent = {
            what: seen for what, seen in self._recent.items() if wall_ms - seen[0] < WINDOW_MS
        }

    def behind(self, number: Number, generation: int) -> list[Event]:
        """Return the notes that were told behind *number*, up to commit *generation*, in order."""
        found = [
            event
            for event in self._events.values()
            if 0 < event.told <= self.last_told
            and event.generation <= generation
            and event.number > number
        ]
        return sorted(found, key=lambda event: event.told)

    async def flush(self, generation: int, wall_ms: int, *, closing: bool = False) -> None:
        """Write what is due and tell who follows; *generation* is the last published commit.

        *closing* makes final what is still counted.

        Raises:
            OSError: It was not written; it is in memory only, and the next call tries again.
        """
        async with self._writing:
            due = self.take_due(generation, wall_ms, closing=closing)
            if not due.data:
                return
            try:
                await asyncio.to_thread(self.write, due)
            except OSError:
                self.take_back(due)
                raise
            self.settle(due)

    def take_due(self, generation: int, wall_ms: int, *, closing: bool = False) -> Due:
        """Return what has to be written, each with its number if it is final.

        Later commits are held back until `settle` or `take_back` says what became of it.
        """
        if self._lost:
            self._next_told += self._lost
            self.dropped = max(self.dropped, of_note(generation, self._next_told - 1))
            self._lost = 0
        told = []
        for sequence in list(self._untold):
            event = self._events[sequence]
            if closing or not self._is_open(event, wall_ms):
                final = replace(event, generation=generation, told=self._next_told)
                self._events[sequence] = final
                self._next_told += 1
                del self._untold[sequence]
                self._dirty[sequence] = None
                told.append(sequence)
        if not self._dirty:
            return Due(b"", anew=False)
        if self.held is None:
            self.held = generation
        anew = self._anew or self._lines > len(self._events) + _SLACK_LINES
        sequences = tuple(self._events if anew else self._dirty)
        lines = [msgspec.json.encode(self._events[sequence]) for sequence in sequences]
        if anew:
            lines.insert(0, msgspec.json.encode(Counters(self._next, self._next_told)))
        self._lines = len(lines) + (0 if anew else self._lines)
        self._dirty.clear()
        data = b"".join([line + b"\n" for line in lines])
        return Due(data, anew, sequences, tuple(told), self._next_told - 1)

    def settle(self, due: Due) -> None:
        """Let followers see what *due* has made durable."""
        self.held = None
        self._anew = False
        self.last_told = due.last_told
        if due.told:
            self.told.notify()

    def write(self, due: Due) -> None:
        """Write what `take_due` has returned, durably; may run in a thread, one at a time.

        Raises:
            OSError: It was not written.
        """
        if self._path is None or not due.data:
            return
        path = f"{self._path}.tmp" if due.anew else self._path
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if due.anew else os.O_APPEND)
        descriptor = os.open(path, flags, _MODE)
        try:
            os.fchmod(descriptor, _MODE)
            self._write_all(descriptor, due)
        finally:
            os.close(descriptor)
        if due.anew:
            self._in_doubt = True
            os.rename(path, self._path)
            sync_folder(os.path.dirname(self._path))
        self._in_doubt = False

    def _write_all(self, descriptor: int, due: Due) -> None:
        """Write and flush; what is half written is taken back, if the disk lets that be."""
        size = os.fstat(descriptor).st_size
        self._in_doubt |= not due.anew
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(due.data)
            os.fdatasync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            os.fdatasync(descriptor)
            self._in_doubt &= due.anew
            raise

    def take_back(self, due: Due) -> None:
        """Give back the numbers of *due*, of which nobody was told.

        Where they may stand in the file all the same, commits are held back until it is replaced:
        after a crash they would be told in their place.
        """
        for sequence in due.told:
            if sequence in self._events:
                event = self._events[sequence]
                self._events[sequence] = replace(event, generation=0, told=0)
                self._untold[sequence] = None
            else:
                self._lost += 1
        self._next_told -= len(due.told)
        self._dirty.update(dict.fromkeys(each for each in due.sequences if each in self._events))
        self._anew |= due.anew or self._in_doubt
        if not self._in_doubt:
            self.held = None

    def _is_open(self, event: Event, wall_ms: int) -> bool:
        """Tell whether more of the same may still be counted in *event*."""
        began_ms, number, last = self._recent.get(event.what, (0, 0, 0))
        counts = number >= SAME_IN_A_WINDOW and last == event.sequence
        return counts and 0 <= wall_ms - began_ms < WINDOW_MS

    def _load(self, path: str, generation: int) -> None:
        """Read what is there; lines that a crash has cut short are passed over.

        A ledger that is older than they are was put back: they count as taken behind its end.
        """
        try:
            with open(path, "rb") as file:
                data = file.read()
                with contextlib.suppress(OSError):  # the daemon that wrote it may not have come to
                    os.fdatasync(file.fileno())
        except FileNotFoundError:
            return
        lines = data.splitlines()
        # Behind a line without an end nothing may be appended: the file is written anew.
        self._anew = bool(data) and not data.endswith(b"\n")
        self._lines = len(lines)
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                self._take_over(_decoded(line), generation)
        self.last_told = self._next_told - 1
        for namespace in list(self._of_namespace):
            self._make_room(namespace)

    def _take_over(self, line: Event | Counters, generation: int) -> None:
        if isinstance(line, Counters):
            self._next, self._next_told = line.next_sequence, line.next_told
            return
        self._keep(replace(line, generation=min(line.generation, generation)))
        self._next = max(self._next, line.sequence + 1)
        self._next_told = max(self._next_told, line.told + 1)
        if line.told:
            self._untold.pop(line.sequence, None)
        else:
            self._untold[line.sequence] = None

    def _keep(self, event: Event) -> None:
        if event.sequence not in self._events:
            self._of_namespace[event.what.namespace] += 1
        self._events[event.sequence] = event

    def _make_room(self, namespace: str) -> None:
        while self._of_namespace[namespace] > MOST_OF_A_NAMESPACE:
            self._drop_oldest(namespace)
        while len(self._events) > MOST_EVENTS:
            self._drop_oldest(self._of_namespace.most_common(1)[0][0])

    def _drop_oldest(self, namespace: str) -> None:
        oldest = next(e for e in self._events.values() if e.what.namespace == namespace)
        self._drop(oldest.sequence)

    def _drop(self, sequence: int) -> None:
        event = self._events.pop(sequence)
        self._dirty.pop(sequence, None)
        if sequence in self._untold:
            del self._untold[sequence]
            self._lost += 1
        else:
            self.dropped = max(self.dropped, event.number)
        self._of_namespace[event.what.namespace] -= 1
        if not self._of_namespace[event.what.namespace]:
            del self._of_namespace[event.what.namespace]


_decode_event = msgspec.json.Decoder(Event).decode
_decode_counters = msgspec.json.Decoder(Counters).decode


def _decoded(line: bytes) -> Event | Counters:
    try:
        return _decode_event(line)
    except msgspec.ValidationError:
        return _decode_counters(line)
