"""The use case of a release: end what may be ended, wait for the proof, and answer it again."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, cast

from axern.api.views import as_they_are, released_view
from axern.daemon.parts import Json, Parts
from axern.runtime import remains
from ledger import release
from ledger.errors import NotFound
from ledger.release import Asked, Released
from ledger.reservation import STOPPING, Reservation

if TYPE_CHECKING:
    from axern.daemon.life import Life
    from ledger.clock import Now

WAIT_S = 5.0
"""How long one request waits for a burial; within the deadline of requests. Who wants to wait for
longer asks again: a release that is under way goes on, whoever listens."""


class ReleaseService:
    """What can be asked of the end of entries."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def release(self, word: str, asked: Asked, grace_ms: int | None) -> tuple[bool, Json]:
        """Release the entry that *word* names, and return whether it is over, with the answer.

        Where it is not over yet, its burial goes on and it is still charged.

        Raises:
            StateConflict: It runs, and *asked* has no force.
            PermissionDenied: It is somebody else's, in no namespace of theirs.
            NotFound: Nothing remembers it.
            NotProvedGone: It has no entry, and what has leaked of it resists.
        """
        row = self._find(word)
        if row is None:
            return True, self._over(await self._gone(word, asked))
        begin = partial(release.begin, reservation_id=row.id, asked=asked)
        try:
            moved = cast("Reservation", await self._parts.committer.submit(begin))
        except NotFound:
            return True, await self.over_before(row.id, asked)
        if not moved.is_sandbox:
            return True, self.uncharged(moved, asked, self._parts.clock())
        return await self._buried(moved, self._end(moved, asked, grace_ms), asked)

    def uncharged(self, row: Reservation, asked: Asked, now: Now) -> Json:
        """Return the answer of *now* to the release of the lease *row*, which is committed."""
        self._parts.heartbeats.forget(row.id)
        return released_view(self._released(row, asked.by, asked.note), now, as_they_are)

    async def over_before(self, reservation_id: str, asked: Asked) -> Json:
        """Return the answer for an entry that has no row any more; raises NotFound."""
        return self._over(await self._gone(reservation_id, asked))

    def let_end(self, row: Reservation, asked: Asked) -> None:
        """Let the sandbox of *row*, whose release was begun, be buried; nobody waits for it."""
        self._end(row, asked, None)

    def _find(self, word: str) -> Reservation | None:
        """Return the entry that *word* names, or None; other runs and entries may be gone."""
        with contextlib.suppress(NotFound):
            return self._parts.ledger.state.find_reservation(self._parts.resolve_id(word))
        return None

    def _end(self, row: Reservation, asked: Asked, grace_ms: int | None) -> Life:
        """Let the sandbox's life come to its end, at once where nothing of it runs."""
        lives = self._parts.lives
        if row.phase == STOPPING:
            grace = self._parts.settings.stop_grace_ms if grace_ms is None else grace_ms
            lives.stop(row.id, row.reason or asked.note, asked.by, grace)
        return lives.begin(row.id)

    async def _buried(self, row: Reservation, life: Life, asked: Asked) -> tuple[bool, Json]:
        over = asyncio.ensure_future(life.over.wait())
        closing = asyncio.ensure_future(self._parts.closing.wait())
        try:
            await asyncio.wait((over, closing), timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            closing.cancel()
        now = self._parts.ledger.state.find_reservation(row.id)
        if now is not None:
            return False, {"reservation": self._parts.view(now), "released": None}
        if life.evidence is None:  # it was over before this life began
            return True, self._over(await self._gone(row.id, asked))
        return True, self._over(self._released(row, "daemon", life.evidence))

    async def _gone(self, word: str, asked: Asked) -> Released:
        """Answer for what has no entry; in a thread, since the journal has to be searched."""
        parts = self._parts
        known = parts.ledger.state.find_reservation
        return await parts.search(
            remains.release,
            parts.layout,
            parts.settings.ledger_dir,
            word,
            asked,
            parts.ledger.generation,
            lambda name: known(name) is not None,
        )

    def _released(self, row: Reservation, by: str, evidence: str) -> Released:
        # The time of the commit, as the journal will tell it to whoever asks again.
        return Released(row.id, row, self._parts.ledger.state.clock.wall_ms, by, evidence)

    def _over(self, released: Released) -> Json:
        return released_view(released, self._parts.clock(), as_they_are)
