"""Exposure: what all entries may use together if each goes to its limit, and the bound on it.

Requests are promised and never more than there is. Limits may be more; how much more is shown, and
may be bounded. A sandbox without a limit may use all that the node can promise, and counts so; a
lease, which has no limit, counts with its request. Source: docs/decisions/0027-exposure.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.refusal import NODE_EXPOSURE, short
from ledger.reservation import RETIRING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.admission import AdmissionPolicy, Demand
    from ledger.refusal import Shortfall
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Node

LIMITED = ("cpu_milli", "memory_bytes", "ephemeral_storage_bytes")
"""The dimensions that have limits."""


class Exposure:
    """The sums over entries, and in each dimension how many have no limit."""

    __slots__ = ("limits", "unlimited")

    def __init__(self, rows: Iterable[Reservation] = ()) -> None:
        self.limits = dict.fromkeys(LIMITED, 0)
        self.unlimited = dict.fromkeys(LIMITED, 0)
        for row in rows:
            self.add(row, 1)

    def copy(self) -> Exposure:
        """Return an independent one with the same sums."""
        other = Exposure()
        other.limits, other.unlimited = dict(self.limits), dict(self.unlimited)
        return other

    def add(self, row: Reservation, count: int) -> None:
        """Count *row* in (1) or out (-1); what is retiring uses nothing more."""
        if row.phase == RETIRING:
            return
        for name in LIMITED:
            most = most_of(row, name)
            if most is None:
                self.unlimited[name] += count
            else:
                self.limits[name] += count * most

    def amount(self, name: str, whole: int) -> int:
        """Return the exposure in *name*, of which a node can promise *whole*."""
        return self.limits[name] + self.unlimited[name] * whole


def most_of(row: Reservation, name: str) -> int | None:
    """Return the most that *row* may use of *name*; None is as much as there is."""
    most: int | None = getattr(row.limits, name)
    if most is None and (not row.is_sandbox or name == "ephemeral_storage_bytes"):
        most = getattr(row.requests, name)  # a lease; or a root that can't be written to
    return most


def whole_of(node: Node, name: str) -> int:
    """Return all that *node* can promise of *name*."""
    amount: int = getattr(node.effective_allocatable, name)
    return amount


def shortfalls(
    view: State,
    node: Node,
    demand: Demand,
    claimed: Mapping[str, int],
    policy: AdmissionPolicy,
) -> Iterator[Shortfall]:
    """Yield each dimension in which *demand* would take the exposure over its bound.

    One that can use no more of it than its namespace has *claimed* and not drawn, by pool, is never
    over it.
    """
    for name, numerator, denominator in policy.max_exposure:
        whole = whole_of(node, name)
        most: int | None = getattr(demand.requests, name)
        if demand.limits is not None and name != "ephemeral_storage_bytes":
            most = getattr(demand.limits, name)
        elif demand.limits is not None:
            most = demand.limits.ephemeral_storage_bytes or most
        wanted = whole if most is None else most
        limit = whole * numerator // denominator
        room = limit - view.exposure().amount(name, whole)
        if wanted and wanted > room and wanted > claimed.get(name, 0):
            yield short(NODE_EXPOSURE, name, wanted, limit, room)
