"""Who listens for a ticket: who goes away gives it up, and after a restart has a while."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ledger.clock import Now

RECONNECT_MS = 30_000
"""How long a ticket lasts that nobody listens for: after it was made, and after a restart."""


class WaitingRoom:
    """The listeners of each ticket; belongs to one event loop, and knows nothing at its start."""

    def __init__(self, clock: Callable[[], Now]) -> None:
        self._clock = clock
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._alone_since_ms: dict[str, int] = {}

    @contextlib.contextmanager
    def listening(self, ticket_id: str) -> Iterator[asyncio.Event]:
        """Listen for *ticket_id*; the event is set when it is granted."""
        event = asyncio.Event()
        self._listeners.setdefault(ticket_id, set()).add(event)
        self._alone_since_ms.pop(ticket_id, None)
        try:
            yield event
        finally:
            left = self._listeners[ticket_id]
            left.discard(event)
            if not left:
                del self._listeners[ticket_id]

    def is_attended(self, ticket_id: str) -> bool:
        """Tell whether anybody listens for *ticket_id*."""
        return ticket_id in self._listeners

    def call(self, ticket_id: str) -> None:
        """Let those who listen for *ticket_id* look at what became of it."""
        for event in self._listeners.get(ticket_id, ()):
            event.set()

    def abandoned(self, waiting: Iterable[str]) -> list[str]:
        """Return those of *waiting* for whom nobody has listened for `RECONNECT_MS`."""
        now_ms = self._clock().monotonic_ms
        alone = {key for key in waiting if key not in self._listeners}
        self._alone_since_ms = {key: self._alone_since_ms.get(key, now_ms) for key in alone}
        return [
            key for key, since in self._alone_since_ms.items() if now_ms - since >= RECONNECT_MS
        ]
