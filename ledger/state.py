"""The ledger's state in memory: rows, account balances, and forks on which a batch is tried.

A transition reads a state and returns a `Change`: the rows to put and the postings that go with
them (`ledger.postings`). Applying it decides nothing.

Accounts: `capacity` (the source, negative: all that the node can promise), `system_reserve`,
`headroom`, `held`, `claimed:<namespace>`, `committed:<namespace>`, `retiring`.
"""

# ruff: noqa: SLF001 - a fork looks into its base, which is a state like itself

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.deadlines import Deadlines, soonest_ms
from ledger.errors import NotFound
from ledger.exposure import Exposure
from ledger.quick import quick
from ledger.reservation import Reservation
from ledger.tables import Claim, LimitRange, Namespace, Node, Standing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.tables import Row, Ticket

CAPACITY = "capacity"
SYSTEM_RESERVE = "system_reserve"
HEADROOM = "headroom"
HELD = "held"
RETIRING_ACCOUNT = "retiring"

_NOTHING: Mapping[str, int] = {}


def committed_account(namespace: str) -> str:
    """Return the account that live reservations of *namespace* are charged to."""
    return f"committed:{namespace}"


def claimed_account(namespace: str) -> str:
    """Return the account of what *namespace* has claimed and not drawn yet."""
    return f"claimed:{namespace}"


@quick
@dataclass(frozen=True, slots=True)
class Put:
    """Set the row `key` of `table`; None removes it."""

    table: str
    key: str
    row: Row | None


Posting = tuple[str, str, int]
"""(account, pool, amount): add the amount, of either sign, to the pool of the account.

Each commit makes eight of them for each of its operations, and named ones take five times as long.
"""


@quick
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
    written and then merged, or dropped without a trace. `last_lane` is the one that was given last,
    `waiting` the number of tickets, `holding` of those for which something is held.
    """

    __slots__ = tuple(
        "_balances _base _counts _deadlines _exposure _lanes _tables clock generation "
        "holding last_lane waiting".split()
    )
    _exposure: Exposure | None

    def __init__(self, clock: Now, generation: int = 0, base: State | None = None) -> None:
        self.clock = clock
        self.generation = generation
        self.last_lane: int = base.last_lane if base else -1
        self.waiting: int = base.waiting if base else 0
        self.holding: int = base.holding if base else 0
        self._base = base
        self._tables: dict[str, dict[str, Row | None]] = {name: {} for name in tables.ROW_TYPES}
        self._balances: dict[str, dict[str, int]] = {}
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
        self.waiting, self.holding = fork.waiting, fork.holding

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
            state._count(reservation, 1)
            if reservation.lane is not None:
                state.last_lane = reservation.lane
        for row in state._tables[tables.TICKETS].values():
            state._count_ticket(cast("Ticket | None", row), 1)
        for (account, pool), amount in balances.items():
            state._balances.setdefault(account, {})[pool] = amount
        return state

    def copy(self) -> State:
        """Return an independent state with the rows of this one, which must have no base."""
        other = State(self.clock, self.generation)
        other._tables = {name: dict(rows) for name, rows in self._tables.items()}
        other._balances = {account: dict(pools) for account, pools in self._balances.items()}
        other._counts, other._lanes = dict(self._counts), dict(self._lanes)
        other.last_lane = self.last_lane
        other.waiting, other.holding = self.waiting, self.holding
        return other

    def all_rows(self) -> Mapping[str, Mapping[str, Row]]:
        """Return the rows by table, then key, of a state without a base."""
        return cast("Mapping[str, Mapping[str, Row]]", self._tables)

    def row(self, table: str, key: str) -> Row | None:
        """Return the row `key` of *table*, or None."""
        view: State = self
        rows = view._tables[table]
        while view._base is not None and key not in rows:
            view = view._base
            rows = view._tables[table]
        return rows.get(key)

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

    def outermost(self) -> Iterator[Reservation]:
        """Yield those reservations that hold for themselves, and not within a lease."""
        if self.is_empty(tables.NESTED):
            return self.reservations()
        return (row for row in self.reservations() if self.row(tables.NESTED, row.id) is None)

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
        if self.is_empty(tables.CLAIMS):
            return None
        claims = (cast("Claim", row) for _, row in self.rows(tables.CLAIMS))
        return next((claim for claim in claims if claim.namespace == namespace), None)

    def balance(self, account: str, pool: str) -> int:
        """Return the balance of *pool* in *account*; 0 for one never posted to."""
        return self.account(account).get(pool, 0)

    def account(self, name: str) -> Mapping[str, int]:
        """Return the balances of the account *name* by pool, as they are until the next change.

        A pool that was never posted to is not in it.
        """
        view: State = self
        while view._base is not None and name not in view._balances:
            view = view._base
        return view._balances.get(name, _NOTHING)

    def balances(self) -> dict[tuple[str, str], int]:
        """Return every non-zero balance keyed by (account, pool)."""
        merged = self._base.balances() if self._base else {}
        for account, pools in self._balances.items():
            merged.update({(account, pool): amount for pool, amount in pools.items()})
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
            self._exposure = Exposure(self.outermost())
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
                self._index(put.key, cast("Reservation | None", put.row))
            elif put.table == tables.TICKETS:
                self._count_ticket(cast("Ticket | None", self.row(put.table, put.key)), -1)
                self._count_ticket(cast("Ticket | None", put.row), 1)
            own = self._tables[put.table]
            if put.row is None and self._base is None:
                own.pop(put.key, None)
            else:
                own[put.key] = put.row
            if self._deadlines is not None and put.table == tables.RESERVATIONS:
                self._deadlines.note(put.key)
        for account, pool, amount in change.postings:
            pools = self._balances.get(account)
            if pools is None:  # the first posting here: what a fork changes is its own
                pools = self._balances[account] = dict(self.account(account))
            pools[pool] = pools.get(pool, 0) + amount

    def is_empty(self, table: str) -> bool:
        """Tell whether *table* has no row; a fork that took the last one may not see it."""
        view: State = self
        while view._base is not None and not view._tables[table]:
            view = view._base
        return not view._tables[table]

    def _index(self, key: str, after: Reservation | None) -> None:
        """Keep up what is derived from reservations, before *after* takes the place of its row."""
        before = self.find_reservation(key)
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)
            if before is None and after.lane is not None:
                self.last_lane = after.lane

    def _count_ticket(self, ticket: Ticket | None, count: int) -> None:
        if ticket is not None:
            self.waiting += count
            if any(ticket.held.amounts()):
                self.holding += count

    def _count(self, reservation: Reservation, count: int) -> None:
        counts = self._counts
        for namespace in ("", reservation.namespace):
            own = counts.get(namespace)
            counts[namespace] = (self.entry_count(namespace) if own is None else own) + count
        # What is nested may use no more than what it is drawn from; its place is made before it.
        if self._exposure is not None and self.row(tables.NESTED, reservation.id) is None:
            self._exposure.add(reservation, count)
        if reservation.lane is not None:
            self._lanes[reservation.lane] = reservation.id if count > 0 else None


def genesis(now: Now) -> State:
    """Return the state of a ledger at its birth: the namespace `default` and nothing else."""
    state = State(now)
    default = Namespace(tables.DEFAULT_NAMESPACE, created_wall_ms=now.wall_ms)
    state.apply(Change("genesis", (Put(tables.NAMESPACES, default.name, default),)))
    return state
