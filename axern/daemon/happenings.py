"""Which decisions become events, and in which words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api.views import resources_view
from axern.daemon.event_log import Happening
from ledger.claims import overdrawn
from ledger.refusal import NAMESPACE_CLAIM, NAMESPACE_QUOTA
from ledger.resources import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from axern.host.capabilities import Capability
    from ledger.refusal import Refusal, Shortfall
    from ledger.reservation import Reservation
    from ledger.state import State

    Json = dict[str, Any]

ADMISSION_REJECTED = "admission-rejected"
NODE_REJECTED = "node-rejected"
CLAIM_EXCEEDED = "claim-exceeded"
ADOPTED = "adopted"
LOST, FOUND, ABSENT, UNCLEAR = "lost", "found", "absent", "unclear"
"""What becomes of a capability."""
OF_QUOTAS = (ADMISSION_REJECTED, CLAIM_EXCEEDED)


def refused(namespace: str, uid: int, refusal: Refusal) -> Happening:
    """Return the event of *refusal*: by the gates of its namespace if one failed, else the node's.

    That of a namespace has the shortfalls of its own gates alone.
    """
    mine = [s for s in refusal.shortfalls if s.gate in {NAMESPACE_QUOTA, NAMESPACE_CLAIM}]
    told = mine or refusal.shortfalls
    if told:
        reason = _reason("insufficient", (short.dimension for short in told))
    else:
        reason = "node-selection"
    return Happening(
        ADMISSION_REJECTED if mine else NODE_REJECTED,
        namespace,
        uid,
        refusal.code,
        reason,
        refusal.message,
        {
            "generation": refusal.generation,
            "shortfalls": [_shortfall_view(short) for short in told],
        },
    )


def adopted(rows: Iterable[Reservation]) -> Iterator[Happening]:
    """Yield for each namespace which of its sandboxes a new daemon lets live on."""
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row.namespace, []).append(row.id)
    for namespace, ids in found.items():
        words = f"{len(ids)} {'sandbox' if len(ids) == 1 else 'sandboxes'} taken over"
        yield Happening(ADOPTED, namespace, 0, "", "daemon-started", words, {"ids": ids})


def capability(item: Capability, change: str) -> Happening:
    """Return the event that *item* has changed: `LOST`, `FOUND`, `ABSENT` or `UNCLEAR`."""
    kind = f"capability-{change}"
    detail = {"capability": item.key, "present": item.present}
    return Happening(kind, "", 0, item.code, item.key, f"{item.key}: {item.message}", detail)


def daemon(change: str, message: str) -> Happening:
    """Return the event that the daemon has `started` or is `stopped`."""
    return Happening(f"daemon-{change}", "", 0, "", change, message)


def _shortfall_view(short: Shortfall) -> Json:
    return {
        "gate": short.gate,
        "dimension": short.dimension,
        "requested": short.requested,
        "committed": short.committed,
        "limit": short.limit,
        "available": short.available,
        "short_by": short.short_by,
        "claim_id": short.claim_id,
    }


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
    flags = dict.fromkeys(BY_NAME[name].flag if name in BY_NAME else name for name in names)
    return "-".join((word, *flags))
