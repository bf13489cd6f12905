"""What is known of each capability over time: proofs, doubts, and how neither flaps; pure.

Whoever reads the host hands in what was seen (`see`) and what a probe said (`tell`), and asks what
to try next (`due`). A definite no counts at once. A doubt counts when the proof is older than its
row allows, and then it takes two sightings to be believed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.host.capabilities import (
    AVAILABLE,
    DEPENDENCY_UNAVAILABLE,
    DISABLED,
    EXPIRED,
    IDENTITY_CHANGED,
    PENDING,
    PROBE_ERROR,
    PROBE_FAILED,
    RECOVERY_PENDING,
    Capability,
    Denied,
    Proved,
    Snapshot,
    Unclear,
)

if TYPE_CHECKING:
    from axern.host.capabilities import Outcome, Row

RECOVERY_MS = 5_000
"""Between the two sightings that make something count again."""
RETRY_MS = 5_000
RETRY_MOST_MS = 300_000
"""What could not be proved is tried again after this long, doubled each time, up to the second."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A success: what was proved, and on what it stands."""

    identity: str
    message: str


@dataclass(slots=True)
class _Standing:
    """What is known of one row; `first_ms` is the first of the sightings of a recovery."""

    reading: Outcome | None = None
    identity: str | None = None
    seen_ms: int = 0
    proof: Proof | None = None
    tried: str | None = None
    outcome: Outcome | None = None
    retry_ms: int = 0
    pause_ms: int = RETRY_MS
    recovering: bool = False
    first_ms: int | None = None


class Standings:
    """The standing of every row of a table, in which needs come before what needs them."""

    def __init__(self, rows: tuple[Row, ...], proofs: Mapping[str, Proof] | None = None) -> None:
        self.rows = {row.key: row for row in rows}
        known = proofs or {}
        self._standings = {
            row.key: _Standing(proof=known.get(row.key) if row.is_self_test else None)
            for row in rows
        }
        self._last: tuple[Capability, ...] = ()
        self._generation = 0

    def see(self, key: str, reading: Outcome, now_ms: int) -> None:
        """Take in what was read of a row's identity."""
        row, standing = self.rows[key], self._standings[key]
        before = standing.reading
        if isinstance(before, Denied) and isinstance(reading, Unclear):
            return  # a doubt takes no definite no back
        standing.reading = reading
        if not isinstance(reading, Proved):
            standing.first_ms = None
            return
        if isinstance(before, Denied) or self._is_old(row, standing, now_ms):
            known = standing.proof is not None and not row.is_self_test
            standing.recovering, standing.first_ms = known, None
        if standing.recovering:
            if standing.first_ms is None:
                standing.first_ms = now_ms
            elif now_ms - standing.first_ms >= RECOVERY_MS:
                standing.recovering = False
        standing.identity, standing.seen_ms = reading.message, now_ms

    def due(self, now_ms: int) -> tuple[Row, ...]:
        """Return the rows to probe now, in the order of the table."""
        found = {item.key: item for item in self._judge(now_ms)}
        return tuple(
            row
            for row in self.rows.values()
            if all(found[need].present for need in row.needs)
            and self._is_due(row, found[row.key], now_ms)
        )

    def tell(self, key: str, identity: str, outcome: Outcome, now_ms: int) -> None:
        """Take in what a probe said that began when the row's identity was *identity*."""
        row, standing = self.rows[key], self._standings[key]
        if standing.tried != identity:
            standing.pause_ms = RETRY_MS
        failed_before = standing.tried == identity and standing.outcome is not None
        standing.tried, standing.outcome = identity, outcome
        if not isinstance(outcome, Proved):
            standing.retry_ms = now_ms + standing.pause_ms
            standing.pause_ms = min(2 * standing.pause_ms, RETRY_MOST_MS)
            return
        if standing.proof is not None and failed_before and not row.is_self_test:
            standing.recovering, standing.first_ms = True, now_ms
        standing.proof, standing.pause_ms = Proof(identity, outcome.message), RETRY_MS

    def identity(self, key: str) -> str | None:
        """Return what a proof of *key* would stand on now: its own identity and those it needs."""
        own = self._standings[key].identity
        parts = [own, *(self.identity(need) for need in self.rows[key].needs)]
        return None if None in parts else "; ".join(str(part) for part in parts)

    def is_denied(self, key: str) -> bool:
        """Tell whether the host is known not to be able to, which is more than not proved."""
        standing = self._standings[key]
        refused = isinstance(standing.outcome, Denied) and standing.tried == self.identity(key)
        return isinstance(standing.reading, Denied) or refused

    def proofs(self) -> dict[str, Proof]:
        """Return the proofs that cost a sandbox, for whoever comes after."""
        return {
            key: standing.proof
            for key, standing in self._standings.items()
            if standing.proof is not None and self.rows[key].is_self_test
        }

    def snapshot(self, now_ms: int) -> Snapshot:
        """Return what is known of all rows, of one moment."""
        judged = tuple(self._judge(now_ms))
        if judged != self._last:
            self._last, self._generation = judged, self._generation + 1
        return Snapshot(self._generation, judged)

    def _judge(self, now_ms: int) -> list[Capability]:
        found: dict[str, Capability] = {}
        for row in self.rows.values():
            missing = next((found[need] for need in row.needs if not found[need].present), None)
            if missing is not None:
                code, message, remedy = DEPENDENCY_UNAVAILABLE, missing.message, missing.remedy
                if missing.code in {PENDING, IDENTITY_CHANGED}:
                    code = PENDING
            elif row.disabled is not None:
                code, message, remedy = DISABLED, row.disabled, None
            else:
                code, message, remedy = self._of(row, now_ms)
            present = code == AVAILABLE
            found[row.key] = Capability(
                row.key, row.title, row.loss, present, code, message, remedy
            )
        return list(found.values())

    def _of(self, row: Row, now_ms: int) -> tuple[str, str, str | None]:
        """Return code, message and remedy of a row that has what it needs."""
        standing = self._standings[row.key]
        reading, identity = standing.reading, self.identity(row.key)
        if isinstance(reading, Denied):
            return PROBE_FAILED, reading.message, reading.remedy
        if identity is None:
            if reading is None:
                return PENDING, "it was not looked at yet", None
            return PROBE_ERROR, reading.message, None
        if standing.proof is None or standing.proof.identity != identity:
            return self._unproved(standing, identity)
        if self._is_old(row, standing, now_ms):
            why = f": {reading.message}" if reading and not isinstance(reading, Proved) else ""
            return EXPIRED, f"not seen for more than {(row.valid_ms or 0) // 1000} s{why}", None
        if standing.recovering:
            return RECOVERY_PENDING, "it is back, and must be seen a second time", None
        return AVAILABLE, standing.proof.message, None

    def _unproved(self, standing: _Standing, identity: str) -> tuple[str, str, str | None]:
        if standing.tried == identity and standing.outcome is not None:
            if isinstance(standing.outcome, Denied):
                return PROBE_FAILED, standing.outcome.message, standing.outcome.remedy
            return PROBE_ERROR, standing.outcome.message, None
        if standing.proof is not None:
            return IDENTITY_CHANGED, "what was proved has been replaced; it is proved again", None
        return PENDING, "its proof is under way", None

    def _is_due(self, row: Row, item: Capability, now_ms: int) -> bool:
        if item.code in {PENDING, IDENTITY_CHANGED}:
            return self.identity(row.key) is not None
        standing, identity = self._standings[row.key], self.identity(row.key)
        if isinstance(standing.reading, Denied) or standing.tried != identity:
            return False
        failed = standing.outcome is not None and not isinstance(standing.outcome, Proved)
        return failed and item.code in {PROBE_FAILED, PROBE_ERROR} and now_ms >= standing.retry_ms

    @staticmethod
    def _is_old(row: Row, standing: _Standing, now_ms: int) -> bool:
        if standing.identity is None or row.valid_ms is None:
            return False
        return now_ms - standing.seen_ms > row.valid_ms
