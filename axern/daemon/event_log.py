"""Events that are no change of the ledger, such as refusals: a bounded file outside of commits.

They are kept in memory and written when somebody ticks, so that no client waits for the disk.
What a client repeats is counted, and the namespace with the most events is the first that gives
some up. Source: docs/decisions/0029-namespaces.md.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

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
    """A happening, `count` times between two moments of the wall clock, the last one in words."""

    sequence: int
    first_wall_ms: int
    last_wall_ms: int
    count: int
    what: Happening


class EventLog:
    """The newest events, in memory and in the file *path*; without one in memory alone."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._events: dict[int, Event] = {}
        self._of_namespace: Counter[str] = Counter()
        self._recent: dict[Happening, tuple[int, int, int]] = {}
        self._dirty: dict[int, None] = {}
        self._lines = 0
        self._next = 1
        if path is not None:
            self._load(path)

    def record(self, what: Happening, wall_ms: int) -> Event:
        """Note that *what* happened at *wall_ms*."""
        began_ms, number, last = self._recent.get(what, (wall_ms, 0, 0))
        if not 0 <= wall_ms - began_ms < WINDOW_MS:
            began_ms, number = wall_ms, 0
        previous = self._events.get(last)
        if previous is not None and number >= SAME_IN_A_WINDOW:
            event = replace(previous, last_wall_ms=wall_ms, count=previous.count + 1, what=what)
        else:
            event = Event(self._next, wall_ms, wall_ms, 1, what)
            self._next += 1
        self._recent[what] = (began_ms, number + 1, event.sequence)
        self._keep(event)
        self._dirty[event.sequence] = None
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

    def take_due(self) -> tuple[bytes, bool]:
        """Return (what has to be written, whether it is to replace the file)."""
        if not self._dirty:
            return b"", False
        anew = self._lines > len(self._events) + _SLACK_LINES
        due = self._events.values() if anew else [self._events[number] for number in self._dirty]
        lines = [msgspec.json.encode(event) + b"\n" for event in due]
        self._lines = len(lines) + (0 if anew else self._lines)
        self._dirty.clear()
        return b"".join(lines), anew

    def write(self, due: tuple[bytes, bool]) -> None:
        """Write what `take_due` has returned; may run in a thread, one at a time.

        Raises:
            OSError: It was not written; those events are in memory only.
        """
        data, anew = due
        if self._path is None or not data:
            return
        path = f"{self._path}.tmp" if anew else self._path
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if anew else os.O_APPEND)
        descriptor = os.open(path, flags, _MODE)
        try:
            os.fchmod(descriptor, _MODE)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
        finally:
            os.close(descriptor)
        if anew:
            os.rename(path, self._path)

    def _load(self, path: str) -> None:
        """Read what is there; lines that a crash has cut short are passed over."""
        decode = msgspec.json.Decoder(Event).decode
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return
        lines = data.splitlines()
        is_whole = not data or data.endswith(b"\n")
        # Behind a line without an end nothing may be appended: the file is written anew.
        self._lines = len(lines) if is_whole else sys.maxsize
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                self._keep(decode(line))
        self._next = max(self._events, default=0) + 1
        for namespace in list(self._of_namespace):
            self._make_room(namespace)

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
        self._of_namespace[event.what.namespace] -= 1
        if not self._of_namespace[event.what.namespace]:
            del self._of_namespace[event.what.namespace]
