"""Whether the node takes new work: drain, undrain and retire, each a pure function to a change.

What is on the node is not touched by any of them. Who retires a node says that nothing is left on
it, which the ledger checks in the same commit: no reservation can slip in between.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger import rights, tables
from ledger.errors import NodeRetired, StateConflict
from ledger.postings import change
from ledger.release import require_reason
from ledger.state import Change, Put
from ledger.tables import DRAINING, NODE_KEY, RETIRED, STANDINGS, Standing
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from ledger.clock import Now
    from ledger.rights import Caller
    from ledger.state import State

_MUST_BE_EMPTY = (tables.RESERVATIONS, tables.TICKETS, tables.SERVICES, tables.CLAIMS)


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants the node to stand otherwise, and why.

    Raises:
        PermissionDenied: Not an admin.
        InvalidArgument: A reason that no table could show.
    """

    caller: Caller
    reason: str

    def __post_init__(self) -> None:
        """Refuse whoever may not, and a reason that can't be kept."""
        rights.require_right(rights.STAND, self.caller)
        require_reason(self.reason)

    def standing(self, state: str, now: Now) -> Standing:
        """Return the row that says so."""
        return Standing(state, self.reason, f"uid:{self.caller.uid}", now.wall_ms)


def drain(view: State, wish: Wish, now: Now) -> Change:
    """Admit nothing new from now on; draining again changes the reason alone.

    Raises:
        StateConflict: The node is retired.
    """
    before = _unless_retired(view)
    row = wish.standing(DRAINING, now)
    if before is not None:
        row = replace(row, since_wall_ms=before.since_wall_ms)
    if row == before:
        return Change("drain", result=row)
    return _put(view, "drain", row, wish.reason, row.by)


def undrain(view: State, caller: Caller) -> Change:
    """Take new work again; a node that does already stays as it is.

    Raises:
        PermissionDenied: Not an admin.
        StateConflict: The node is retired.
    """
    rights.require_right(rights.STAND, caller)
    if _unless_retired(view) is None:
        return Change("undrain")
    return _put(view, "undrain", None, "", f"uid:{caller.uid}")


def retire(view: State, wish: Wish, now: Now) -> Change:
    """Take no work ever again; a node that is retired already stays as it is.

    Raises:
        StateConflict: Something is left on it.
    """
    before = view.standing()
    if before is not None and before.state == RETIRED:
        return Change("retire-node", result=before)
    left = [f"{count} {table}" for table in _MUST_BE_EMPTY if (count := _count(view, table))]
    if left:
        raise StateConflict(
            f"this node still has {', '.join(left)}, and is not retired",
            hint="let nothing new in with `axern node drain`, and look: axern reservations",
        )
    row = wish.standing(RETIRED, now)
    return _put(view, "retire-node", row, wish.reason, row.by)


def require_in_service(view: State, node_id: str) -> None:
    """Raise NodeRetired if a daemon must not serve on this ledger."""
    standing = view.standing()
    if standing is not None and standing.state == RETIRED:
        raise NodeRetired(
            f"node {node_id} was retired at {format_rfc3339(standing.since_wall_ms)}: "
            f"{standing.reason}",
            hint="it never comes back; a new node begins with a state_dir of its own",
        )


def _unless_retired(view: State) -> Standing | None:
    standing = view.standing()
    if standing is not None and standing.state == RETIRED:
        raise StateConflict(
            f"this node was retired at {format_rfc3339(standing.since_wall_ms)}: {standing.reason}",
            hint="a retired node never comes back",
        )
    return standing


def _count(view: State, table: str) -> int:
    if table == tables.RESERVATIONS:
        return view.entry_count()
    return sum(1 for _ in view.rows(table))


def _put(view: State, operation: str, row: Standing | None, note: str, by: str) -> Change:
    puts = (Put(STANDINGS, NODE_KEY, row),)
    return change(view, operation, puts, by=by, note=note, result=row)
