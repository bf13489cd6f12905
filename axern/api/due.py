"""A deadline that moves with each message, and a timer that is only set when it has to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Due:
    """One deadline at a time; to move it back, as nearly every move does, costs no timer.

    The timer of one that has moved looks again when it fires.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._at_s: float | None = None
        self._act: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float, act: Callable[[], object]) -> None:
        """Let *act* be called in *seconds*, unless another deadline takes its place."""
        self._act = act
        self._at_s = at_s = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(at_s, self._look)
        elif self._timer.when() > at_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(at_s, self._look)

    def never(self) -> None:
        """Let nothing be due."""
        self._at_s = self._act = None

    def end(self) -> None:
        """Let nothing be due ever again."""
        self.never()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._at_s is None or self._act is None:
            return
        if self._at_s > self._loop.time():
            self._timer = self._loop.call_at(self._at_s, self._look)
        else:
            act = self._act
            self.never()
            act()
