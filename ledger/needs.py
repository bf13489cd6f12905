"""What must be freed for a refused demand to fit, and how much of it each entry holds.

A need is one failing gate in one dimension as a sum: entries that hold `amount` of it together must
end. For GPU memory there is one list of needs for each device that is large enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ledger import published, tables
from ledger.drawdown import drawn_from
from ledger.exposure import most_of, whole_of
from ledger.refusal import (
    ENTRIES,
    NAMESPACE_CLAIM,
    NAMESPACE_ENTRIES,
    NAMESPACE_QUOTA,
    NODE,
    NODE_EXPOSURE,
    NODE_MEMORY_USE,
    NODE_STORAGE_FREE,
    PUBLISHED_PORT,
)
from ledger.reservation import RETIRING, Reservation
from ledger.resources import BY_NAME, gpu_pool
from ledger.state import HEADROOM, claimed_account

if TYPE_CHECKING:
    from ledger.admission import Demand
    from ledger.refusal import Refusal, Shortfall
    from ledger.state import State
    from ledger.tables import Claim

Share = Callable[[Reservation], int]


@dataclass(frozen=True, slots=True)
class Need:
    """So much of *dimension* must be freed at *gate*.

    `share` is what the end of one entry frees of it, claims of other namespaces left out of
    account; `on_node` tells whether they count, since what is under one stays promised.
    """

    gate: str
    dimension: str
    device: str | None
    amount: int
    share: Share
    on_node: bool


def needs(view: State, demand: Demand, refusal: Refusal) -> list[list[Need]]:
    """Return the lists of needs of which one must be met; none if no release can help."""
    shortfalls = refusal.shortfalls
    if refusal.reasons or any(
        each.requested > each.limit or each.gate == NODE_MEMORY_USE for each in shortfalls
    ):
        return []
    found = [need for each in shortfalls for need in _on_devices(view, demand, each)]
    devices = sorted({need.device for need in found if need.device}) or [""]
    return [[need for need in found if need.device in (None, device)] for device in devices]


def share_of(view: State, demand: Demand, shortfall: Shortfall, device: str | None) -> Share:
    """Return how much of what *shortfall* is about an entry holds."""
    name, space = shortfall.dimension, demand.namespace
    if shortfall.gate == ENTRIES:
        return lambda _: 1
    if shortfall.gate == PUBLISHED_PORT:
        return lambda row: int(published.holds(view, row, name))
    if shortfall.gate == NAMESPACE_ENTRIES:
        return lambda row: int(row.namespace == space)
    if shortfall.gate == NAMESPACE_QUOTA:
        return lambda row: (
            _charged(row, name) if row.namespace == space and row.phase != RETIRING else 0
        )
    if shortfall.gate == NAMESPACE_CLAIM:
        claim = view.claim_of(space)
        return lambda row: getattr(drawn_from(claim, row), name) if claim else 0
    if shortfall.gate == NODE_EXPOSURE:
        node = view.node()
        whole = whole_of(node, name) if node else 0
        return lambda row: _most(row, name, whole)
    if device is not None:
        return lambda row: _charged(row, name) if row.gpu_device == device else 0
    return lambda row: _charged(row, name)


def claims_of_others(view: State, demand: Demand) -> dict[str, Claim]:
    """Return the claims of other namespaces by their ids."""
    rows = (cast("Claim", row) for _, row in view.rows(tables.CLAIMS))
    return {row.id: row for row in rows if row.namespace != demand.namespace}


def is_under(need: Need, claim: Claim) -> bool:
    """Tell whether what an entry under *claim* frees goes back to that claim."""
    return need.on_node and (need.device is None or claim.gpu_device == need.device)


def _on_devices(view: State, demand: Demand, shortfall: Shortfall) -> Iterator[Need]:
    gate, name = shortfall.gate, shortfall.dimension
    on_node = gate in (NODE, NODE_STORAGE_FREE)
    if gate == NODE and BY_NAME[name].per_device:
        node, claim = view.node(), view.claim_of(demand.namespace)
        is_held = claim is not None and claim.hard and claim.amount.gpu_memory_bytes
        held_to = claim.gpu_device if claim is not None and is_held else None
        for device, size in node.gpu_allocatable if node else ():
            pool = gpu_pool(device)
            room = view.balance(HEADROOM, pool) + view.balance(
                claimed_account(demand.namespace), pool
            )
            if size >= shortfall.requested and held_to in (None, device):
                share = share_of(view, demand, shortfall, device)
                yield Need(gate, name, device, shortfall.requested - room, share, on_node)
        return
    amount = shortfall.requested + shortfall.committed - shortfall.limit
    yield Need(gate, name, None, amount, share_of(view, demand, shortfall, None), on_node)


def _charged(row: Reservation, name: str) -> int:
    amount: int = getattr(row.charged, name)
    return amount


def _most(row: Reservation, name: str, whole: int) -> int:
    if row.phase == RETIRING:
        return 0
    most = most_of(row, name)
    return whole if most is None else most
