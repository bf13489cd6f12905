"""Do again what the journal says of the queue: who came to wait, was passed by, granted, and ended.

Each operation is a function of the state before it, so that what it must have done can be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ledger import queue, tables, tickets
from ledger.admission import Admitted, evaluate
from ledger.queue import Waiter
from ledger.refusal import ENTRIES
from ledger.state import Change
from ledger.tables import Ticket, Wait

if TYPE_CHECKING:
    from ledger.claims import Host
    from ledger.state import State

OPERATIONS = frozenset({"wait", "grant", "bypass", "hold", "ticket-end", "queue-resume"})


def again(state: State, change: Change, host: Host) -> Change | str:
    """Return what *change*, one of `OPERATIONS`, must have been, or why there is no such thing."""
    keys = [put.key for put in change.puts if put.table in (tables.TICKETS, tables.WAITS)]
    if change.operation == "queue-resume":
        return tickets.resume(state, change.by, host.now)
    if not keys:
        return "it is about nobody who waits"
    key = keys[0]
    if change.operation == "wait":
        return _entered(state, change, key, host)
    if change.operation == "ticket-end":
        return tickets.give_up(state, key, change.note, change.by)
    waiter = queue.find(state, key)
    if waiter is None:
        return f"nobody waits as {key}"
    if change.operation == "grant":
        return _granted(state, waiter, host)
    if change.operation == "bypass":
        return tickets.bypass(state, waiter)
    return tickets.let_go(state, waiter) if change.note else tickets.hold(state, waiter)


def _entered(state: State, change: Change, key: str, host: Host) -> Change | str:
    rows = {put.table: put.row for put in change.puts if put.key == key}
    ticket, wait = rows.get(tables.TICKETS), rows.get(tables.WAITS)
    if not isinstance(ticket, Ticket) or not isinstance(wait, Wait):
        return "a ticket has two rows"
    waiter, now = Waiter(ticket, wait), host.now
    decision = evaluate(state, host.facts, waiter.demand, now, host.policy)
    by_caps = ENTRIES in change.note  # whose bounds stand in no line of the journal
    if isinstance(decision, Admitted) and not by_caps:
        return "admitted at once"
    if not isinstance(decision, Admitted) and not decision.waitable:
        return f"refused: {decision.message} [{decision.code}]"
    for_ms = cast("int", ticket.expires_boottime_ms) - now.boottime_ms
    wish = tickets.Wish(for_ms, wait.priority)
    return tickets.enter(state, tickets.proposal_of(waiter), wish, host, change.note)


def _granted(state: State, waiter: Waiter, host: Host) -> Change | str:
    """Return the grant of *waiter*, unless somebody else was first."""
    if queue.pause_of(state) is not None:
        return "nothing: the queue rests"
    for each in queue.order(state, host.now):
        if each.ticket.id == waiter.ticket.id:
            break
        view = tickets.without(state, each)
        decision = evaluate(view, host.facts, each.demand, host.now, host.policy)
        if isinstance(decision, Admitted):
            return f"granted to {each.ticket.id}, which is before it and fits"
    made = tickets.grant(state, waiter, host)
    if isinstance(made, Change):
        return made
    return f"refused: {made.message} [{made.code}]"
