"""What a commit did, as numbered occurrences of a few kinds: the same whenever it is read.

Each has a place in its commit, so that (generation, place) names it for good without anything
having been written for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.reservation import RELEASED, Reservation
from ledger.tables import (
    BEATS,
    CLAIMS,
    LIMIT_RANGES,
    NAMESPACES,
    NESTED,
    NODE_KEY,
    REQUESTS,
    RESERVATIONS,
    TICKETS,
    WAITS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.state import Change, Put
    from ledger.tables import Row

GRANT = "grant"
PHASE = "phase"
RELEASE = "release"
RECLAIM = "reclaim"
LEASE = "lease"
QUEUE = "queue"
OPERATOR = "operator"
NODE = "node"
UPKEEP = "upkeep"
KINDS = (GRANT, PHASE, RELEASE, RECLAIM, LEASE, QUEUE, OPERATOR, NODE, UPKEEP)
"""`PHASE` is a step in a sandbox's life, `RECLAIM` what the daemon ends by itself, `LEASE` a
renewal, `NODE` what the host can promise, `UPKEEP` what the ledger does for itself."""

_KIND_OF = {
    **dict.fromkeys(("reserve", "grant"), GRANT),
    **dict.fromkeys(("start", "run", "stop", "retire"), PHASE),
    "release": RELEASE,
    **dict.fromkeys(("renew", "replace-token"), LEASE),
    **dict.fromkeys(("observe-node", "rebase"), NODE),
    **dict.fromkeys(("beat", "forget-requests"), UPKEEP),
}
"""The kind of an operation; of the queue's by its rows, and any other is an operator's."""
_ENDED_BY_DAEMON = frozenset({"stop", "claim-release"})
_DAEMON = "daemon"
_COMMITTED, _CLAIMED = "committed:", "claimed:"
_NAMED_BY_NAMESPACE = frozenset({NAMESPACES, LIMIT_RANGES})
_BESIDE = frozenset({BEATS, REQUESTS})


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One operation of a commit on one thing; `place` counts from 1, `row` is what it left there.

    `namespace` and `owner_uid` are None where the line does not tell them, as of some releases.
    """

    generation: int
    place: int
    wall_ms: int
    kind: str
    operation: str
    by: str
    note: str
    table: str | None
    id: str | None
    namespace: str | None
    owner_uid: int | None
    row: Row | None

    @property
    def phase(self) -> str | None:
        """Return the phase that a reservation is in from now on; None of anything else."""
        if self.table != RESERVATIONS:
            return None
        return self.row.phase if isinstance(self.row, Reservation) else RELEASED


def of(generation: int, wall_ms: int, changes: Iterable[Change]) -> Iterator[Occurrence]:
    """Yield what the *changes* of the commit *generation* did, in their order."""
    place = 0
    for change in changes:
        for put in _subjects(change):
            place += 1
            row = put.row if put else None
            owner_uid = row.owner.uid if isinstance(row, Reservation) else None
            yield Occurrence(
                generation=generation,
                place=place,
                wall_ms=wall_ms,
                kind=_kind(change, put),
                operation=change.operation,
                by=change.by,
                note=change.note or getattr(row, "reason", None) or "",
                table=put.table if put else None,
                id=put.key if put and put.key != NODE_KEY else None,
                namespace=getattr(row, "namespace", None) or _namespace(change, put),
                owner_uid=getattr(row, "owner_uid", owner_uid),
                row=row,
            )


def _kind(change: Change, put: Put | None) -> str:
    operation = change.operation
    if put is not None and put.table in (TICKETS, WAITS):
        return QUEUE
    if change.by == _DAEMON:
        # A sandbox was stopped before it is released: only of a lease that is the daemon's own act.
        if operation in _ENDED_BY_DAEMON or (operation == "release" and _is_lease(change)):
            return RECLAIM
        if operation not in _KIND_OF:
            return NODE
    return _KIND_OF.get(operation, OPERATOR)


def _is_lease(change: Change) -> bool:
    """Tell whether what is released was no sandbox, which retires first, by what it held till now.

    Within another lease it held nothing for itself.
    """
    held = any(account.startswith(_COMMITTED) for account, _, _ in change.postings)
    return held or any(put.table == NESTED for put in change.puts)


def _namespace(change: Change, put: Put | None) -> str | None:
    """Return whose namespace it is where the row is gone: by its name, or from what it held."""
    if put is not None and put.table in _NAMED_BY_NAMESPACE:
        return put.key
    for account, _, _ in change.postings:
        if account.startswith((_COMMITTED, _CLAIMED)):
            return account.partition(":")[2]
    return None


def _subjects(change: Change) -> list[Put] | list[None]:
    """Return the puts that *change* is about: claims, reservations, or whatever else there is.

    A claim that is made or changed is one thing, whatever it takes under it; a claim that is drawn
    from is told with the reservation.
    """
    tables = (CLAIMS, RESERVATIONS) if change.operation.startswith("claim-") else (RESERVATIONS,)
    for table in tables:
        found = [put for put in change.puts if put.table == table]
        if found:
            return found
    if change.operation == "rebase":
        return [None]
    found = [put for put in change.puts if put.table not in {*_BESIDE, CLAIMS}]
    return found[:1] or [None]
