"""What a ledger's files say, put together without a line of `state`: rows and postings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ledger import codec
from ledger.clock import Now
from ledger.codec import Checkpoint, Commit, Tables
from ledger.files import Folder
from ledger.journal import Scan
from ledger.past import gives_up
from ledger.reader import stable
from ledger.tables import DEFAULT_NAMESPACE, NAMESPACES, ROW_TYPES, Namespace, Row


@dataclass(frozen=True, slots=True)
class Imbalance:
    """One operation whose postings do not sum to zero in a pool."""

    generation: int
    operation: str
    pool: str
    total: int


@dataclass(slots=True)
class Contents:
    """Rows, and the sums of all postings; `generation` is that of the last commit taken."""

    tables: Tables
    generation: int
    balances: dict[tuple[str, str], int]
    imbalances: list[Imbalance] = field(default_factory=list)

    def take(self, commit: Commit) -> None:
        """Add what *commit* did."""
        self.generation = commit.generation
        for change in commit.changes:
            sums: dict[str, int] = {}
            for account, pool, amount in change.postings:
                key = (account, pool)
                self.balances[key] = self.balances.get(key, 0) + amount
                sums[pool] = sums.get(pool, 0) + amount
            self.imbalances += [
                Imbalance(commit.generation, change.operation, pool, total)
                for pool, total in sums.items()
                if total
            ]
            for put in change.puts:
                if put.row is None:
                    self.tables[put.table].pop(put.key, None)
                else:
                    self.tables[put.table][put.key] = put.row

    def follows(self, commit: Commit) -> bool:
        """Tell whether *commit* is the next one, or that of a repair which leaps to its number."""
        wanted = self.generation + 1
        return commit.generation == wanted or gives_up(commit, wanted)

    def closing(self) -> dict[tuple[str, str], int]:
        """Return every balance that is not zero."""
        return {key: amount for key, amount in self.balances.items() if amount}


def of(base: Checkpoint) -> Contents:
    """Return what *base* says."""
    rows = {name: dict(table) for name, table in base.tables.items()}
    return Contents(rows, base.generation, dict(base.balances))


def at_birth(made_wall_ms: int = 0) -> Contents:
    """Return what a ledger says before its first commit; see `comparable`."""
    rows: Tables = {name: {} for name in ROW_TYPES}
    rows[NAMESPACES][DEFAULT_NAMESPACE] = Namespace(DEFAULT_NAMESPACE, created_wall_ms=made_wall_ms)
    return Contents(rows, 0, {})


def comparable(row: Row | None) -> Row | None:
    """Return *row* without what no line of the journal tells: when `default` was made."""
    if isinstance(row, Namespace) and row.name == DEFAULT_NAMESPACE:
        return replace(row, created_wall_ms=0)
    return row


@dataclass(frozen=True, slots=True)
class Present:
    """A ledger as its files have it now: `base` and what came after it.

    `clock` and `chain` are those of the last commit; `torn` is where a line stands that was never
    answered.
    """

    base: Checkpoint
    contents: Contents
    clock: Now
    chain: str
    torn: str | None


def read(folder: Folder) -> Present:
    """Return what the files in *folder* say.

    Raises:
        LedgerError: They can't be trusted, or change too fast to be read.
        OSError: They can't be read.
    """
    return stable(folder, _replay)


def _replay(folder: Folder, base: Checkpoint) -> Present:
    contents, clock = of(base), base.clock
    scan = Scan(folder, base.position, base.generation)
    for commit in scan:
        contents.take(commit)
        clock = commit.clock
    place = f"{scan.position.segment}, offset {scan.position.offset}"
    return Present(base, contents, clock, scan.position.chain, place if scan.torn else None)


def as_document(present: Present) -> dict[str, Any]:
    """Return the present state as one JSON object."""
    accounts: dict[str, dict[str, int]] = {}
    for (account, pool), amount in sorted(present.contents.closing().items()):
        accounts.setdefault(account, {})[pool] = amount
    rows = {
        name: {key: json.loads(codec.encode_row(row)) for key, row in table.items()}
        for name, table in present.contents.tables.items()
    }
    return {
        "schema": present.base.schema,
        "node_id": present.base.node_id,
        "generation": present.contents.generation,
        "balances": accounts,
        "tables": rows,
    }


def digest(contents: Contents) -> str:
    """Return the SHA-256 of all rows and accounts, whatever their order, in hexadecimal."""
    total = hashlib.sha256()
    for name in sorted(contents.tables):
        for key, row in sorted(contents.tables[name].items()):
            total.update(f"{name}\n{key}\n".encode())
            total.update(codec.encode_row(comparable(row) or row) + b"\n")
    for (account, pool), amount in sorted(contents.closing().items()):
        total.update(f"{account}\n{pool}\n{amount}\n".encode())
    return total.hexdigest()


def differences(left: Contents, right: Contents) -> Iterator[str]:
    """Yield where *left* and *right* differ, as (table and key) or (account and pool)."""
    for name in ROW_TYPES:
        ours, theirs = left.tables.get(name, {}), right.tables.get(name, {})
        for key in sorted({*ours, *theirs}):
            if comparable(ours.get(key)) != comparable(theirs.get(key)):
                yield f"{name} {key}"
    ours_sums, their_sums = left.closing(), right.closing()
    for account, pool in sorted({*ours_sums, *their_sums}):
        if ours_sums.get((account, pool)) != their_sums.get((account, pool)):
            yield f"{account} {pool}"
