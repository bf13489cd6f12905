"""What the rows of a change move between accounts, as balanced postings.

What a row holds is one table, `_HOLDINGS`; the postings of a change are the difference that its
rows make there, balanced against `headroom`. So every change sums to zero in every pool, whatever
it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger import tables
from ledger.reservation import RETIRING
from ledger.resources import by_pool, gpu_pool
from ledger.state import (
    CAPACITY,
    HEADROOM,
    HELD,
    RETIRING_ACCOUNT,
    SYSTEM_RESERVE,
    Change,
    claimed_account,
    committed_account,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ledger.facts import Facts
    from ledger.reservation import Reservation
    from ledger.state import Posting, Put, State
    from ledger.tables import Claim, Nested, Node, Ticket

    Holding = tuple[str, Mapping[str, int]]
    """An account, and what is held there by pool."""


def _held_by_reservation(row: Reservation) -> Iterable[Holding]:
    account = RETIRING_ACCOUNT if row.phase == RETIRING else committed_account(row.namespace)
    return ((account, by_pool(row.charged, row.gpu_device)),)


def _held_by_claim(row: Claim) -> Iterable[Holding]:
    rest = row.amount.minus(row.drawdown)
    return ((claimed_account(row.namespace), by_pool(rest, row.gpu_device)),)


def _held_by_ticket(row: Ticket) -> Iterable[Holding]:
    return ((HELD, by_pool(row.held, row.gpu_device)),)


def _held_by_nested(row: Nested) -> Iterable[Holding]:
    drawn = by_pool(row.amount, row.gpu_device)
    return ((committed_account(row.namespace), {pool: -each for pool, each in drawn.items()}),)


def _held_by_node(row: Node) -> Iterable[Holding]:
    for pool, amount in by_pool(row.system_reserve, None).items():
        yield SYSTEM_RESERVE, {pool: amount}
        yield CAPACITY, {pool: -amount}
    promised = by_pool(row.effective_allocatable, None)
    promised |= {gpu_pool(device): size for device, size in row.gpu_allocatable}
    yield CAPACITY, {pool: -amount for pool, amount in promised.items() if amount}


_HOLDINGS: Mapping[str, Callable[..., Iterable[Holding]]] = {
    tables.RESERVATIONS: _held_by_reservation,
    tables.CLAIMS: _held_by_claim,
    tables.TICKETS: _held_by_ticket,
    tables.NESTED: _held_by_nested,
    tables.NODES: _held_by_node,
}
"""What a row of each table holds; `headroom` is left to balance it.

Rows of the other tables hold nothing.
"""


def postings_for(view: State, puts: Iterable[Put]) -> tuple[Posting, ...]:
    """Return the postings that *puts* cause, balanced against `headroom` in every pool."""
    moves = _moves(view, puts)
    if len(moves) == 1:  # an entry comes or goes: there is nothing to add up
        sign, account, pools = moves[0]
        found: list[Posting] = []
        for pool, amount in pools.items():
            found += ((account, pool, sign * amount), (HEADROOM, pool, -sign * amount))
        return tuple(found)
    sums: dict[tuple[str, str], int] = {}
    for sign, account, pools in moves:
        for pool, amount in pools.items():
            key, rest = (account, pool), (HEADROOM, pool)
            sums[key] = sums.get(key, 0) + sign * amount
            sums[rest] = sums.get(rest, 0) - sign * amount
    return tuple([(account, pool, amount) for (account, pool), amount in sums.items() if amount])


def _moves(view: State, puts: Iterable[Put]) -> list[tuple[int, str, Mapping[str, int]]]:
    """Return (-1 or 1, account, amounts by pool) for what each row held and will hold."""
    moves = []
    for put in puts:
        holdings = _HOLDINGS.get(put.table)
        if holdings is None:
            continue
        for sign, row in ((-1, view.row(put.table, put.key)), (1, put.row)):
            if row is not None:
                for account, pools in holdings(row):
                    moves.append((sign, account, pools))
    return moves


def change(
    view: State,
    operation: str,
    puts: tuple[Put, ...],
    *,
    by: str = "daemon",
    note: str = "",
    facts: Facts | None = None,
    result: object = None,
) -> Change:
    """Return the change that performs *puts* with the postings that belong to them."""
    return Change(operation, puts, postings_for(view, puts), by, note, facts, result)
