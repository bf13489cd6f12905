"""How many clients may be served at once, in all and by uid, and who waits for a place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

WAITING_LIMIT = 1024
"""Who comes when this many wait is sent away at once: a waiting client costs a descriptor too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one server; uid 0 is bound by the totals only."""

    connections: int = 1024
    connections_per_uid: int = 256
    streams: int = 2048
    streams_per_uid: int = 512


@dataclass(slots=True, eq=False)
class Claim:
    """One client's place, or its wait for one; `leave` ends either."""

    places: Places
    uid: int
    granted: Callable[[], None]
    held: bool = False

    def leave(self) -> None:
        """Give the place back, or stop to wait for one; a second call does nothing."""
        self.places.take_back(self)


@dataclass(slots=True)
class Places:
    """So many places, and so many of them for one uid; uid 0 has no cap of its own."""

    limit: int
    limit_per_uid: int
    taken: int = 0
    by_uid: Counter[int] = field(default_factory=Counter)
    waiting: dict[Claim, None] = field(default_factory=dict)

    def ask(self, uid: int, granted: Callable[[], None]) -> Claim | None:
        """Return a claim whose `granted` is called when it has a place, maybe at once.

        None if too many wait already.
        """
        claim = Claim(self, uid, granted)
        if self._has_room(uid):
            self._grant(claim)
        elif len(self.waiting) < WAITING_LIMIT:
            self.waiting[claim] = None
        else:
            return None
        return claim

    def take_back(self, claim: Claim) -> None:
        """Free the place of *claim* and give it to the first who waits and may have it."""
        self.waiting.pop(claim, None)
        if not claim.held:
            return
        claim.held = False
        self.taken -= 1
        self.by_uid[claim.uid] -= 1
        if not self.by_uid[claim.uid]:
            del self.by_uid[claim.uid]
        following = next((other for other in self.waiting if self._has_room(other.uid)), None)
        if following is not None:
            del self.waiting[following]
            self._grant(following)

    def _has_room(self, uid: int) -> bool:
        within = uid == 0 or self.by_uid[uid] < self.limit_per_uid
        return within and self.taken < self.limit

    def _grant(self, claim: Claim) -> None:
        claim.held = True
        self.taken += 1
        self.by_uid[claim.uid] += 1
        claim.granted()
