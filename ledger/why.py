"""Why a demand is refused, beyond its numbers: who holds what, what would make it fit, and when.

Pure, and apart from the decision: `ledger.admission.evaluate` decides, and nothing here is computed
for a yes. Whatever is said to fit was decided by `evaluate` itself, on a fork of the state. Source:
docs/decisions/0026-why.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import TYPE_CHECKING, cast

from ledger import rights, tables
from ledger.admission import Admitted, available, evaluate, pick_device
from ledger.drawdown import drawdown_put
from ledger.needs import Need, claims_of_others, needs, share_of
from ledger.postings import change
from ledger.refusal import (
    ENTRIES,
    NAMESPACE_ENTRIES,
    NODE,
    NODE_EXPOSURE,
    NODE_MEMORY_USE,
    NODE_STORAGE_FREE,
)
from ledger.resources import BY_NAME, by_pool, gpu_pool, pool
from ledger.spec import SMALLEST_LIMITS
from ledger.state import Put
from ledger.ways import earliest_ms, fewest

if TYPE_CHECKING:
    from ledger.admission import AdmissionPolicy, Demand
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.refusal import Refusal, Shortfall
    from ledger.reservation import Owner, Reservation
    from ledger.rights import Caller
    from ledger.state import State
    from ledger.tables import Ticket

TOP = 3
"""How many holders of one dimension are named; the others are summed."""
RESERVATION, CLAIM, QUEUE, OTHERS = "reservation", "claim", "queue", "others"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has `amount` of `dimension` at `gate`.

    One reservation with its id and owner; what a namespace has claimed and not drawn; what is set
    aside for the queue; or `count` others together, of whom nothing else is said.
    """

    gate: str
    dimension: str
    kind: str
    amount: int
    count: int = 1
    id: str | None = None
    namespace: str | None = None
    owner: Owner | None = None
    phase: str | None = None
    expires_wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One thing that would make the demand fit: releases, or a smaller request.

    `release` are ids, `others` counts entries that the viewer may not see and that must go as well.
    `is_fewest` says that no fewer are enough. `requests` are the amounts to ask for instead.
    """

    release: tuple[str, ...] = ()
    others: int = 0
    is_fewest: bool = True
    requests: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is said beside the numbers; `earliest_fit_wall_ms` counts on nobody renewing a lease."""

    holders: tuple[Holder, ...] = ()
    would_fit_if: tuple[Way, ...] = ()
    earliest_fit_wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What was decided on, and for whom."""

    view: State
    facts: Facts
    demand: Demand
    now: Now
    policy: AdmissionPolicy
    viewer: Caller = rights.ROOT

    def may_see(self, row: Reservation) -> bool:
        """Tell whether the viewer may be told whose *row* is."""
        return rights.may(rights.NAME_HOLDER, self.viewer, row.owner.uid, row.namespace)

    def fits(self, released: Iterable[Reservation] = (), demand: Demand | None = None) -> bool:
        """Tell whether *demand*, else that of the case, fits once *released* have ended."""
        fork = self.view.fork()
        for row in released:
            puts = (
                Put(tables.RESERVATIONS, row.id, None),
                *drawdown_put(fork, row, None),
            )
            fork.apply(change(fork, "release", puts))
        decision = evaluate(fork, self.facts, demand or self.demand, self.now, self.policy)
        return isinstance(decision, Admitted)


def explain(case: Case, refusal: Refusal) -> Explanation:
    """Return what there is to say about *refusal*, which is the decision of *case*."""
    if refusal.reasons:
        return Explanation()
    alternatives = needs(case.view, case.demand, refusal)
    rows = list(case.view.outermost())
    ways = (_releases(case, alternatives, rows), _smaller(case, refusal))
    earliest = [
        at_ms
        for each in alternatives
        if (at_ms := earliest_ms(case.view, case.demand, each)) is not None
    ]
    return Explanation(
        holders=_holders(case, refusal, rows),
        would_fit_if=tuple(way for way in ways if way is not None),
        earliest_fit_wall_ms=_wall_ms(case, min(earliest)) if earliest else None,
    )


def _wall_ms(case: Case, boottime_ms: int) -> int:
    return case.now.wall_ms + max(0, boottime_ms - case.now.boottime_ms)


def _releases(case: Case, alternatives: list[list[Need]], rows: list[Reservation]) -> Way | None:
    """Return the fewest releases: of the viewer's own entries if they suffice, else of all."""
    own = rows if case.viewer.is_admin else [row for row in rows if case.may_see(row)]
    for candidates in (own, rows) if len(own) < len(rows) else (own,):
        found = [fewest(case.view, case.demand, each, candidates) for each in alternatives]
        sets = [each for each in found if each is not None]
        if not sets:
            continue
        picked, is_fewest = min(sets, key=lambda each: len(each[0]))
        if case.fits(picked):
            named = tuple(row.id for row in picked if case.may_see(row))
            proved = is_fewest and all(each[1] for each in sets)
            return Way(release=named, others=len(picked) - len(named), is_fewest=proved)
    return None


def _smaller(case: Case, refusal: Refusal) -> Way | None:
    """Return the largest request that fits, where a smaller one is still of some use."""
    rooms: dict[str, int] = {}
    if any(each.gate == NODE_EXPOSURE for each in refusal.shortfalls):
        return None  # its limit is too large, whatever it requests
    for each in refusal.shortfalls:
        room = _room(case, each)
        rooms[each.dimension] = min(room, rooms.get(each.dimension, room))
    if any(
        name not in _SHRINKABLE or room < SMALLEST_LIMITS.get(name, 1)
        for name, room in rooms.items()
    ):
        return None
    demand = replace(case.demand, requests=replace(case.demand.requests, **rooms))
    return Way(requests=tuple(rooms.items())) if case.fits(demand=demand) else None


_SHRINKABLE = frozenset(BY_NAME) - {"sandbox_slots"}


def _room(case: Case, shortfall: Shortfall) -> int:
    """Return what is left at the gate; of several devices on the one that has most."""
    if shortfall.gate != NODE or not BY_NAME[shortfall.dimension].per_device:
        return shortfall.available
    node = case.view.node()
    sizes = node.gpu_allocatable if node else ()
    space = case.demand.namespace
    return max(min(available(case.view, space, gpu_pool(name)), size) for name, size in sizes)


def _holders(case: Case, refusal: Refusal, rows: list[Reservation]) -> tuple[Holder, ...]:
    """Return who holds what is short, the largest first in each dimension.

    What is really in use is not known of each entry, so that beside the gate that counts promises
    nothing is said at the one that measures.
    """
    found: list[Holder] = []
    counted = {each.dimension for each in refusal.shortfalls if each.gate == NODE}
    for each in refusal.shortfalls:
        if each.gate in (NODE_STORAGE_FREE, NODE_MEMORY_USE) and each.dimension in counted:
            continue
        found += _holders_at(case, each, rows)
    return tuple(found)


def _holders_at(case: Case, shortfall: Shortfall, rows: list[Reservation]) -> list[Holder]:
    gate, name = shortfall.gate, shortfall.dimension
    device = _device(case, shortfall)
    share = share_of(case.view, case.demand, shortfall, device)
    if gate in (ENTRIES, NAMESPACE_ENTRIES):  # what is within a lease is an entry, too
        rows = list(case.view.reservations())
    amounts = [(amount, row) for row in rows if (amount := share(row))]
    seen = amounts if case.viewer.is_admin else [p for p in amounts if case.may_see(p[1])]
    top = nlargest(TOP, seen, key=lambda pair: pair[0])
    named = [_holder(case, gate, name, amount, row) for amount, row in top]
    if gate in (NODE, NODE_STORAGE_FREE):
        named += _set_aside(case, gate, name, device)
    elif gate == ENTRIES and case.view.holding:
        named.append(Holder(gate, name, QUEUE, case.view.holding))
    count = len(amounts) - len(top)
    rest = sum(amount for amount, _ in amounts) - sum(amount for amount, _ in top)
    if count:
        named.append(Holder(gate, name, OTHERS, rest, count))
    return named


def _device(case: Case, shortfall: Shortfall) -> str | None:
    """Return the device that the shortfall is about: the one that comes nearest."""
    node = case.view.node()
    if shortfall.gate != NODE or not BY_NAME[shortfall.dimension].per_device or node is None:
        return None
    return pick_device(case.view, node, case.demand)


def _holder(case: Case, gate: str, name: str, amount: int, row: Reservation) -> Holder:
    expires_ms = row.expires_boottime_ms
    return Holder(
        gate=gate,
        dimension=name,
        kind=RESERVATION,
        amount=amount,
        id=row.id,
        namespace=row.namespace,
        owner=row.owner,
        phase=row.phase,
        expires_wall_ms=None if expires_ms is None else _wall_ms(case, expires_ms),
    )


def _set_aside(case: Case, gate: str, name: str, device: str | None) -> list[Holder]:
    """Return what is promised and not drawn: claims of other namespaces, and the queue's head."""
    key = pool(BY_NAME[name], device)
    found = []
    for claim in claims_of_others(case.view, case.demand).values():
        rest = by_pool(claim.amount.minus(claim.drawdown), claim.gpu_device).get(key, 0)
        if rest:
            named = rights.may(rights.NAME_HOLDER, case.viewer, namespace=claim.namespace)
            shown = (claim.id, claim.namespace) if named else (None, None)
            found.append(Holder(gate, name, CLAIM, rest, id=shown[0], namespace=shown[1]))
    tickets = [cast("Ticket", row) for _, row in case.view.rows(tables.TICKETS)]
    held = sum(by_pool(row.held, row.gpu_device).get(key, 0) for row in tickets)
    if held:
        found.append(Holder(gate, name, QUEUE, held))
    return found
