"""Watches what the host can enforce: reads identities every few seconds, and proves what is due.

Self-tests, which run a sandbox, have a thread of their own: meanwhile everything else is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from axern.daemon import happenings
from axern.daemon.watcher import Signal
from axern.errors import HostUnproved
from axern.host.capabilities import (
    DEPENDENCY_UNAVAILABLE,
    EXPIRED,
    IDENTITY_CHANGED,
    PENDING,
    PROBE_ERROR,
    PROBE_FAILED,
    RECOVERY_PENDING,
    Unclear,
    attempt,
)
from axern.host.standings import Standings
from axern.runtime import kept_proofs

if TYPE_CHECKING:
    from collections.abc import Callable

    from axern.daemon.event_log import Happening
    from axern.host.capabilities import Outcome, Row, Snapshot
    from axern.runtime.layout import Layout
    from ledger.clock import Now

Result = TypeVar("Result")

SWEEP_S = 5.0
SETTLE_S = 8.0
"""How long a request waits for a proof that is under way."""
_ROUNDS = 2
"""A proof may make what it stands on, such as a folder: what it is then is looked at at once."""
_UNDECIDED = frozenset({PENDING, IDENTITY_CHANGED, EXPIRED, RECOVERY_PENDING})
"""What another look may settle. On a host so busy that nobody looked for a while, that is no no."""
_OWN_REASONS = frozenset({PROBE_FAILED, PROBE_ERROR})
_log = logging.getLogger(__name__)


class CapabilityWatch:
    """Keeps what is known of every row, and tells who waits when it changes."""

    def __init__(
        self,
        rows: tuple[Row, ...],
        layout: Layout,
        clock: Callable[[], Now],
        note: Callable[[Happening], object] = lambda _: None,
    ) -> None:
        self._rows = rows
        self._note = note
        self._layout = layout
        self._clock = clock
        self._standings = Standings(rows, kept_proofs.load(layout))
        self._pools = (ThreadPoolExecutor(1, "capability"), ThreadPoolExecutor(1, "self-test"))
        self._testing: asyncio.Task[None] | None = None
        self._told = self.snapshot()
        self.changed = Signal()

    def snapshot(self) -> Snapshot:
        """Return what is known now, all of one moment."""
        return self._standings.snapshot(self._clock().monotonic_ms)

    def fallen(self, loss: str) -> frozenset[str]:
        """Return the keys that fell with a row of the policy *loss* that is absent for certain.

        Whatever needs such a row falls with it.
        """
        gone: set[str] = set()
        for item in self.snapshot().capabilities:
            row = self._standings.rows[item.key]
            lost = row.loss == loss and self._standings.is_denied(item.key)
            if lost or not gone.isdisjoint(row.needs):
                gone.add(item.key)
        return frozenset(gone)

    async def sweep(self, heed: Callable[[], None] | None = None) -> None:
        """Read every identity, prove what is due, and begin the self-tests that are.

        *heed* is called as soon as all is seen: a loss must not wait for proofs of something else.
        """
        for _ in range(_ROUNDS):
            readings = await self._in(0, self._read_all)
            now_ms = self._clock().monotonic_ms
            for key, reading in readings.items():
                self._standings.see(key, reading, now_ms)
            if heed is not None:
                heed()
            if not await self._prove_due(is_self_test=False):
                break
        self._tell()
        self._begin_self_tests()

    async def settle(self, keys: tuple[str, ...]) -> Snapshot:
        """Return what is known once every one of *keys* is known to be present or absent.

        Raises:
            HostUnproved: A proof takes too long to wait for.
        """
        with contextlib.suppress(TimeoutError), self.changed.subscribed() as changed:
            async with asyncio.timeout(SETTLE_S):
                while self._undecided(keys):
                    changed.clear()
                    await changed.wait()
        if undecided := self._undecided(keys):
            raise HostUnproved(
                f"the proof of {', '.join(undecided)} is still under way on this node",
                hint="ask again in a moment; axern node doctor shows how far it is",
            )
        return self.snapshot()

    async def close(self) -> None:
        """Wait for the self-test that is under way, which is bounded and cleans up."""
        if self._testing is not None:
            self._testing.cancel()
        for pool in self._pools:
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)

    def _undecided(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        open_keys: set[str] = set()
        present: set[str] = set()
        for item in self.snapshot().capabilities:
            if item.present:
                present.add(item.key)
            lacks = set(self._standings.rows[item.key].needs) - present
            is_open = item.code == DEPENDENCY_UNAVAILABLE and lacks <= open_keys
            if item.code in _UNDECIDED or is_open:
                open_keys.add(item.key)
        return tuple(key for key in keys if key in open_keys)

    def _read_all(self) -> dict[str, Outcome]:
        return {row.key: attempt(row.identity) for row in self._rows}

    def _next(self, tried: set[str], *, is_self_test: bool) -> Row | None:
        due = self._standings.due(self._clock().monotonic_ms)
        wanted = (r for r in due if r.is_self_test == is_self_test and r.key not in tried)
        return next(wanted, None)

    async def _prove_due(self, *, is_self_test: bool) -> bool:
        """Prove each row that is due, once; return whether there was any."""
        tried: set[str] = set()
        while row := self._next(tried, is_self_test=is_self_test):
            tried.add(row.key)
            await self._prove(row)
        return bool(tried)

    async def _prove(self, row: Row) -> None:
        identity = self._standings.identity(row.key)
        if identity is None:
            return
        try:
            outcome = await self._in(1 if row.is_self_test else 0, attempt, row.probe)
        except Exception:  # noqa: BLE001 - fails closed, and is told
            _log.exception("capability %s: its probe ended by a bug", row.key)
            outcome = Unclear("its probe ended by a bug, which is in the log of axernd")
        self._standings.tell(row.key, identity, outcome, self._clock().monotonic_ms)
        self._tell()

    def _begin_self_tests(self) -> None:
        idle = self._testing is None or self._testing.done()
        if idle and self._next(set(), is_self_test=True) is not None:
            self._testing = asyncio.create_task(self._self_test(), name="self-tests")

    async def _self_test(self) -> None:
        await self._prove_due(is_self_test=True)
        try:
            await self._in(1, kept_proofs.save, self._layout, self._standings.proofs())
        except OSError as error:
            _log.warning("the proofs can't be kept, and the next daemon repeats them: %s", error)

    async def _in(self, pool: int, call: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pools[pool], call, *arguments)

    def _tell(self) -> None:
        """Log what has changed since the last time, and wake who waits for it."""
        now = self.snapshot()
        if now.generation == self._told.generation:
            return
        for before, after in zip(self._told.capabilities, now.capabilities, strict=True):
            change = None
            if before.present and not after.present:
                _log.warning("capability %s: %s: %s", after.key, after.code, after.message)
                change = happenings.LOST
            elif after.present and not before.present:
                _log.info("capability %s: %s", after.key, after.message)
                change = happenings.FOUND
            elif before.code != after.code and after.code in _OWN_REASONS:
                _log.info("capability %s: %s: %s", after.key, after.code, after.message)
                change = happenings.ABSENT if after.code == PROBE_FAILED else happenings.UNCLEAR
            if change is not None and before.code != PENDING:  # what a start finds is no change
                self._note(happenings.capability(after, change))
        self._told = now
        self.changed.notify()
