"""Which decisions become events, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api.views import resources_view
from axern.daemon.event_log import Happening
from ledger.claims import overdrawn
from ledger.refusal import NAMESPACE_CLAIM, NAMESPACE_QUOTA
from ledger.resources import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.refusal import Refusal
    from ledger.reservation import Reservation
    from ledger.state import State

ADMISSION_REJECTED = "admission-rejected"
CLAIM_EXCEEDED = "claim-exceeded"
OF_QUOTAS = (ADMISSION_REJECTED, CLAIM_EXCEEDED)


def refused(namespace: str, uid: int, refusal: Refusal) -> Happening | None:
    """Return the event that the gates of a namespace have refused, None where others have."""
    mine = [s for s in refusal.shortfalls if s.gate in {NAMESPACE_QUOTA, NAMESPACE_CLAIM}]
    if not mine:
        return None
    return Happening(
        ADMISSION_REJECTED,
        namespace,
        uid,
        refusal.code,
        _reason("insufficient", (short.dimension for short in mine)),
        refusal.message,
        {
            "generation": refusal.generation,
            "shortfalls": [
                {
                    "gate": short.gate,
                    "dimension": short.dimension,
                    "requested": short.requested,
                    "committed": short.committed,
                    "limit": short.limit,
                    "available": short.available,
                    "short_by": short.short_by,
                    "claim_id": short.claim_id,
                }
                for short in mine
            ],
        },
    )


def admitted(state: State, row: Reservation) -> Happening | None:
    """Return the event that *row*, admitted just now, exceeds an advisory claim, if it does."""
    claim = state.claim_of(row.namespace) if row.claim_id else None
    over = () if claim is None or claim.hard else overdrawn(claim)
    taken = [name for name in over if getattr(row.charged, name)]
    if claim is None or not taken:
        return None
    amounts = (
        f"{BY_NAME[name].label} {BY_NAME[name].format(getattr(claim.drawdown, name))} of "
        f"{BY_NAME[name].format(getattr(claim.amount, name))}"
        for name in taken
    )
    return Happening(
        CLAIM_EXCEEDED,
        row.namespace,
        row.owner.uid,
        "",
        _reason("exceeded", taken),
        f"{row.id} was admitted beyond claim {claim.id}: {', '.join(amounts)}",
        {
            "generation": state.generation,
            "reservation_id": row.id,
            "claim_id": claim.id,
            "requests": resources_view(row.requests),
        },
    )


def _reason(word: str, names: Iterable[str]) -> str:
    flags = dict.fromkeys(BY_NAME[name].flag for name in names)
    return "-".join((word, *flags))
