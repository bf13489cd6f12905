"""Namespaces, quotas and claims as the JSON objects of the API, for daemon and offline reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from axern.api.views import resources_view
from ledger import limit_range, tables
from ledger.claims import overdrawn
from ledger.errors import InvalidArgument, NotFound
from ledger.reservation import RETIRING
from ledger.resources import DIMENSIONS, OptionalResources, Resources
from ledger.tables import LimitRange
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ledger.clock import Now
    from ledger.state import State
    from ledger.tables import Claim, Namespace

Json = dict[str, Any]
HARD, ADVISORY = "hard", "advisory"
PRESSURE_PERCENT = 80
"""From this part of any ceiling on a namespace is under pressure."""


def namespaces(state: State) -> list[Json]:
    """Return every namespace by name, with what bounds a request in it."""
    return [namespace_view(state, row.name) for row in _rows(state)]


def namespace_view(state: State, name: str) -> Json:
    """Return one namespace.

    Raises:
        NotFound: There is none of that name.
    """
    row = state.namespace(name)
    bounds = state.limit_range(name) or LimitRange(name)
    claim = state.claim_of(name)
    return {
        "name": name,
        "created_at": format_rfc3339(row.created_wall_ms) if row.created_wall_ms else None,
        "reservations": state.entry_count(name),
        "claim_id": claim.id if claim else None,
        "default_requests": _only(bounds.default_requests, limit_range.DEFAULT_REQUESTS),
        "default_limits": _only(bounds.default_limits, limit_range.DEFAULT_LIMITS),
        "minimum": _only(bounds.minimum, limit_range.RANGED),
        "maximum": _only(bounds.maximum, limit_range.RANGED),
        "ratios": dict.fromkeys(limit_range.LIMITED) | dict(bounds.ratios),
    }


def quotas(state: State, *, constrained: bool = False, pressure: bool = False) -> list[Json]:
    """Return the quota of every namespace by name, or only of those that are as said."""
    used = _used(state)
    views = [_quota_view(row, used.get(row.name, Resources())) for row in _rows(state)]
    return [
        view
        for view in views
        if (view["constrained"] or not constrained) and (view["pressure"] or not pressure)
    ]


def quota_view(state: State, name: str) -> Json:
    """Return the ceilings of one namespace, and how much of them is in use.

    Raises:
        NotFound: There is none of that name.
    """
    row = state.namespace(name)
    return _quota_view(row, _used(state).get(name, Resources()))


def claims(state: State, now: Now, namespace: str | None = None) -> list[Json]:
    """Return every claim, oldest first, of one namespace if named."""
    rows = (cast("Claim", row) for _, row in state.rows(tables.CLAIMS))
    return [claim_view(row, now) for row in rows if namespace in {None, row.namespace}]


def claim_view(row: Claim, now: Now) -> Json:
    """Return one claim: what is claimed, drawn and left of it; absent means not claimed."""
    claimed = [each for each in DIMENSIONS if getattr(row.amount, each.name)]
    left = row.amount.minus(row.drawdown)
    expires_ms = row.expires_boottime_ms
    return {
        "id": row.id,
        "namespace": row.namespace,
        "mode": HARD if row.hard else ADVISORY,
        "amounts": {each.name: getattr(row.amount, each.name) for each in claimed},
        "drawdown": {each.name: getattr(row.drawdown, each.name) for each in claimed},
        "available": {each.name: getattr(left, each.name) for each in claimed},
        "overdrawn": list(overdrawn(row)),
        "gpu_device": row.gpu_device,
        "created_at": format_rfc3339(row.created_wall_ms),
        "expires_at": None
        if expires_ms is None
        else format_rfc3339(now.wall_ms + expires_ms - now.boottime_ms),
    }


def find_claim(state: State, word: str) -> Claim:
    """Return the claim whose id *word* is, or the unique beginning of.

    Raises:
        NotFound: None begins so.
        InvalidArgument: More than one does.
    """
    found = [cast("Claim", row) for key, row in state.rows(tables.CLAIMS) if key.startswith(word)]
    if not found:
        raise NotFound(
            f"no claim has an id that begins with {word[:64]!r}",
            hint="list them with: axern claim list",
        )
    if len(found) > 1:
        raise InvalidArgument(f"{len(found)} claims begin with {word}: give more of the id")
    return found[0]


def _rows(state: State) -> list[Namespace]:
    rows = (cast("Namespace", row) for _, row in state.rows(tables.NAMESPACES))
    return sorted(rows, key=lambda row: row.name)


def _used(state: State) -> Mapping[str, Resources]:
    """Return by namespace what counts against its quota: all but what retires."""
    used: dict[str, Resources] = {}
    for row in state.reservations():
        if row.phase != RETIRING:
            used[row.namespace] = used.get(row.namespace, Resources()).plus(row.charged)
    return used


def _quota_view(row: Namespace, used: Resources) -> Json:
    limits = resources_view(row.quota)
    in_use = resources_view(used)
    percent = {name: _percent(in_use[name], limit) for name, limit in limits.items()}
    return {
        "namespace": row.name,
        "quota": limits,
        "used": in_use,
        "available": {
            name: None if limit is None else max(0, limit - in_use[name])
            for name, limit in limits.items()
        },
        "percent": percent,
        "constrained": any(limit is not None for limit in limits.values()),
        "pressure": any(part is not None and part >= PRESSURE_PERCENT for part in percent.values()),
    }


def _percent(used: int, limit: int | None) -> int | None:
    """Return how much of *limit* is used, rounded down; of a limit of 0 all."""
    if limit is None:
        return None
    return used * 100 // limit if limit else 100


def _only(values: OptionalResources, names: tuple[str, ...]) -> Json:
    return {name: getattr(values, name) for name in names}
