"""Leases within leases: what a nested one draws from its parent, and who ends with whom.

A nested lease has been admitted with its parent, whose hold it divides: it takes nothing from the
node. In the accounts its row `Nested` gives back what its reservation is charged, so that all
totals stay those of the outermost lease; the sum of its children is never more than a parent holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.errors import PermissionDenied, StateConflict
from ledger.resources import DIMENSIONS
from ledger.state import Put
from ledger.tables import Nested
from ledger.units import format_short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.clock import Now
    from ledger.reservation import Reservation
    from ledger.resources import Resources
    from ledger.state import State
    from ledger.transitions import Proposal


def rest_of(view: State, parent: Reservation) -> Resources:
    """Return what *parent* holds and none of its children has drawn."""
    rest = parent.charged
    for row in _all(view):
        if row.parent_id == parent.id:
            rest = rest.minus(row.amount)
    return rest


def bounded(view: State, proposal: Proposal, now: Now) -> Proposal:
    """Return *proposal* with no longer a lifetime than its parent has left."""
    if proposal.parent_id is None:
        return proposal
    latest_ms = view.reservation(proposal.parent_id).expires_limit_boottime_ms
    own_ms = proposal.max_lifetime_ms
    if latest_ms is None or (own_ms is not None and now.boottime_ms + own_ms <= latest_ms):
        return proposal
    return replace(proposal, max_lifetime_ms=latest_ms - now.boottime_ms)


def place_of(view: State, proposal: Proposal) -> Nested | None:
    """Return the place of *proposal* within its parent, None where it has none.

    Raises:
        NotFound: The parent has ended.
        PermissionDenied: It is somebody else's.
        StateConflict: It is no lease, it is in another namespace, or too little is left of it.
    """
    if proposal.parent_id is None:
        return None
    parent, uid = view.reservation(proposal.parent_id), proposal.owner.uid
    if uid not in (0, parent.owner.uid):
        raise PermissionDenied(
            f"reservation {parent.id} belongs to uid {parent.owner.uid}, and you are uid {uid}",
            hint="only its owner, or root, draws from it",
        )
    if parent.is_sandbox or proposal.runtime or parent.namespace != proposal.namespace:
        what = "a sandbox" if parent.is_sandbox else f"a lease in namespace {parent.namespace}"
        raise StateConflict(
            f"reservation {parent.id} is {what}: only leases of one namespace are within each other"
        )
    wanted = proposal.resolved.requests
    _require_rest(view, parent, wanted)
    device = parent.gpu_device if wanted.gpu_memory_bytes else None
    return Nested(parent.id, parent.namespace, wanted, device)


def _require_rest(view: State, parent: Reservation, wanted: Resources) -> None:
    rest = rest_of(view, parent)
    short = [
        f"{each.label}: {format_short(asked, each.format, up=True)} asked for, "
        f"{format_short(left, each.format)} left of {format_short(held, each.format)}"
        for each, asked, left, held in zip(
            DIMENSIONS, wanted.amounts(), rest.amounts(), parent.charged.amounts(), strict=True
        )
        if asked > left
    ]
    if short:
        raise StateConflict(
            f"too little is left of lease {parent.id}: {'; '.join(short)}",
            hint="ask for less, or release what else was drawn from it",
        )


def within(view: State, reservation_id: str) -> Iterator[str]:
    """Yield the ids of all leases within *reservation_id*, the innermost first."""
    for key, row in view.rows(tables.NESTED):
        if cast("Nested", row).parent_id == reservation_id:
            yield from within(view, key)
            yield key


def ending(view: State, reservation_id: str) -> tuple[Put, ...]:
    """Return the puts by which all within *reservation_id* ends with it, and its own place."""
    if view.is_empty(tables.NESTED):
        return ()
    puts: list[Put] = []
    for key in (*within(view, reservation_id), reservation_id):
        if key != reservation_id:
            puts.append(Put(tables.RESERVATIONS, key, None))
            if view.row(tables.BEATS, key) is not None:
                puts.append(Put(tables.BEATS, key, None))
        if view.row(tables.NESTED, key) is not None:
            puts.append(Put(tables.NESTED, key, None))
    return tuple(puts)


def _all(view: State) -> Iterator[Nested]:
    return (cast("Nested", row) for _, row in view.rows(tables.NESTED))
