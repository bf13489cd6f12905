"""Namespaces, their quotas and what bounds each request in them, as pure functions to a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ledger import limit_range, tables
from ledger.errors import StateConflict
from ledger.limit_range import Edits
from ledger.postings import change
from ledger.resources import OptionalResources
from ledger.state import Change, Put
from ledger.tables import DEFAULT_NAMESPACE, LimitRange, Namespace

if TYPE_CHECKING:
    from ledger.clock import Now
    from ledger.state import State

_BLOCKERS = (
    (tables.RESERVATIONS, "reservation"),
    (tables.SERVICES, "service"),
    (tables.TICKETS, "waiting request"),
    (tables.CLAIMS, "claim"),
)
"""Tables whose rows keep a namespace from being deleted, and what one of their rows is called."""
_NAMED = 3
"""How many of each a refusal names; the rest is counted."""
_SHOWN_ID = 12


def create(view: State, name: str, now: Now, by: str) -> Change:
    """Make the namespace *name*; one that is there stays as it is. Its result is the row."""
    existing = view.row(tables.NAMESPACES, name)
    if existing is not None:
        return Change("namespace-create", result=existing)
    row = Namespace(name, created_wall_ms=now.wall_ms)
    return change(view, "namespace-create", (Put(tables.NAMESPACES, name, row),), by=by, result=row)


def delete(view: State, name: str, by: str) -> Change:
    """Take the namespace *name* away, with its quota. Its result is the last row.

    Raises:
        StateConflict: Something is left in it, which the message names; or it is `default`.
        NotFound: There is none.
    """
    row = view.namespace(name)
    if name == DEFAULT_NAMESPACE:
        raise StateConflict("the namespace default always exists and can't be deleted")
    left = blockers(view, name)
    if left:
        raise StateConflict(
            f"namespace {name} still has {'; '.join(left)}",
            hint=f"see: axern reservations list --namespace {name}; axern claim list",
        )
    puts = [Put(tables.NAMESPACES, name, None)]
    if view.limit_range(name) is not None:
        puts.append(Put(tables.LIMIT_RANGES, name, None))
    return change(view, "namespace-delete", tuple(puts), by=by, result=row)


def blockers(view: State, name: str) -> tuple[str, ...]:
    """Return what keeps *name* from being deleted, for people: each kind with ids."""
    found = []
    for table, word in _BLOCKERS:
        keys = [key for key, row in view.rows(table) if getattr(row, "namespace", None) == name]
        if keys:
            named = [key[:_SHOWN_ID] for key in keys[:_NAMED]]
            more = [f"{len(keys) - _NAMED} more"] if len(keys) > _NAMED else []
            plural = "" if len(keys) == 1 else "s"
            found.append(f"{len(keys)} {word}{plural} ({', '.join(named + more)})")
    return tuple(found)


def set_quota(view: State, name: str, ceilings: Mapping[str, int | None], by: str) -> Change:
    """Change the ceilings that are named, None is unlimited; the others stay. Result: the row.

    What is held beyond a ceiling stays; new admissions wait until it is below.

    Raises:
        NotFound: There is no such namespace.
    """
    row = view.namespace(name)
    return _with_quota(view, row, replace(row.quota, **ceilings), "quota-set", by)


def unset_quota(view: State, name: str, by: str) -> Change:
    """Take every ceiling away. Its result is the row.

    Raises:
        NotFound: There is no such namespace.
    """
    return _with_quota(view, view.namespace(name), OptionalResources(), "quota-unset", by)


def update(view: State, name: str, edits: Edits, by: str) -> Change:
    """Change what bounds each request in *name*: see `limit_range.edited`. Result: its row or None.

    Raises:
        InvalidArgument: The bounds would contradict each other.
        NotFound: There is no such namespace.
    """
    view.namespace(name)
    before = view.limit_range(name)
    after: LimitRange | None = limit_range.edited(before or LimitRange(name), edits)
    if after == LimitRange(name):
        after = None
    if after == before:
        return Change("namespace-update", result=before)
    puts = (Put(tables.LIMIT_RANGES, name, after),)
    return change(view, "namespace-update", puts, by=by, result=after)


def _with_quota(
    view: State, row: Namespace, quota: OptionalResources, operation: str, by: str
) -> Change:
    after = replace(row, quota=quota)
    if after == row:
        return Change(operation, result=row)
    puts = (Put(tables.NAMESPACES, row.name, after),)
    return change(view, operation, puts, by=by, result=after)
