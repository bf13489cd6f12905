"""How the ledger is: what it can't do just now, why, since when, and what helps."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.errors import LedgerError
    from ledger.store import Ledger

Json = dict[str, Any]

OK, DEGRADED, UNTRUSTED = "ok", "degraded", "untrusted"
EVERYTHING, RELEASES, NOTHING = "everything", "releases", "nothing"
"""What a ledger accepts."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that keeps the ledger from its work.

    `state` is `degraded`, where what is read is true, or `untrusted`, where it need not be.
    `refusal` is what every change is refused with by a daemon that only reads.
    """

    state: str
    accepts: str
    reason: str
    remedy: str | None
    refusal: LedgerError | None = None


class Condition:
    """Looks at the ledger when it is asked, and says in the log when something has changed."""

    def __init__(self, find: Callable[[], Trouble | None], clock: Callable[[], Now]) -> None:
        self._find = find
        self._clock = clock
        self._trouble: Trouble | None = None
        self._since_wall_ms = 0

    def look(self) -> Trouble | None:
        """Return the present trouble, or None; whoever looks lets the log tell of a change."""
        before, found = self._trouble, self._find()
        if found == before:
            return found
        self._trouble = found
        wall_ms = self._clock().wall_ms
        if found is None:
            _log.warning(
                "the ledger is well again, after %s s", (wall_ms - self._since_wall_ms) // 1000
            )
            return None
        if before is None:
            self._since_wall_ms = wall_ms
        remedy = f" ({found.remedy})" if found.remedy else ""
        _log.error(
            "the ledger is %s and accepts %s: %s%s",
            found.state,
            found.accepts,
            found.reason,
            remedy,
        )
        return found

    @property
    def state(self) -> str:
        """Return `ok`, `degraded` or `untrusted`."""
        trouble = self.look()
        return trouble.state if trouble else OK

    def view(self) -> Json:
        """Return the JSON object that tells it."""
        trouble = self.look()
        if trouble is None:
            calm: Json = {"state": OK, "accepts": EVERYTHING, "reason": None, "remedy": None}
            return calm | {"since": None}
        return {
            "state": trouble.state,
            "accepts": trouble.accepts,
            "reason": trouble.reason,
            "remedy": trouble.remedy,
            "since": format_rfc3339(self._since_wall_ms),
        }

    def words(self) -> str:
        """Return it in one line, empty where all is well."""
        trouble = self.look()
        if trouble is None:
            return ""
        return f"{trouble.state}, accepts {trouble.accepts}: {trouble.reason}"

    def require_writable(self) -> None:
        """Raise what every change is refused with, if this daemon only reads."""
        trouble = self.look()
        if trouble is not None and trouble.refusal is not None:
            raise trouble.refusal.anew()


def of_writer(ledger: Ledger, committer: Committer, directory: str) -> Trouble | None:
    """Return what keeps *ledger*, which lies in *directory*, from its work."""
    by_itself = "it goes on by itself, without a restart"
    if ledger.failed:
        reason = "a flush has failed, and its disk still refuses a new segment"
        remedy = f"look at the disk of {directory}: df, dmesg; {by_itself}"
        return Trouble(DEGRADED, NOTHING, reason, remedy)
    if ledger.is_short:
        reason = "its disk has no room"
        remedy = f"make room on the file system of {directory}: df; {by_itself}"
        return Trouble(DEGRADED, RELEASES, reason, remedy)
    error = committer.upkeep_error
    if error is not None:
        remedy = f"look at the disk of {directory}: df, dmesg; {by_itself}"
        return Trouble(DEGRADED, EVERYTHING, error.message, remedy)
    return None
