"""What the entries of a namespace draw from its claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.resources import Resources
from ledger.state import Put

if TYPE_CHECKING:
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Claim


def drawn_from(claim: Claim, row: Reservation | None) -> Resources:
    """Return what *row* draws from *claim*: nothing where it is gone or not under it."""
    if row is None or row.claim_id != claim.id:
        return Resources()
    if row.gpu_device == claim.gpu_device:
        return row.charged
    return replace(row.charged, gpu_memory_bytes=0)


def drawdown_put(
    view: State, before: Reservation | None, after: Reservation | None
) -> tuple[Put, ...]:
    """Return the put by which the claim of an entry, while it lasts, follows the entry.

    Args:
        view: The state.
        before: The entry as it is, None before it is made.
        after: The entry as it will be, None when it is gone.
    """
    row = before or after
    if row is None or row.claim_id is None:
        return ()
    claim = cast("Claim | None", view.row(tables.CLAIMS, row.claim_id))
    if claim is None:
        return ()
    drawdown = claim.drawdown.plus(drawn_from(claim, after)).minus(drawn_from(claim, before))
    return (Put(tables.CLAIMS, claim.id, replace(claim, drawdown=drawdown)),)
