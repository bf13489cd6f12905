"""The queue's order: priority and age, then the namespace that has least, then who came first.

Pure, and read from the rows. Before all others comes a head that was passed by as often as may be:
room is held for it. Source: docs/decisions/0031-queue.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from ledger import tables
from ledger.admission import Demand
from ledger.errors import NotFound
from ledger.refusal import NAMESPACE_CLAIM, NAMESPACE_ENTRIES, NAMESPACE_QUOTA
from ledger.resources import DIMENSIONS, dimension_of
from ledger.state import committed_account

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.clock import Now
    from ledger.refusal import Refusal
    from ledger.state import State
    from ledger.tables import Pause, Ticket, Wait

PRIORITIES = range(10)
DEFAULT_PRIORITY = 5
AGING_MS = 5 * 60_000
"""Who has waited for so long is as urgent as one of the next priority that has just come."""
MOST_BYPASSES = 2
"""How often others may take what the head waits for before it is set aside for it."""
NAMESPACE_GATES = frozenset({NAMESPACE_ENTRIES, NAMESPACE_QUOTA, NAMESPACE_CLAIM})
"""Gates that open when the namespace's own entries end; who waits for them holds up nobody."""
_WHOLE = 10**9


class Waiter(NamedTuple):
    """One request that waits."""

    ticket: Ticket
    wait: Wait

    @property
    def holds(self) -> bool:
        """Tell whether something is held for it."""
        return any(self.ticket.held.amounts())

    @property
    def is_next(self) -> bool:
        """Tell whether it was passed by as often as may be, so that it is the head from now on."""
        return self.wait.bypasses >= MOST_BYPASSES

    @property
    def demand(self) -> Demand:
        """Return what admission is asked for it."""
        ticket, wait = self
        limits = wait.limits if wait.runtime else None
        return Demand(ticket.namespace, ticket.requests, wait.requires, limits)


def find(view: State, ticket_id: str) -> Waiter | None:
    """Return who waits under *ticket_id*, or None."""
    ticket = cast("Ticket | None", view.row(tables.TICKETS, ticket_id))
    wait = cast("Wait | None", view.row(tables.WAITS, ticket_id))
    return None if ticket is None or wait is None else Waiter(ticket, wait)


def get(view: State, ticket_id: str) -> Waiter:
    """Return who waits under *ticket_id*.

    Raises:
        NotFound: Nobody does, or not any more.
    """
    found = find(view, ticket_id)
    if found is None:
        raise NotFound(
            f"nobody waits under the id {ticket_id}",
            hint="what was granted is listed by: axern reservations",
        )
    return found


def waiters(view: State) -> list[Waiter]:
    """Return all who wait, in no order."""
    waits = {key: cast("Wait", row) for key, row in view.rows(tables.WAITS)}
    tickets = ((key, cast("Ticket", row)) for key, row in view.rows(tables.TICKETS))
    return [Waiter(ticket, waits[key]) for key, ticket in tickets if key in waits]


def pause_of(view: State) -> Pause | None:
    """Return since when the queue rests and by whom, or None where it does not."""
    return cast("Pause | None", view.row(tables.PAUSES, tables.NODE_KEY))


def age_ms(wait: Wait, pause: Pause | None, now: Now) -> int:
    """Return for how long *wait* has grown older; nobody does while the queue rests."""
    until_ms = now.boottime_ms if pause is None else pause.since_boottime_ms
    return max(0, until_ms - wait.aging_boottime_ms)


def level(wait: Wait, pause: Pause | None, now: Now) -> int:
    """Return how urgent *wait* is by now: its priority, and one more for each `AGING_MS`."""
    return wait.priority + age_ms(wait, pause, now) // AGING_MS


def share_of(view: State, namespace: str) -> int:
    """Return the dominant share of *namespace* in parts of 10**9.

    That is the largest part that its live entries have of what the node can promise, over all
    dimensions; GPU memory is counted over all devices.
    """
    node = view.node()
    if node is None:
        return 0
    held = dict.fromkeys((dimension.name for dimension in DIMENSIONS), 0)
    for pool, amount in view.account(committed_account(namespace)).items():
        held[dimension_of(pool).name] += amount
    gpu_bytes = sum(size for _, size in node.gpu_allocatable)
    wholes = replace(node.effective_allocatable, gpu_memory_bytes=gpu_bytes).amounts()
    return max(
        amount * _WHOLE // max(1, whole)
        for amount, whole in zip(held.values(), wholes, strict=True)
    )


def order(view: State, now: Now) -> Iterator[Waiter]:
    """Yield all who wait, who is next in front.

    Shares are looked at when they matter: what is granted meanwhile counts.
    """
    pause = pause_of(view)
    levels: dict[int, dict[str, deque[Waiter]]] = {}
    promised = []
    for each in sorted(waiters(view), key=lambda waiter: waiter.ticket.sequence):
        if each.is_next:
            promised.append(each)
        else:
            spaces = levels.setdefault(level(each.wait, pause, now), {})
            spaces.setdefault(each.ticket.namespace, deque()).append(each)
    yield from promised
    for urgency in sorted(levels, reverse=True):
        yield from _fairly(view, levels[urgency])


def _fairly(view: State, spaces: dict[str, deque[Waiter]]) -> Iterator[Waiter]:
    """Yield those of one level: of each namespace in the order in which they came."""
    while spaces:
        name = next(iter(spaces))
        if len(spaces) > 1:
            name = min(
                spaces, key=lambda each: (share_of(view, each), spaces[each][0].ticket.sequence)
            )
        yield spaces[name].popleft()
        if not spaces[name]:
            del spaces[name]


def may_lead(refusal: Refusal) -> bool:
    """Tell whether who is refused so may be the head: only the node keeps it, and not for ever."""
    return refusal.waitable and not any(
        short.gate in NAMESPACE_GATES for short in refusal.shortfalls
    )
