"""Events as JSON objects, all of one shape: what a commit did, and the notes beside commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from axern.api.views import resources_view
from axern.daemon import happenings
from axern.daemon.event_number import Number, of_commit
from ledger import occurrences, rights
from ledger.dimensions import DIMENSIONS
from ledger.reservation import Reservation
from ledger.tables import RESERVATIONS, TICKETS, Claim, Namespace
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from axern.daemon.event_log import Event
    from ledger.occurrences import Occurrence
    from ledger.rights import Caller

Json = dict[str, Any]

REFUSAL = "refusal"
OVERDRAFT = "overdraft"
ADOPTION = "adoption"
CAPABILITY = "capability"
DAEMON = "daemon"
KINDS = (*occurrences.KINDS, REFUSAL, OVERDRAFT, ADOPTION, CAPABILITY, DAEMON)
UNASKED = frozenset({occurrences.UPKEEP})
"""Kinds that are told to those alone who name them."""

_KIND_OF = {
    happenings.ADMISSION_REJECTED: REFUSAL,
    happenings.NODE_REJECTED: REFUSAL,
    happenings.CLAIM_EXCEEDED: OVERDRAFT,
    happenings.ADOPTED: ADOPTION,
}
_ALWAYS_ONE = "sandbox_slots"
_OF_NODE = frozenset({CAPABILITY, DAEMON, ADOPTION})


@dataclass(frozen=True, slots=True)
class Told:
    """One event on its way to a reader; `owner_uid` is None where nobody knows, or nobody owns it.

    What `is_owned` is told in full to who did it and to those who may name holders.
    """

    number: Number
    kind: str
    operation: str
    namespace: str | None
    owner_uid: int | None
    is_owned: bool
    by: str
    first_wall_ms: int
    wall_ms: int
    count: int
    table: str | None
    id: str | None
    phase: str | None
    message: str
    detail: Json

    def of(self, namespace: str | None, owner_uid: int | None) -> Told:
        """Return it with what is known of whose it is, where it does not say so itself."""
        return replace(
            self,
            namespace=self.namespace or namespace,
            owner_uid=owner_uid if self.owner_uid is None else self.owner_uid,
        )

    def view(self, viewer: Caller) -> Json:
        """Return its JSON object, for *viewer*."""
        shown = (
            not self.is_owned
            or self.by == f"uid:{viewer.uid}"
            or rights.may(rights.NAME_HOLDER, viewer, self.owner_uid, self.namespace)
        )
        return {
            "sequence": str(self.number),
            "at": format_rfc3339(self.wall_ms),
            "kind": self.kind,
            "operation": self.operation,
            "namespace": self.namespace,
            "table": self.table,
            "id": self.id,
            "phase": self.phase,
            "by": self.by if shown else None,
            "owner_uid": self.owner_uid if shown else None,
            "first_at": format_rfc3339(self.first_wall_ms),
            "count": self.count,
            "message": self.message if shown else "",
            "detail": self.detail if shown else {},
        }


def of_occurrence(occurrence: Occurrence) -> Told:
    """Return the event of what a commit did."""
    detail = _detail(occurrence.row)
    return Told(
        number=of_commit(occurrence.generation, occurrence.place),
        kind=occurrence.kind,
        operation=occurrence.operation,
        namespace=occurrence.namespace,
        owner_uid=occurrence.owner_uid,
        is_owned=occurrence.table in {RESERVATIONS, TICKETS},
        by=occurrence.by,
        first_wall_ms=occurrence.wall_ms,
        wall_ms=occurrence.wall_ms,
        count=1,
        table=occurrence.table,
        id=occurrence.id,
        phase=occurrence.phase,
        message=_message(occurrence, detail),
        detail=detail,
    )


def of_note(event: Event) -> Told:
    """Return the event of a note."""
    what = event.what
    kind = _KIND_OF.get(what.kind) or what.kind.partition("-")[0]
    of_node = kind in _OF_NODE
    return Told(
        number=event.number,
        kind=kind,
        operation=what.kind,
        namespace=what.namespace or None,
        owner_uid=None if of_node else what.uid,
        is_owned=not of_node,
        by="daemon" if of_node else f"uid:{what.uid}",
        first_wall_ms=event.first_wall_ms,
        wall_ms=event.last_wall_ms,
        count=event.count,
        table=None,
        id=what.detail.get("reservation_id"),
        phase=None,
        message=what.message,
        detail={"code": what.code or None, "reason": what.reason, **what.detail},
    )


def _detail(row: object) -> Json:
    """Return what is worth telling of the row that an operation has left."""
    match row:
        case Reservation():
            return {"requests": resources_view(row.requests), "runtime_class": row.runtime}
        case Namespace():
            return {"quota": resources_view(row.quota)}
        case Claim():
            mode = "hard" if row.hard else "advisory"
            return {"claimed": resources_view(row.amount), "mode": mode}
        case _:
            return {}


def _message(occurrence: Occurrence, detail: Json) -> str:
    """Return for people what JSON has in `detail`, or why it was done."""
    told = {"reserve": "requests", "grant": "requests", "quota-set": "quota"}.get(
        occurrence.operation
    )
    if occurrence.operation.startswith("claim-"):
        told = "claimed"
    amounts = detail.get(told or "", {})
    words = [
        f"{each.label} {each.format(amounts[each.name])}"
        for each in DIMENSIONS
        if amounts.get(each.name) and (told != "requests" or each.name != _ALWAYS_ONE)
    ]
    return ", ".join([*words, *([occurrence.note] if occurrence.note else [])])
