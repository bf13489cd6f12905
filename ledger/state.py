"""The ledger's state in memory and the pure transitions that change it, each as balanced postings.

A transition reads a state and returns a `Change`: the rows to put and the postings that go with
them. What a row holds in the accounts is one table, `_HOLDINGS`; the postings of a change are
the difference that its rows make there, balanced against `headroom`. So every change sums to zero
in every pool, whatever it does.

Accounts: `capacity` (the source, negative: all that the node can promise), `system_reserve`,
`headroom`, `held`, `claimed:<namespace>`, `committed:<namespace>`, `retiring`.
"""

# ruff: noqa: SLF001 - a fork looks into its base, which is a state like itself

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from ledger import tables
from ledger.deadlines import Deadlines, soonest_ms
from ledger.errors import NotFound
from ledger.exposure import Exposure
from ledger.reservation import RETIRING, Reservation
from ledger.resources import by_pool, gpu_pool
from ledger.tables import Claim, LimitRange, Namespace, Node, Standing, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.tables import Row

CAPACITY = "capacity"
SYSTEM_RESERVE = "system_reserve"
HEADROOM = "headroom"
HELD = "held"
RETIRING_ACCOUNT = "retiring"


def committed_account(namespace: str) -> str:
    """Return the account that live reservations of *namespace* are charged to."""
    return f"committed:{namespace}"


def claimed_account(namespace: str) -> str:
    """Return the account of what *namespace* has claimed and not drawn yet."""
    return f"claimed:{namespace}"


@dataclass(frozen=True, slots=True)
class Put:
    """Set the row `key` of `table`; None removes it."""

    table: str
    key: str
    row: Row | None


class Posting(NamedTuple):
    """Add `amount` (of either sign) to `pool` of `account`."""

    account: str
    pool: str
    amount: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one operation does: journaled whole, except `result`, which is the caller's answer.

    `by` names who asked, `note` why or with which evidence, `facts` what a decision was based on.
    A change without puts is answered without a journal line.
    """

    operation: str
    puts: tuple[Put, ...] = ()
    postings: tuple[Posting, ...] = ()
    by: str = "daemon"
    note: str = ""
    facts: Facts | None = None
    result: object = None


class State:
    """Tables, account balances and the counts derived from them, at one generation.

    A fork reads through to its base and keeps its own changes, so that a batch can be staged,
    written and then merged, or dropped without a trace. `last_lane` is the one that was given last.
    """

    __slots__ = tuple(
        "_balances _base _counts _deadlines _exposure _lanes _tables clock generation "
        "last_lane".split()
    )
    _exposure: Exposure | None

    def __init__(self, clock: Now, generation: int = 0, base: State | None = None) -> None:
        self.clock = clock
        self.generation = generation
        self.last_lane: int = base.last_lane if base else -1
        self._base = base
        self._tables: dict[str, dict[str, Row | None]] = {name: {} for name in tables.ROW_TYPES}
        self._balances: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}
        self._lanes: dict[int, str | None] = {}
        self._deadlines: Deadlines | None = None
        self._exposure = base._exposure.copy() if base and base._exposure else None

    def fork(self) -> State:
        """Return an empty overlay on this state; this state must not change while it is used."""
        return State(self.clock, self.generation, self)

    def merge(self, fork: State) -> None:
        """Take over what *fork*, made from this state, has changed."""
        for name, rows in fork._tables.items():
            mine = self._tables[name]
            for key, row in rows.items():
                if row is None and self._base is None:
                    mine.pop(key, None)
                else:
                    mine[key] = row
        if self._deadlines is not None:
            for key in fork._tables[tables.RESERVATIONS]:
                self._deadlines.note(key)
        self._balances.update(fork._balances)
        self._counts.update(fork._counts)
        self._lanes.update(fork._lanes)
        self._exposure = fork._exposure
        self.clock, self.generation = fork.clock, fork.generation
        self.last_lane = fork.last_lane

    @classmethod
    def load(
        cls,
        clock: Now,
        generation: int,
        rows: Mapping[str, Mapping[str, Row]],
        balances: Mapping[tuple[str, str], int],
    ) -> State:
        """Return the state that has *rows* (by table, then key) and *balances*."""
        state = cls(clock, generation)
        state._tables.update({table: dict(content) for table, content in rows.items()})
        for reservation in state.reservations():
            state._index(reservation, 1)
            if reservation.lane is not None:
                state.last_lane = reservation.lane
        state._balances = dict(balances)
        return state

    def copy(self) -> State:
        """Return an independent state with the rows of this one, which must have no base."""
        other = State(self.clock, self.generation)
        other._tables = {name: dict(rows) for name, rows in self._tables.items()}
        other._balances = dict(self._balances)
        other._counts, other._lanes = dict(self._counts), dict(self._lanes)
        other.last_lane = self.last_lane
        return other

    def all_rows(self) -> Mapping[str, Mapping[str, Row]]:
        """Return the rows by table, then key, of a state without a base."""
        return cast("Mapping[str, Mapping[str, Row]]", self._tables)

    def row(self, table: str, key: str) -> Row | None:
        """Return the row `key` of *table*, or None."""
        view: State = self
        while view._base is not None and key not in view._tables[table]:
            view = view._base
        return view._tables[table].get(key)

    def rows(self, table: str) -> Iterator[tuple[str, Row]]:
        """Yield every (key, row) of *table* in order of insertion, changed rows of a fork last."""
        own = self._tables[table]
        if self._base is not None:
            yield from ((key, row) for key, row in self._base.rows(table) if key not in own)
        yield from ((key, row) for key, row in own.items() if row is not None)

    def reservation(self, reservation_id: str) -> Reservation:
        """Return the reservation *reservation_id*.

        Raises:
            NotFound: No such entry.
        """
        reservation = self.find_reservation(reservation_id)
        if reservation is None:
            raise NotFound(
                f"no reservation has the id {reservation_id}",
                hint="list them with: axern reservations",
            )
        return reservation

    def find_reservation(self, reservation_id: str) -> Reservation | None:
        """Return the reservation *reservation_id*, or None."""
        return cast("Reservation | None", self.row(tables.RESERVATIONS, reservation_id))

    def reservations(self) -> Iterator[Reservation]:
        """Yield every reservation, in the order in which they were made."""
        return (cast("Reservation", row) for _, row in self.rows(tables.RESERVATIONS))

    def node(self) -> Node | None:
        """Return what the node can promise, or None before it was first observed."""
        return cast("Node | None", self.row(tables.NODES, tables.NODE_KEY))

    def standing(self) -> Standing | None:
        """Return why the node takes nothing new, or None where it does."""
        return cast("Standing | None", self.row(tables.STANDINGS, tables.NODE_KEY))

    def namespace(self, name: str) -> Namespace:
        """Return the namespace *name*.

        Raises:
            NotFound: No such namespace.
        """
        row = self.row(tables.NAMESPACES, name)
        if row is None:
            raise NotFound(
                f"no namespace is named {name!r}",
                hint="list them with: axern namespace list; root makes one: axern namespace create",
            )
        return cast("Namespace", row)

    def limit_range(self, namespace: str) -> LimitRange | None:
        """Return what bounds each request of *namespace*, or None."""
        return cast("LimitRange | None", self.row(tables.LIMIT_RANGES, namespace))

    def claim_of(self, namespace: str) -> Claim | None:
        """Return the claim of *namespace*, or None; claims are few, a scan is the index."""
        if self._is_empty(tables.CLAIMS):
            return None
        claims = (cast("Claim", row) for _, row in self.rows(tables.CLAIMS))
        return next((claim for claim in claims if claim.namespace == namespace), None)

    def balance(self, account: str, pool: str) -> int:
        """Return the balance of *pool* in *account*; 0 for one never posted to."""
        key = (account, pool)
        view: State = self
        while view._base is not None and key not in view._balances:
            view = view._base
        return view._balances.get(key, 0)

    def balances(self) -> dict[tuple[str, str], int]:
        """Return every non-zero balance keyed by (account, pool)."""
        merged = {**(self._base.balances() if self._base else {}), **self._balances}
        return {key: amount for key, amount in merged.items() if amount}

    def entry_count(self, namespace: str = "") -> int:
        """Return how many reservations exist, of one namespace or (with "") of all."""
        view: State = self
        while view._base is not None and namespace not in view._counts:
            view = view._base
        return view._counts.get(namespace, 0)

    def next_deadline_ms(self) -> int | None:
        """Return when the next entry ends by its deadline, on CLOCK_BOOTTIME; None if none does."""
        view: State | None = self
        levels = []
        while view is not None:
            view._deadlines = view._deadlines or Deadlines(view._tables[tables.RESERVATIONS])
            levels.append(view._deadlines)
            view = view._base
        return soonest_ms(levels)

    def exposure(self) -> Exposure:
        """Return what all entries may use together; the sums are kept up from the first call on."""
        if self._exposure is None:
            self._exposure = Exposure(self.reservations())
        return self._exposure

    def lane_holder(self, lane: int) -> str | None:
        """Return the id of the reservation that holds *lane*, or None."""
        view: State = self
        while view._base is not None and lane not in view._lanes:
            view = view._base
        return view._lanes.get(lane)

    def apply(self, change: Change) -> None:
        """Perform *change*: rows first, then postings. Never refuses: deciding is done before."""
        for put in change.puts:
            if put.table == tables.RESERVATIONS:
                before = cast("Reservation | None", self.row(put.table, put.key))
                after = cast("Reservation | None", put.row)
                self._index(before, -1)
                self._index(after, 1)
                if before is None and after is not None and after.lane is not None:
                    self.last_lane = after.lane
            own = self._tables[put.table]
            if put.row is None and self._base is None:
                own.pop(put.key, None)
            else:
                own[put.key] = put.row
            if self._deadlines is not None and put.table == tables.RESERVATIONS:
                self._deadlines.note(put.key)
        for account, pool, amount in change.postings:
            held = self._balances.get((account, pool))
            if held is None:
                held = self.balance(account, pool)
            self._balances[account, pool] = held + amount

    def _is_empty(self, table: str) -> bool:
        view: State = self
        while view._base is not None and not view._tables[table]:
            view = view._base
        return not view._tables[table]

    def _index(self, reservation: Reservation | None, count: int) -> None:
        if reservation is None:
            return
        for namespace in ("", reservation.namespace):
            self._counts[namespace] = self.entry_count(namespace) + count
        if self._exposure is not None:
            self._exposure.add(reservation, count)
        if reservation.lane is not None:
            self._lanes[reservation.lane] = reservation.id if count > 0 else None


def _held_by_reservation(row: Reservation) -> Iterable[tuple[str, str, int]]:
    retiring = row.phase == RETIRING
    account = RETIRING_ACCOUNT if retiring else committed_account(row.namespace)
    return [
        (account, pool, amount) for pool, amount in by_pool(row.charged, row.gpu_device).items()
    ]


def _held_by_claim(row: Claim) -> Iterable[tuple[str, str, int]]:
    account, rest = claimed_account(row.namespace), row.amount.minus(row.drawdown)
    return [(account, pool, amount) for pool, amount in by_pool(rest, row.gpu_device).items()]


def _held_by_ticket(row: Ticket) -> Iterable[tuple[str, str, int]]:
    return [(HELD, pool, amount) for pool, amount in by_pool(row.held, row.gpu_device).items()]


def _held_by_node(row: Node) -> Iterator[tuple[str, str, int]]:
    for pool, amount in by_pool(row.system_reserve, None).items():
        yield SYSTEM_RESERVE, pool, amount
        yield CAPACITY, pool, -amount
    promised = by_pool(row.effective_allocatable, None)
    promised |= {gpu_pool(device): size for device, size in row.gpu_allocatable}
    for pool, amount in promised.items():
        yield CAPACITY, pool, -amount


_HOLDINGS: Mapping[str, Callable[..., Iterable[tuple[str, str, int]]]] = {
    tables.RESERVATIONS: _held_by_reservation,
    tables.CLAIMS: _held_by_claim,
    tables.TICKETS: _held_by_ticket,
    tables.NODES: _held_by_node,
}
"""What a row of each table holds, as (account, pool, amount); `headroom` is left to balance it.

Rows of the other tables hold nothing.
"""


def postings_for(view: State, puts: Iterable[Put]) -> tuple[Posting, ...]:
    """Return the postings that *puts* cause, balanced against `headroom` in every pool."""
    deltas: dict[tuple[str, str], int] = {}
    for put in puts:
        holdings = _HOLDINGS.get(put.table)
        if holdings is None:
            continue
        for sign, row in ((-1, view.row(put.table, put.key)), (1, put.row)):
            if row is None:
                continue
            for account, pool, amount in holdings(row):
                key, rest = (account, pool), (HEADROOM, pool)
                deltas[key] = deltas.get(key, 0) + sign * amount
                deltas[rest] = deltas.get(rest, 0) - sign * amount
    return tuple(
        [Posting(account, pool, amount) for (account, pool), amount in deltas.items() if amount]
    )


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


def genesis(now: Now) -> State:
    """Return the state of a ledger at its birth: the namespace `default` and nothing else."""
    state = State(now)
    default = Namespace(tables.DEFAULT_NAMESPACE, created_wall_ms=now.wall_ms)
    state.apply(Change("genesis", (Put(tables.NAMESPACES, default.name, default),)))
    return state
