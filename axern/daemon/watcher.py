"""Wake coroutines when something happens: files that change, lives that move on."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from axern.host import linux

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_WRITTEN = linux.IN_MODIFY | linux.IN_CREATE | linux.IN_CLOSE_WRITE | linux.IN_MOVED_TO


class Signal:
    """Something that happens again and again; each subscriber is woken, none is waited for."""

    def __init__(self) -> None:
        self._events: set[asyncio.Event] = set()

    def notify(self) -> None:
        """Wake every subscriber."""
        for event in self._events:
            event.set()

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[asyncio.Event]:
        """Give an event that is set at each notification from now on; the subscriber clears it."""
        event = asyncio.Event()
        self._events.add(event)
        try:
            yield event
        finally:
            self._events.discard(event)


class FolderWatcher:
    """One inotify descriptor on the event loop; calls back with the name that changed.

    An overflow of the kernel's queue calls every callback with an empty name: look at everything.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptor = linux.inotify_init()
        self._callbacks: dict[int, list[Callable[[str], None]]] = {}
        loop.add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Stop watching."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def watch(
        self, folder: str, callback: Callable[[str], None], mask: int = _WRITTEN
    ) -> Callable[[], None]:
        """Call *callback* for each file written or moved into *folder*; return how to end it.

        All who watch one folder give the same *mask*, of IN_* bits.
        """
        watch = linux.inotify_add_watch(self._descriptor, folder, mask)
        callbacks = self._callbacks.setdefault(watch, [])
        callbacks.append(callback)

        def unwatch() -> None:
            callbacks.remove(callback)
            if not callbacks and self._callbacks.pop(watch, None) is not None:
                linux.inotify_rm_watch(self._descriptor, watch)

        return unwatch

    def _read(self) -> None:
        for event in linux.inotify_read(self._descriptor):
            if event.mask & linux.IN_IGNORED:
                self._callbacks.pop(event.watch, None)
            elif event.mask & linux.IN_Q_OVERFLOW:
                for callbacks in list(self._callbacks.values()):
                    _call(callbacks, "")
            else:
                _call(self._callbacks.get(event.watch, []), event.name)


def _call(callbacks: list[Callable[[str], None]], name: str) -> None:
    for callback in list(callbacks):
        callback(name)
