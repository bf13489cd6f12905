"""The queue as the JSON objects of the API: who waits, in which order, and what for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axern.api.views import resources_view
from ledger import queue, tickets
from ledger.admission import evaluate
from ledger.refusal import Refusal
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from ledger.claims import Host
    from ledger.queue import Waiter
    from ledger.state import State

Json = dict[str, Any]


def queue_view(state: State, host: Host) -> Json:
    """Return all who wait, who is next in front, and whether the queue rests."""
    waiters = enumerate(queue.order(state, host.now), start=1)
    return {
        "tickets": [_ticket_view(state, host, waiter, place) for place, waiter in waiters],
        "paused": _pause_view(state),
        "generation": state.generation,
    }


def ticket_view(state: State, host: Host, ticket_id: str) -> Json:
    """Return one who waits.

    Raises:
        NotFound: Nobody waits under this id.
    """
    wanted = queue.get(state, ticket_id)
    for place, waiter in enumerate(queue.order(state, host.now), start=1):
        if waiter.ticket.id == ticket_id:
            return _ticket_view(state, host, waiter, place)
    return _ticket_view(state, host, wanted, 0)


def _pause_view(state: State) -> Json | None:
    pause = queue.pause_of(state)
    if pause is None:
        return None
    return {"since": format_rfc3339(pause.since_wall_ms), "by": pause.by}


def _ticket_view(state: State, host: Host, waiter: Waiter, place: int) -> Json:
    ticket, wait = waiter
    view = tickets.without(state, waiter)
    decision = evaluate(view, host.facts, waiter.demand, host.now, host.policy)
    refusal = decision if isinstance(decision, Refusal) else None
    pause = queue.pause_of(state)
    deadline_ms = ticket.expires_boottime_ms or host.now.boottime_ms
    left_ms = max(0, deadline_ms - host.now.boottime_ms)
    return {
        "id": ticket.id,
        "position": place,
        "namespace": ticket.namespace,
        "owner": {"uid": ticket.owner_uid, "kind": wait.owner.kind, "name": wait.owner.name},
        "priority": wait.priority,
        "level": queue.level(wait, pause, host.now),
        "age_ms": queue.age_ms(wait, pause, host.now),
        "created_at": format_rfc3339(ticket.created_wall_ms),
        "expires_in_ms": left_ms,
        "requests": resources_view(ticket.requests),
        "held": resources_view(ticket.held),
        "bypasses": wait.bypasses,
        "is_next": waiter.is_next,
        "code": refusal.code if refusal else None,
        "reason": refusal.message if refusal else None,
        "waits_for": [
            {
                "gate": short.gate,
                "dimension": short.dimension,
                "requested": short.requested,
                "available": short.available,
                "short_by": short.short_by,
            }
            for short in (refusal.shortfalls if refusal else ())
        ],
    }
