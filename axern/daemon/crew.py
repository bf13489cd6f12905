"""The threads in which steps on the host block, apart by kind so that none starves another."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class Crew:
    """Launches, burials, and everything quick: records, signals, questions.

    What resists its burial holds a thread for half a minute at a time, and a launch may take long
    too; neither keeps an exit from being recorded or a workload from being killed.
    `launch_slots` is taken before a launch begins, so that none waits half done.
    """

    def __init__(self, workers: int) -> None:
        self.launch_slots = asyncio.Semaphore(workers)
        self._launches = ThreadPoolExecutor(workers, "launch")
        self._burials = ThreadPoolExecutor(workers, "burial")
        self._quick = ThreadPoolExecutor(2 * workers, "host")

    async def launch(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Run a step of a launch."""
        return await self._run(self._launches, call, arguments)

    async def bury(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Run a burial."""
        return await self._run(self._burials, call, arguments)

    async def do(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Run anything else."""
        return await self._run(self._quick, call, arguments)

    async def leave(self) -> None:
        """Start nothing more and wait for what is under way; each call is bounded in time."""
        for pool in (self._launches, self._burials, self._quick):
            await asyncio.to_thread(partial(pool.shutdown, wait=True, cancel_futures=True))

    async def _run(
        self, pool: ThreadPoolExecutor, call: Callable[..., Result], arguments: tuple[object, ...]
    ) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, partial(call, *arguments))
