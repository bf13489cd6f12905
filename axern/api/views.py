"""Ledger rows as the JSON objects of the API, shared by the daemon and the offline reader."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ledger import state as accounts
from ledger import tables
from ledger.admission import Admitted, effective_allocatable
from ledger.exposure import LIMITED, Exposure, whole_of
from ledger.reservation import RELEASED
from ledger.resources import DIMENSIONS, Resources, gpu_pool
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.clock import Now
    from ledger.history import History
    from ledger.refusal import Refusal
    from ledger.release import Released
    from ledger.reservation import Reservation
    from ledger.resources import Dimension
    from ledger.spec import ResolvedSpec
    from ledger.state import State
    from ledger.tables import Node
    from ledger.why import Explanation, Holder, Way

Json = dict[str, Any]

_NAMES = tuple(dimension.name for dimension in DIMENSIONS)
_amounts = attrgetter(*_NAMES)
_NOTHING = Resources()


def resources_view(resources: object) -> Json:
    """Return the amounts of a `Resources` or `OptionalResources` by dimension, None kept."""
    return dict(zip(_NAMES, _amounts(resources), strict=True))


def as_they_are(resources: object) -> object:
    """Return *resources*, which the encoder spells as it does their view: for what is only sent."""
    return resources


def reservation_view(
    reservation: Reservation,
    liveness: str,
    now: Now,
    beat_monotonic_ms: int | None = None,
    amounts: Callable[[object], object] = resources_view,
    parent_id: str | None = None,
) -> Json:
    """Return one reservation; times are RFC 3339 in UTC, None where something is not known.

    Deadlines and beats are kept on clocks that nobody can set, and shown as the wall clock of now.
    *amounts* is how resources are shown.
    """
    expires_ms = reservation.expires_boottime_ms
    latest_ms = reservation.expires_limit_boottime_ms
    return {
        "id": reservation.id,
        "namespace": reservation.namespace,
        "owner": {
            "kind": reservation.owner.kind,
            "uid": reservation.owner.uid,
            "name": reservation.owner.name,
        },
        "phase": reservation.phase,
        "liveness": liveness,
        "runtime_class": reservation.runtime,
        "requests": amounts(reservation.requests),
        "limits": amounts(reservation.limits),
        "charged": amounts(reservation.charged),
        "enforced": reservation.enforced,
        "gpu_device": reservation.gpu_device,
        "lane": reservation.lane,
        "created_at": format_rfc3339(reservation.created_wall_ms),
        "expires_at": _wall(expires_ms, now.boottime_ms, now.wall_ms),
        "latest_expiry_at": _wall(latest_ms, now.boottime_ms, now.wall_ms),
        "last_heartbeat_at": _wall(beat_monotonic_ms, now.monotonic_ms, now.wall_ms),
        "request_id": reservation.request_id,
        "parent_id": parent_id,
        "reason": reservation.reason,
    }


def released_view(
    released: Released, now: Now, amounts: Callable[[object], object] = resources_view
) -> Json:
    """Return the answer to a release: the last row, which holds nothing any more, and the proof.

    `reservation` is None where no entry is remembered. *amounts* is how resources are shown.
    """
    row = released.row
    return {
        "reservation": None if row is None else ended_view(row, now, amounts),
        "released": {
            "id": released.id,
            "at": format_rfc3339(released.at_wall_ms),
            "by": released.by,
            "evidence": released.evidence,
            "already": released.already,
        },
    }


def ended_view(
    row: Reservation, now: Now, amounts: Callable[[object], object] = resources_view
) -> Json:
    """Return an entry that is gone, from its last row; *amounts* is how resources are shown."""
    view = reservation_view(row, RELEASED, now, amounts=amounts)
    view["phase"] = RELEASED
    view["liveness"] = view["expires_at"] = view["latest_expiry_at"] = None
    view["charged"] = amounts(_NOTHING)
    return view


def history_view(history: History | None) -> Json:
    """Return the steps of an entry, oldest first, and what is missing of them."""
    if history is None:
        return {"steps": [], "omitted": 0, "damage": []}
    return {
        "steps": [
            {
                "at": format_rfc3339(step.wall_ms),
                "generation": step.generation,
                "operation": step.operation,
                "by": step.by,
                "phase": step.phase,
                "note": step.note,
                "reason": step.reason,
            }
            for step in history.steps
        ],
        "omitted": history.omitted,
        "damage": list(history.damage),
    }


def node_view(state: State, max_exposure: tuple[tuple[str, int, int], ...] = ()) -> Json:
    """Return the node's capacity and who holds how much of it, dimension by dimension.

    With what all may use together by their limits, and the bound on it, where there are any.
    """
    node = state.node()
    namespaces = [name for name, _ in state.rows(tables.NAMESPACES)]
    exposures = _exposures(state, node, max_exposure) if node else {}
    return {
        "generation": state.generation,
        "boot_id": state.clock.boot_id,
        "entries": state.entry_count(),
        "standing": _standing(state),
        "cpu_overcommit_ratio": node.cpu_overcommit_ratio if node else None,
        "dimensions": [
            _dimension_view(state, node, dimension, namespaces)
            | exposures.get(dimension.name, _NO_EXPOSURE)
            for dimension in DIMENSIONS
        ]
        if node
        else [],
    }


_NO_EXPOSURE: Json = {"exposure": None, "unlimited": None, "max_exposure": None}


def _exposures(
    state: State, node: Node, max_exposure: tuple[tuple[str, int, int], ...]
) -> dict[str, Json]:
    # Counted here and not kept up: most nodes have no bound, and commits need not pay for a view.
    counted = Exposure(state.outermost())
    bounds = {name: (above, below) for name, above, below in max_exposure}
    found = {}
    for name in LIMITED:
        whole = whole_of(node, name)
        above, below = bounds.get(name, (None, 1))
        found[name] = {
            "exposure": counted.amount(name, whole),
            "unlimited": counted.unlimited[name],
            "max_exposure": None if above is None else whole * above // below,
        }
    return found


def standing_view(state: State, node_id: str) -> Json:
    """Return whether the node takes new work, since when and why not, and what is on it."""
    return {
        "node_id": node_id,
        "generation": state.generation,
        "entries": state.entry_count(),
        "standing": _standing(state),
    }


def _standing(state: State) -> Json:
    row = state.standing()
    if row is None:
        return {"state": tables.OPEN, "reason": None, "by": None, "since": None}
    since = format_rfc3339(row.since_wall_ms)
    return {"state": row.state, "reason": row.reason, "by": row.by, "since": since}


def refusal_view(refusal: Refusal) -> Json:
    """Return the structure of a refusal, the same in every place where one is shown."""
    return {
        "code": refusal.code,
        "diagnostic_code": refusal.diagnostic_code,
        "admission_summary": refusal.summary,
        "retryable": refusal.retryable,
        "waitable": refusal.waitable,
        "retry_after_s": refusal.retry_after_s,
        "generation": refusal.generation,
        "facts_sequence": refusal.facts_sequence,
        "message": refusal.message,
        "hint": refusal.hint,
        "shortfalls": [
            {
                "gate": shortfall.gate,
                "dimension": shortfall.dimension,
                "requested": shortfall.requested,
                "committed": shortfall.committed,
                "limit": shortfall.limit,
                "available": shortfall.available,
                "short_by": shortfall.short_by,
                "claim_id": shortfall.claim_id,
            }
            for shortfall in refusal.shortfalls
        ],
        "reasons": list(refusal.reasons),
        **_explanation(refusal.explanation),
    }


def decision_view(
    decision: Admitted | Refusal, resolved: ResolvedSpec, run_id: str | None = None
) -> Json:
    """Return a decision that was asked for and has changed nothing; 200 whatever it says.

    `run_id` names the run that the request id was granted already.
    """
    return {
        "admitted": isinstance(decision, Admitted),
        "generation": decision.generation,
        "facts_sequence": decision.facts_sequence,
        "run_id": run_id,
        "requests": resources_view(resolved.requests),
        "limits": resources_view(resolved.limits),
        "gpu_device": decision.gpu_device if isinstance(decision, Admitted) else None,
        "refusal": None if isinstance(decision, Admitted) else refusal_view(decision),
    }


def _explanation(explanation: Explanation | None) -> Json:
    """Return who holds what and what would help; `explained` is false where nobody looked."""
    holders = explanation.holders if explanation else ()
    ways = explanation.would_fit_if if explanation else ()
    earliest_ms = explanation.earliest_fit_wall_ms if explanation else None
    return {
        "explained": explanation is not None,
        "holders": [_holder_view(holder) for holder in holders],
        "would_fit_if": [_way_view(way) for way in ways],
        "earliest_fit_at": None if earliest_ms is None else format_rfc3339(earliest_ms),
    }


def _holder_view(holder: Holder) -> Json:
    owner, expires_ms = holder.owner, holder.expires_wall_ms
    return {
        "gate": holder.gate,
        "dimension": holder.dimension,
        "kind": holder.kind,
        "amount": holder.amount,
        "count": holder.count,
        "id": holder.id,
        "namespace": holder.namespace,
        "owner": owner and {"kind": owner.kind, "uid": owner.uid, "name": owner.name},
        "phase": holder.phase,
        "expires_at": None if expires_ms is None else format_rfc3339(expires_ms),
    }


def _way_view(way: Way) -> Json:
    if way.requests:
        return {"request": dict(way.requests)}
    return {"release": list(way.release), "release_others": way.others, "fewest": way.is_fewest}


def _wall(at_ms: int | None, now_ms: int, wall_ms: int) -> str | None:
    return None if at_ms is None else format_rfc3339(wall_ms + at_ms - now_ms)


def _dimension_view(state: State, node: Node, dimension: Dimension, namespaces: list[str]) -> Json:
    if not dimension.per_device:
        amounts = _pool_view(state, node, dimension, None, namespaces)
        return {"name": dimension.name, "label": dimension.label, **amounts, "devices": []}
    devices = [
        {"device": device, **_pool_view(state, node, dimension, device, namespaces)}
        for device, _ in node.gpu_allocatable
    ]
    names = (*_FROM_NODE, *_FROM_ACCOUNTS)
    sums = {name: sum(device[name] for device in devices) for name in names}
    return {"name": dimension.name, "label": dimension.label, **sums, "devices": devices}


_FROM_NODE = ("capacity", "system_reserve", "allocatable", "effective_allocatable")
_FROM_ACCOUNTS = ("committed", "held", "claimed", "retiring", "headroom")


def _pool_view(
    state: State, node: Node, dimension: Dimension, device: str | None, namespaces: list[str]
) -> Json:
    pool = gpu_pool(device) if device is not None else dimension.name
    effective = effective_allocatable(node, dimension, device)
    capacity = effective if device else getattr(node.capacity, dimension.name)
    reserve = getattr(node.system_reserve, dimension.name)
    committed = sum(state.balance(accounts.committed_account(name), pool) for name in namespaces)
    claimed = sum(state.balance(accounts.claimed_account(name), pool) for name in namespaces)
    return {
        "capacity": capacity,
        "system_reserve": reserve,
        "allocatable": capacity - reserve,
        "effective_allocatable": effective,
        "committed": committed,
        "held": state.balance(accounts.HELD, pool),
        "claimed": claimed,
        "retiring": state.balance(accounts.RETIRING_ACCOUNT, pool),
        "headroom": max(0, state.balance(accounts.HEADROOM, pool)),
    }
