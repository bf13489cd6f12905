"""When a lease must be heard from, and when it is over: what every holder reckons with, pure.

Times are seconds on a clock that nobody can set and that counts a suspended host's sleep, as the
daemon's deadlines do (CLOCK_BOOTTIME). What the daemon answers is counted from when it was asked,
so that a holder never believes to hold for longer than the ledger does.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GONE = frozenset({"not_found", "permission_denied", "state_conflict"})
"""What a heartbeat is answered with whose lease has ended, or is somebody else's by now."""

BEAT_S = 30.0
"""How often a holder is heard from, where its lease lasts long enough."""
GRACE_S = 10.0
"""How long before its end whoever relies on a lease is told, where it lasts long enough."""
_RETRY_S = 2.0
_BEATS_A_TTL = 3
_GRACES_A_TTL = 10


def boottime_s() -> float:
    """Return the time since this boot, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Term:
    """The time of one lease: `next_beat_s` is when to be heard from, `deadline_s` its end.

    `ttl_ms` is what a renewal asks for: what it was granted for first.

    Args:
        sent_s: When the lease was asked for.
        expires_in_ms: What the daemon answered.
    """

    __slots__ = ("_every_s", "deadline_s", "next_beat_s", "ttl_ms")

    def __init__(self, sent_s: float, expires_in_ms: int) -> None:
        self.ttl_ms = max(1, expires_in_ms)
        self._every_s = min(BEAT_S, self.ttl_ms / 1000 / _BEATS_A_TTL)
        self.answered(sent_s, expires_in_ms)

    def answered(self, sent_s: float, expires_in_ms: int) -> None:
        """Take the answer to what was sent at *sent_s*."""
        self.deadline_s = sent_s + expires_in_ms / 1000
        self.next_beat_s = sent_s + self._every_s

    def unanswered(self, now_s: float) -> None:
        """Try again soon: the daemon may be restarted just now."""
        self.next_beat_s = now_s + min(_RETRY_S, self._every_s)

    def beat(self, token: str, now_s: float) -> dict[str, Any]:
        """Return the body of the heartbeat that is sent at *now_s*."""
        body: dict[str, Any] = {"token": token}
        if self.wants_renewal(now_s):
            body["ttl_ms"] = self.ttl_ms
        return body

    def wants_renewal(self, now_s: float) -> bool:
        """Tell whether a beat shall move the deadline too: the first half of it is over soon."""
        return self.deadline_s - now_s <= self.ttl_ms / 1000 / 2 + self._every_s

    @property
    def last_call_s(self) -> float:
        """Return when to end what relies on the lease, so that it is over when the lease is."""
        return self.deadline_s - min(GRACE_S, self.ttl_ms / 1000 / _GRACES_A_TTL)
