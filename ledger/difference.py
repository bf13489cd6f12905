"""Where the journal says one thing and what was decided again another."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ledger.state import Change, Put

DECISION = "decision"
ROWS = "rows"
POSTINGS = "postings"
PHASE = "phase"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Difference:
    """One operation that comes out otherwise: what the journal says, and what it should say.

    `kind` is `decision` (it would be refused), `rows`, `postings`, `phase`, or `checkpoint` where
    the checkpoint of that generation has other rows.
    """

    kind: str
    generation: int
    place: str
    operation: str
    id: str
    journaled: str
    recomputed: str


def rows_that_differ(change: Change, made: Iterable[Put]) -> Iterator[Difference]:
    """Compare the rows of *change* with those that must have been *made*."""
    puts = {(put.table, put.key): put.row for put in change.puts}
    wanted = {(put.table, put.key): put.row for put in made}
    if wanted != puts:
        key = min(key for key in wanted.keys() | puts.keys() if wanted.get(key) != puts.get(key))
        yield difference(ROWS, change, " ".join(key), *apart(puts.get(key), wanted.get(key)))


def apart(told: object, wanted: object) -> tuple[str, str]:
    """Return the fields in which two rows differ, as each has them; no row is `nothing`."""
    if type(told) is not type(wanted):
        return _kind(told), _kind(wanted)
    names = [
        each.name
        for each in fields(told)  # type: ignore[arg-type]  # rows are dataclasses
        if getattr(told, each.name) != getattr(wanted, each.name)
    ]
    left, right = (
        ", ".join(f"{name} {getattr(row, name)}" for name in names) for row in (told, wanted)
    )
    return left, right


def _kind(row: object) -> str:
    return "nothing" if row is None else f"a {type(row).__name__}"


def difference(kind: str, change: Change, name: str, told: str, wanted: str) -> Difference:
    """Return what *change* says of *name*, and what it should say; where it stands is added."""
    return Difference(kind, 0, "", change.operation, name, told, wanted)
