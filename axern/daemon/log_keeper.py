"""Keeps every run's log within its bounds, beside the event loop: one thread does all of it.

The monitor begins another file by itself when one is full. What is left is to name it, to lay out
the one after it before that is full too, and to drop the oldest: `runtime.segments`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from axern.host import linux
from axern.runtime import segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from axern.daemon.watcher import FolderWatcher
    from axern.runtime.layout import SandboxPaths

_SOON_S = 0.02
_LATER_S = 1.0
_log = logging.getLogger(__name__)


class LogKeeper:
    """Watches the folders of live runs; *watcher* is its own, for it wants few events of each."""

    def __init__(self, watcher: FolderWatcher, max_bytes: int) -> None:
        self._watcher = watcher
        self._max_bytes = max_bytes
        self._thread = ThreadPoolExecutor(1, "log")
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    def keep(self, paths: SandboxPaths) -> None:
        """Look after the log of a live run from now on."""
        base = os.path.basename(paths.log)

        def look(name: str) -> None:
            if name in {base, ""}:
                self._begin(paths)

        with contextlib.suppress(OSError):  # a run whose folder is lost has no log either
            unwatch = self._watcher.watch(paths.run_folder, look, linux.IN_MOVED_TO)
            self._unwatch[paths.sandbox_id] = unwatch
            self._begin(paths)

    def let_go(self, paths: SandboxPaths) -> None:
        """Bring the log of a run that is over to rest."""
        unwatch = self._unwatch.pop(paths.sandbox_id, None)
        if unwatch is not None:
            unwatch()
            self._begin(paths)

    async def settle(self, paths: SandboxPaths, *, is_live: bool) -> bool:
        """Bring the log's names up to date; return False if that must be tried again soon.

        *is_live* must be true as long as there is a monitor: it needs the file laid out for it.

        Raises:
            OSError: The disk refused.
        """
        call = partial(segments.settle, paths.log, self._max_bytes, is_live=is_live)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def close(self) -> None:
        """Look after nothing any more; monitors go on by themselves."""
        for task in self._tasks.values():
            task.cancel()
        for unwatch in self._unwatch.values():
            unwatch()
        await asyncio.to_thread(partial(self._thread.shutdown, wait=True, cancel_futures=True))

    def _begin(self, paths: SandboxPaths) -> None:
        """Settle now, or once more after what is under way: a busy log asks for it often."""
        name = paths.sandbox_id
        if name in self._tasks:
            self._again.add(name)
            return
        self._tasks[name] = asyncio.create_task(self._settle(paths), name=f"log {name}")
        self._tasks[name].add_done_callback(lambda _: self._tasks.pop(name))

    async def _settle(self, paths: SandboxPaths) -> None:
        """Settle until it is done; a full disk is waited for."""
        name = paths.sandbox_id
        told = False
        while True:
            self._again.discard(name)
            try:
                done = await self.settle(paths, is_live=name in self._unwatch)
                pause_s = _SOON_S
            except OSError as error:
                if not told:
                    _log.warning("run %s: its log can't be kept: %s", name, error)
                done, told, pause_s = False, True, _LATER_S
            if done and name not in self._again:
                return
            if not done:
                await asyncio.sleep(pause_s)
