"""One sandbox's life as others see it: what it listens to, and what they may wait for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from axern.daemon.watcher import Signal


@dataclass(slots=True, eq=False)
class Life:
    """What the coroutine of one sandbox listens to, and what others may wait for."""

    reservation_id: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    moved: Signal = field(default_factory=Signal)
    stop_reason: str | None = None
    stop_by: str = "daemon"
    grace_ms: int = 0
    task: asyncio.Task[None] | None = None

    def must_stop(self) -> bool:
        """Tell whether somebody has asked it to end, which may happen at any await."""
        return self.stop_reason is not None


@dataclass(slots=True)
class Ending:
    """How far the end of one workload has come: asked until `deadline_ms`, then killed."""

    deadline_ms: int | None = None
    killed: bool = False
