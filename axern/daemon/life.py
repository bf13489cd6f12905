"""One sandbox's life as others see it: what it listens to, and what they may wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from axern.daemon.watcher import Signal


@dataclass(slots=True, eq=False)
class Life:
    """What the coroutine of one sandbox listens to, and what others may wait for.

    `resting` is set while it could be left alone: nothing is half done. `kill_at_ms` is on
    CLOCK_MONOTONIC, from `stop_reason` on; `evidence` is what proved it gone, once it is. `ending`
    is set before anything of it is killed or removed: its walls need nobody to look after them.
    """

    reservation_id: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    moved: Signal = field(default_factory=Signal)
    stop_reason: str | None = None
    stop_by: str = "daemon"
    kill_at_ms: int = 0
    evidence: str | None = None
    ending: bool = False
    task: asyncio.Task[None] | None = None
    errand: asyncio.Task[None] | None = None
    alarm: asyncio.TimerHandle | None = None
    stdin: asyncio.Lock = field(default_factory=asyncio.Lock)

    def stop(self, reason: str, by: str, kill_at_ms: int) -> None:
        """Ask it to end, killed at *kill_at_ms* at the latest; a later call may only hurry it."""
        if self.stop_reason is None:
            self.stop_reason, self.stop_by, self.kill_at_ms = reason, by, kill_at_ms
        self.kill_at_ms = min(self.kill_at_ms, kill_at_ms)
        self.woken.set()

    def must_stop(self) -> bool:
        """Tell whether somebody has asked it to end, which may happen at any await."""
        return self.stop_reason is not None

    async def pause(self, timeout_s: float) -> None:
        """Wait for something else than a word of others; only a new one ends it early."""
        self.woken.clear()
        await self.rest(timeout_s)

    async def rest(self, timeout_s: float) -> None:
        """Wait until it is woken, *timeout_s* at most."""
        self.resting.set()
        try:
            await asyncio.wait_for(self.woken.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            self.resting.clear()
