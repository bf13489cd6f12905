"""Recompute from the rows alone what the accounts must say, and report every contradiction.

Written without a line of `state` or `admission`, so that one mistake can't hide in both.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.reservation import LANES, OWNER_KINDS, PHASES, Reservation
from ledger.tables import (
    Claim,
    Namespace,
    Nested,
    Network,
    Node,
    RequestRecord,
    Standing,
    Ticket,
    Wait,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ledger.resources import Resources
    from ledger.tables import Row

Balances = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Violation:
    """One contradiction: a stable code and a sentence with the numbers."""

    code: str
    message: str


def check(
    rows: Mapping[str, Mapping[str, Row]], balances: Mapping[tuple[str, str], int]
) -> list[Violation]:
    """Return every violation in *rows* (by table, then key) and *balances* (account, pool)."""
    return [
        *_check_balances(rows, balances),
        *_check_reservations(rows),
        *_check_claims(rows),
        *_check_nested(rows),
        *_check_references(rows),
        *_check_standing(rows),
        *_check_queue(rows),
        *_check_networks(rows),
    ]


def expected_balances(rows: Mapping[str, Mapping[str, Row]]) -> Balances:
    """Return what every account must hold, zero balances left out."""
    expected: Counter[tuple[str, str]] = Counter()
    promised: Counter[str] = Counter()
    for table in rows.values():
        for row in table.values():
            if isinstance(row, Node):
                promised.update(_promised(row))
                for pool, amount in _amounts(row.system_reserve, None):
                    expected["system_reserve", pool] += amount
                    expected["capacity", pool] -= amount
            else:
                for account, pool, amount in _held_by(row):
                    if amount:
                        expected[account, pool] += amount
                        expected["headroom", pool] -= amount
    for pool, amount in promised.items():
        expected["headroom", pool] += amount
        expected["capacity", pool] -= amount
    return {key: amount for key, amount in expected.items() if amount}


def trial_balance(
    start: Mapping[tuple[str, str], int], postings: Iterable[tuple[str, str, int]]
) -> tuple[Balances, list[Violation]]:
    """Add *postings* (account, pool, amount) to *start*; report every pool that does not sum to 0.

    Returns:
        (balances, violations): the closing balances without zeros, and what is out of balance.
    """
    closing: Counter[tuple[str, str]] = Counter(dict(start))
    for account, pool, amount in postings:
        closing[account, pool] += amount
    sums: Counter[str] = Counter()
    for (_, pool), amount in closing.items():
        sums[pool] += amount
    violations = [
        Violation("out-of-balance", f"the accounts of {pool} sum to {total} instead of 0")
        for pool, total in sums.items()
        if total
    ]
    return {key: amount for key, amount in closing.items() if amount}, violations


def _amounts(resources: Resources, device: str | None) -> list[tuple[str, int]]:
    return [
        ("cpu_milli", resources.cpu_milli),
        ("memory_bytes", resources.memory_bytes),
        ("ephemeral_storage_bytes", resources.ephemeral_storage_bytes),
        ("sandbox_slots", resources.sandbox_slots),
        (f"gpu_memory_bytes/{device}", resources.gpu_memory_bytes),
    ]


def _promised(node: Node) -> dict[str, int]:
    promised = dict(_amounts(node.effective_allocatable, None))
    promised.update({f"gpu_memory_bytes/{device}": size for device, size in node.gpu_allocatable})
    return promised


def _held_by(row: Row) -> Iterator[tuple[str, str, int]]:
    if isinstance(row, Reservation):
        name = "retiring" if row.phase == "retiring" else f"committed:{row.namespace}"
        for pool, amount in _amounts(row.charged, row.gpu_device):
            yield name, pool, amount
    elif isinstance(row, Claim):
        drawn = dict(_amounts(row.drawdown, row.gpu_device))
        for pool, amount in _amounts(row.amount, row.gpu_device):
            yield f"claimed:{row.namespace}", pool, max(0, amount - drawn[pool])
    elif isinstance(row, Nested):
        for pool, amount in _amounts(row.amount, row.gpu_device):
            yield f"committed:{row.namespace}", pool, -amount
    elif isinstance(row, Ticket):
        for pool, amount in _amounts(row.held, row.gpu_device):
            yield "held", pool, amount


def _check_balances(
    rows: Mapping[str, Mapping[str, Row]], balances: Mapping[tuple[str, str], int]
) -> Iterator[Violation]:
    expected = expected_balances(rows)
    for account, pool in sorted({*expected, *balances}):
        have, want = balances.get((account, pool), 0), expected.get((account, pool), 0)
        if have != want:
            yield Violation(
                "balance-differs", f"{account} holds {have} {pool}, its entries say {want}"
            )


def _check_reservations(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    lanes: dict[int, str] = {}
    for key, row in rows.get("reservations", {}).items():
        if not isinstance(row, Reservation):
            yield Violation("wrong-row", f"reservations has a row of another table at {key}")
            continue
        if row.id != key:
            yield Violation("wrong-key", f"reservation {row.id} stands under the key {key}")
        if row.phase not in PHASES:
            yield Violation("unknown-phase", f"reservation {key} has the phase {row.phase!r}")
        if row.owner.kind not in OWNER_KINDS:
            yield Violation("unknown-owner", f"reservation {key} is of kind {row.owner.kind!r}")
        yield from _check_amounts(key, row)
        if row.lane is None:
            continue
        if not 0 <= row.lane < LANES:
            yield Violation("lane-out-of-range", f"reservation {key} has lane {row.lane}")
        if row.lane in lanes:
            yield Violation("lane-shared", f"lane {row.lane}: {lanes[row.lane]} and {key}")
        lanes[row.lane] = key


def _check_amounts(key: str, row: Reservation) -> Iterator[Violation]:
    charged = dict(_amounts(row.charged, row.gpu_device))
    for pool, requested in _amounts(row.requests, row.gpu_device):
        name = pool.partition("/")[0]
        limit = getattr(row.limits, name, None)
        if requested < 0 or charged[pool] < 0:
            yield Violation("negative-amount", f"reservation {key} holds {charged[pool]} {pool}")
        if limit is not None and not 0 < requested <= limit:
            yield Violation(
                "request-over-limit", f"reservation {key}: {name} {requested} of limit {limit}"
            )
        may_differ = row.phase == "retiring" and name == "memory_bytes"
        if charged[pool] != requested and not (may_differ and charged[pool] > requested):
            yield Violation(
                "charge-differs",
                f"reservation {key} requests {requested} {pool}, but {charged[pool]} is charged",
            )
    if row.requests.gpu_memory_bytes and row.gpu_device is None:
        yield Violation("no-device", f"reservation {key} holds GPU memory of no device")


def _check_claims(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    drawn: Counter[tuple[str, str]] = Counter()
    requested: Counter[tuple[str, str]] = Counter()
    for row in rows.get("reservations", {}).values():
        if isinstance(row, Reservation) and row.claim_id is not None:
            for pool, amount in _amounts(row.charged, row.gpu_device):
                drawn[row.claim_id, pool] += amount
            for pool, amount in _amounts(row.requests, row.gpu_device):
                requested[row.claim_id, pool] += amount
    claimers: dict[str, str] = {}
    for key, row in rows.get("claims", {}).items():
        if not isinstance(row, Claim):
            continue
        if row.namespace in claimers:
            yield Violation("two-claims", f"{row.namespace}: {claimers[row.namespace]} and {key}")
        claimers[row.namespace] = key
        claimed = dict(_amounts(row.amount, row.gpu_device))
        if row.amount.gpu_memory_bytes and row.gpu_device is None:
            yield Violation("no-device", f"claim {key} holds GPU memory of no device")
        for pool, amount in _amounts(row.drawdown, row.gpu_device):
            name, inside = pool.partition("/")[0], (key, pool)
            if amount != drawn[inside]:
                yield Violation(
                    "drawdown-differs",
                    f"claim {key} says {amount} {name}, its entries draw {drawn[inside]}",
                )
            if row.hard and 0 < claimed[pool] < requested[inside]:
                yield Violation(
                    "claim-overdrawn",
                    f"claim {key} has {claimed[pool]} {name}, {requested[inside]} is requested",
                )


def _check_nested(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    reservations = rows.get("reservations", {})
    drawn: Counter[tuple[str, str]] = Counter()
    for key, row in rows.get("nested", {}).items():
        if not isinstance(row, Nested):
            continue
        child, parent = reservations.get(key), reservations.get(row.parent_id)
        if not isinstance(child, Reservation) or not isinstance(parent, Reservation):
            yield Violation(
                "nested-alone", f"{key} within {row.parent_id}: one of them is not there"
            )
            continue
        if {child.owner.kind, parent.owner.kind} != {"external"} or child.claim_id is not None:
            yield Violation(
                "nested-kind", f"{key} within {row.parent_id}: not both are plain leases"
            )
        if {row.namespace} != {child.namespace, parent.namespace}:
            yield Violation(
                "nested-namespace", f"{key} within {row.parent_id}: not in one namespace"
            )
        if row.amount != child.charged or row.gpu_device not in {None, parent.gpu_device}:
            yield Violation("nested-differs", f"{key} is charged another amount than it draws")
        for pool, amount in _amounts(row.amount, row.gpu_device):
            drawn[row.parent_id, pool] += amount
    for (parent_id, pool), amount in drawn.items():
        row = reservations[parent_id]
        held = dict(_amounts(row.charged, row.gpu_device)) if isinstance(row, Reservation) else {}
        if amount > held.get(pool, 0):
            yield Violation(
                "parent-overdrawn", f"{amount} {pool} is drawn from {parent_id}, which has less"
            )


def _check_references(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    namespaces = rows.get("namespaces", {})
    if not isinstance(namespaces.get("default"), Namespace):
        yield Violation("no-default-namespace", "the namespace default does not exist")
    for table in ("reservations", "claims", "services", "tickets", "limit_ranges"):
        for key, row in rows.get(table, {}).items():
            name = getattr(row, "namespace", None)
            if name not in namespaces:
                yield Violation("no-namespace", f"{table} {key} is in {name!r}, which is unknown")
    reservations = rows.get("reservations", {})
    for key in rows.get("beats", {}):
        if key not in reservations:
            yield Violation("beat-of-nobody", f"a heartbeat of {key}, which does not exist")
    for key, row in rows.get("requests", {}).items():
        if isinstance(row, RequestRecord) and ":" not in key:
            yield Violation("wrong-key", f"request record {key!r} names no user")


def _check_standing(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    for key, row in rows.get("standings", {}).items():
        if not isinstance(row, Standing) or key != "node":
            yield Violation("wrong-key", f"a standing stands under the key {key}")
        elif row.state not in {"draining", "retired"} or not row.reason:
            yield Violation("unknown-standing", f"the node is {row.state!r}: {row.reason!r}")
        elif row.state == "retired":
            for table in ("reservations", "tickets", "services", "claims"):
                if left := len(rows.get(table, {})):
                    yield Violation(
                        "retired-with-entries", f"the node is retired and has {left} {table}"
                    )


def _check_queue(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    tickets, heads = rows.get("tickets", {}), []
    sequences: dict[int, str] = {}
    for key, row in rows.get("waits", {}).items():
        ticket = tickets.get(key)
        if not isinstance(row, Wait) or not isinstance(ticket, Ticket):
            yield Violation("wait-without-ticket", f"{key} waits and has no ticket")
            continue
        if ticket.id != key or key in rows.get("reservations", {}):
            yield Violation("wrong-key", f"ticket {ticket.id} at {key} waits, and may be granted")
        if row.priority not in range(10):
            yield Violation("unknown-priority", f"ticket {key} has priority {row.priority}")
        if ticket.sequence in sequences:
            yield Violation("shared-place", f"{sequences[ticket.sequence]} and {key} came as one")
        sequences[ticket.sequence] = key
        wanted = dict(_amounts(ticket.requests, ticket.gpu_device))
        for pool, amount in _amounts(ticket.held, ticket.gpu_device):
            if not 0 <= amount <= wanted[pool]:
                yield Violation(
                    "held-differs", f"ticket {key} holds {amount} {pool} of {wanted[pool]}"
                )
            elif amount and row.bypasses != 2:  # noqa: PLR2004 - written without the queue's code
                yield Violation(
                    "held-too-early", f"ticket {key} holds {pool}, passed by {row.bypasses} times"
                )
        if row.bypasses > 2:  # noqa: PLR2004
            yield Violation("passed-by", f"ticket {key} was passed by {row.bypasses} times")
        heads += [key] if row.bypasses == 2 else []  # noqa: PLR2004
    if len(heads) > 1:
        yield Violation("two-heads", f"room is held for {' and '.join(heads)}")
    if set(rows.get("pauses", {})) - {"node"}:
        yield Violation("wrong-key", "a pause stands under another key than node")


def _check_networks(rows: Mapping[str, Mapping[str, Row]]) -> Iterator[Violation]:
    ports: dict[tuple[str, int], str] = {}
    for key, row in rows.get("networks", {}).items():
        holder = rows.get("reservations", {}).get(key)
        if not isinstance(holder, Reservation) or holder.lane is None:
            yield Violation("network-of-nobody", f"a network of {key}, which is no sandbox")
        if not isinstance(row, Network) or row.mode not in {"bridge", "host"}:
            yield Violation("unknown-network", f"{key} has the network {row!r}")
            continue
        for protocol, port, _ in row.ports:
            other = ports.setdefault((protocol, port), key)
            if other != key:
                yield Violation("port-shared", f"{protocol}/{port}: {other} and {key}")
