"""Looks after the walls of running sandboxes: each is read again every few seconds, a part a tick.

A limit that somebody changed is put right, and told. A sandbox whose group was replaced, or of
which a process is outside of it, runs without its limits: it is ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from typing import TYPE_CHECKING

from axern.errors import HostError
from axern.host import process
from axern.runtime import confinement, held_limits
from ledger.reservation import RUNNING, STOPPING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.daemon.parts import Parts
    from axern.host.cgroup_values import CgroupLimits
    from axern.runtime.layout import SandboxPaths
    from ledger.reservation import Reservation

SHARDS = 8
"""With a tick each second a change is found within 8 s, and a policy acts within 10."""
ENFORCEMENT_LOST = "capability-enforcement-lost"

_log = logging.getLogger(__name__)


class Audit:
    """Reads the walls of one shard of the sandboxes after the other."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._turn = 0
        self._limits: dict[str, CgroupLimits | None] = {}

    async def step(self) -> None:
        """Look at the next shard, and do what the policy says about what is found."""
        turn, self._turn = self._turn, (self._turn + 1) % SHARDS
        rows = [row for row in self._parts.ledger.state.reservations() if _is_looked_at(row)]
        if turn == 0:
            known = {row.id for row in rows}
            self._limits = {key: kept for key, kept in self._limits.items() if key in known}
        shard = [row for row in rows if zlib.crc32(row.id.encode()) % SHARDS == turn]
        if not shard:
            return
        lost = await asyncio.to_thread(self._look, shard)
        for reservation_id, why in lost.items():
            row = self._parts.ledger.state.find_reservation(reservation_id)
            if row is not None and row.phase in (RUNNING, STOPPING):
                _log.error("sandbox %s: its limits no longer hold: %s", reservation_id, why)
                self._parts.lives.stop(reservation_id, ENFORCEMENT_LOST, "daemon", 0)

    def _look(self, rows: Iterable[Reservation]) -> dict[str, str]:
        """Return why the limits of each of *rows* that has lost them don't hold; mend the others.

        What can't be read now is looked at again the next time round.
        """
        lost = {}
        for row in rows:
            paths = self._parts.layout.sandbox(row.id)
            try:
                if why := self._of(row, paths):
                    lost[row.id] = why
            except (HostError, OSError) as error:
                if not self._is_ending(paths):
                    _log.warning("sandbox %s: its walls can't be looked at: %s", row.id, error)
        return lost

    def _of(self, row: Reservation, paths: SandboxPaths) -> str | None:
        limits = self._limits_of(row)
        if limits is None or row.cgroup is None or row.cgroup.boot_id != process.boot_id():
            return None  # one of another boot ended with that, which is no loss of its limits
        found = paths.wall.identity()
        broken: tuple[str, ...] = ()
        why = None
        if found != row.cgroup:
            there = "is not there" if found is None else f"has inode {found.inode}"
            why = f"{paths.wall.folder} {there}, and had inode {row.cgroup.inode}"
        elif outside := _outside(row, paths.wall.path):
            why = f"process {outside} of it is not in {paths.wall.folder}"
        else:
            broken = confinement.broken(limits, row.runtime or "", paths)
        if self._is_ending(paths):
            return None
        return _mended(limits, row.runtime or "", paths, broken) if broken else why

    def _is_ending(self, paths: SandboxPaths) -> bool:
        """Tell whether it has come to its end, be it while it was looked at: nothing is to guard.

        Whoever is being killed has no CPU cap any more, so that it can die.
        """
        life = self._parts.lives.find(paths.sandbox_id)
        return (life is not None and life.ending) or os.path.lexists(paths.exit_file)

    def _limits_of(self, row: Reservation) -> CgroupLimits | None:
        if row.id not in self._limits:
            spec = self._parts.runs.spec(row.id)
            if spec is None:
                _log.error("sandbox %s: its spec is lost, and with it what must hold", row.id)
            self._limits[row.id] = (
                held_limits.of(spec, self._parts.layout.filestore) if spec else None
            )
        return self._limits[row.id]


def _is_looked_at(row: Reservation) -> bool:
    return row.enforced and row.phase in (RUNNING, STOPPING) and row.monitor is not None


def _outside(row: Reservation, wall: str) -> int | None:
    """Return a process of the sandbox that is in another group, or None; its monitor's children."""
    if row.monitor is None:
        return None
    for pid in process.children(row.monitor.pid):
        group = process.cgroup_of(pid)
        if group is not None and not f"{group}/".startswith(f"/{wall}/"):
            # Where the monitor is gone, its number may be a stranger's by now.
            return pid if process.is_alive(row.monitor) else None
    return None


def _mended(
    limits: CgroupLimits, runtime: str, paths: SandboxPaths, broken: tuple[str, ...]
) -> str | None:
    """Put changed limits right and tell of it; return why that can't be done."""
    what = "; ".join(broken)
    try:
        confinement.mend(limits, runtime, paths)
    except HostError as error:
        return f"{what}, and can't be put right: {error}"
    _log.error("sandbox %s: somebody changed its limits, put right: %s", paths.sandbox_id, what)
    return None
