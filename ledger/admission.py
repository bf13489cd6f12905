"""The one decider: whether a demand fits, and if not, every gate and dimension that says no.

`evaluate` is pure. It is called inside a ledger transaction, and by everything that explains,
waits or replays, so that no second opinion can exist. Gates, in order: what the host can run at
all, the cap on entries, the namespace's ceiling, the node's headroom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import CODES
from ledger.reservation import SANDBOX_LANES
from ledger.resources import BY_NAME, DIMENSIONS, Resources, dimension_of, gpu_pool
from ledger.state import HEADROOM, claimed_account, committed_account
from ledger.units import format_short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.resources import Dimension
    from ledger.state import State
    from ledger.tables import Node


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The bounds that are not resources; counts and milliseconds, each > 0."""

    entry_cap: int = 10_000
    namespace_entry_cap: int = 1_000
    facts_stale_after_ms: int = 15_000


@dataclass(frozen=True, slots=True)
class Demand:
    """What admission is asked for. `requires` are the capability keys that must be present."""

    namespace: str
    requests: Resources
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One gate that is short in one dimension; `short_by` > 0, amounts in the dimension's unit."""

    gate: str
    dimension: str
    requested: int
    committed: int
    limit: int
    available: int
    short_by: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """The demand fits; `gpu_device` is the device that was picked, if one was asked for."""

    generation: int
    facts_sequence: int
    gpu_device: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the demand does not fit. `shortfalls` has every one; `reasons` what the host lacks."""

    code: str
    diagnostic_code: str
    summary: str
    message: str
    generation: int
    facts_sequence: int
    retryable: bool
    retry_after_s: int | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    reasons: tuple[str, ...] = ()
    hint: str | None = None


ENTRIES = "entries"
NAMESPACE_ENTRIES = "namespace-entries"
NAMESPACE_QUOTA = "namespace-quota"
NAMESPACE_CLAIM = "namespace-claim"
NODE = "node"
NODE_STORAGE_FREE = "node-storage-free"
NODE_MEMORY_USE = "node-memory-use"

SUMMARIES = {
    "namespace_quota_exceeded": "namespace quota exceeded",
    "namespace_claim_exceeded": "namespace claim exceeded",
    "node_cpu_capacity_exhausted": "node CPU capacity exhausted",
    "node_memory_capacity_exhausted": "node memory capacity exhausted",
    "node_cpu_and_memory_capacity_exhausted": "node CPU and memory capacity exhausted",
    "node_ephemeral_storage_capacity_exhausted": "node ephemeral storage capacity exhausted",
    "node_gpu_memory_capacity_exhausted": "node GPU memory capacity exhausted",
    "runtime_slot_capacity_exhausted": "runtime slot capacity exhausted",
    "node_reservation_capacity_exhausted": "node reservation capacity exhausted",
}
"""The compact labels for people; the first five of the source document are kept to the byte."""

_NODE_CODES = {
    frozenset({"cpu_milli"}): "node_cpu_capacity_exhausted",
    frozenset({"memory_bytes"}): "node_memory_capacity_exhausted",
    frozenset({"cpu_milli", "memory_bytes"}): "node_cpu_and_memory_capacity_exhausted",
    frozenset({"ephemeral_storage_bytes"}): "node_ephemeral_storage_capacity_exhausted",
    frozenset({"gpu_memory_bytes"}): "node_gpu_memory_capacity_exhausted",
    frozenset({"sandbox_slots"}): "runtime_slot_capacity_exhausted",
}
_SELECTION_SUMMARY = "node selection failed"
_RETRY_AFTER_UNKNOWN_S = 10
_RETRY_AFTER_MOST_S = 60


def evaluate(
    view: State, facts: Facts | None, demand: Demand, now: Now, policy: AdmissionPolicy
) -> Admitted | Refusal:
    """Decide whether *demand* may be charged to *view*.

    Args:
        view: The state to decide on.
        facts: The last observation of the host, or None before the first.
        demand: What is asked for.
        now: The clocks; facts older than the policy allows refuse.
        policy: The caps.
    Returns:
        Admitted, or a Refusal with every failing gate and dimension.
    Raises:
        NotFound: The namespace does not exist.
    """
    namespace = view.namespace(demand.namespace)
    node = view.node()
    reasons = (*_standing_reasons(view), *_selection_reasons(node, facts, demand, now, policy))
    if node is None or facts is None:
        return _refuse(view, facts, now, reasons, ())
    device = _pick_device(view, node, demand)
    quota = namespace.quota
    shortfalls = (
        *_entry_shortfalls(view, demand, policy),
        *_quota_shortfalls(view, demand, quota),
        *_claim_shortfalls(view, demand),
        *_node_shortfalls(view, node, facts, demand, device),
        *_observed_shortfalls(view, node, facts, demand),
    )
    if reasons or shortfalls:
        return _refuse(view, facts, now, reasons, shortfalls)
    return Admitted(view.generation, facts.sequence, device)


def available(view: State, namespace: str, pool: str) -> int:
    """Return what *namespace* could still get from *pool*: headroom and its own undrawn claim."""
    return view.balance(HEADROOM, pool) + view.balance(claimed_account(namespace), pool)


def effective_allocatable(node: Node, dimension: Dimension, device: str | None) -> int:
    """Return all that *node* can promise in *dimension*, on *device* where there are devices."""
    if dimension.per_device:
        return dict(node.gpu_allocatable).get(device or "", 0)
    amount: int = getattr(node.effective_allocatable, dimension.name)
    return amount


def _standing_reasons(view: State) -> Iterator[str]:
    standing = view.standing()
    if standing is not None:
        yield f"this node is {standing.state}: {standing.reason}"


def _selection_reasons(
    node: Node | None, facts: Facts | None, demand: Demand, now: Now, policy: AdmissionPolicy
) -> Iterator[str]:
    if node is None or facts is None:
        yield "the host has not been observed yet"
        return
    age_ms = now.monotonic_ms - facts.observed_monotonic_ms
    if age_ms > policy.facts_stale_after_ms:
        yield f"the last observation of the host is {age_ms // 1000} s old"
    for key in demand.requires:
        if key not in facts.capabilities:
            yield f"capability {key} is absent"
    if demand.requests.gpu_memory_bytes and not node.gpu_allocatable:
        yield "capability gpu is absent"


def _pick_device(view: State, node: Node, demand: Demand) -> str | None:
    """Return the fullest device that still fits, so that large demands keep finding room.

    Where none fits it is the emptiest of those that ever could, whose shortfall is the smallest.
    """
    wanted = demand.requests.gpu_memory_bytes
    if not wanted or not node.gpu_allocatable:
        return None
    rooms = [
        (available(view, demand.namespace, gpu_pool(device)), size >= wanted, device)
        for device, size in node.gpu_allocatable
    ]
    fitting = [(room, device) for room, large, device in rooms if large and room >= wanted]
    if fitting:
        return min(fitting)[1]
    return max((large, room, device) for room, large, device in rooms)[2]


def _short(gate: str, dimension: str, requested: int, limit: int, room: int) -> Shortfall:
    """Return how short *requested*, which is more than *room*, falls."""
    at_hand = max(0, room)
    return Shortfall(gate, dimension, requested, limit - room, limit, at_hand, requested - at_hand)


def _entry_shortfalls(view: State, demand: Demand, policy: AdmissionPolicy) -> Iterator[Shortfall]:
    for gate, cap, namespace in (
        (ENTRIES, policy.entry_cap, ""),
        (NAMESPACE_ENTRIES, policy.namespace_entry_cap, demand.namespace),
    ):
        room = cap - view.entry_count(namespace)
        if room < 1:
            yield _short(gate, "entries", 1, cap, room)


def _quota_shortfalls(view: State, demand: Demand, quota: object) -> Iterator[Shortfall]:
    account = committed_account(demand.namespace)
    for dimension, requested in zip(DIMENSIONS, demand.requests.amounts(), strict=True):
        limit: int | None = getattr(quota, dimension.name) if requested else None
        if limit is None:
            continue
        room = limit - _sum_over_devices(view, account, dimension)
        if requested > room:
            yield _short(NAMESPACE_QUOTA, dimension.name, requested, limit, room)


def _claim_shortfalls(view: State, demand: Demand) -> Iterator[Shortfall]:
    claim = view.claim_of(demand.namespace)
    if claim is None or not claim.hard:
        return
    for dimension, requested in zip(DIMENSIONS, demand.requests.amounts(), strict=True):
        limit: int = getattr(claim.amount, dimension.name)
        room: int = limit - getattr(claim.drawdown, dimension.name)
        if requested and requested > room:
            yield _short(NAMESPACE_CLAIM, dimension.name, requested, limit, room)


def _node_shortfalls(
    view: State, node: Node, facts: Facts, demand: Demand, device: str | None
) -> Iterator[Shortfall]:
    for dimension, requested in zip(DIMENSIONS, demand.requests.amounts(), strict=True):
        if not requested or (dimension.per_device and device is None):
            continue
        pool = gpu_pool(device) if dimension.per_device and device else dimension.name
        limit = effective_allocatable(node, dimension, device)
        if dimension.name == "sandbox_slots":
            limit = min(limit, SANDBOX_LANES - len(facts.quarantined_lanes))
        room = min(available(view, demand.namespace, pool), limit)
        if requested > room:
            yield _short(NODE, dimension.name, requested, limit, room)


def _observed_shortfalls(
    view: State, node: Node, facts: Facts, demand: Demand
) -> Iterator[Shortfall]:
    """Compare with what the kernel says is really free, where that was measured."""
    storage = demand.requests.ephemeral_storage_bytes
    if storage and facts.storage_free_bytes is not None:
        name = "ephemeral_storage_bytes"
        limit = max(0, facts.storage_free_bytes - facts.storage_reserve_bytes)
        # What the namespace has claimed and not drawn is promised to this very demand.
        reserved = node.effective_allocatable.ephemeral_storage_bytes - available(
            view, demand.namespace, name
        )
        room = limit - max(0, reserved - (facts.storage_written_bytes or 0))
        if storage > room:
            yield _short(NODE_STORAGE_FREE, name, storage, limit, room)
    memory = demand.requests.memory_bytes
    if memory and facts.sandboxes_memory_bytes is not None:
        limit = node.effective_allocatable.memory_bytes
        room = limit - facts.sandboxes_memory_bytes
        if memory > room:
            yield _short(NODE_MEMORY_USE, "memory_bytes", memory, limit, room)


def _sum_over_devices(view: State, account: str, dimension: Dimension) -> int:
    if not dimension.per_device:
        return view.balance(account, dimension.name)
    return sum(
        amount
        for (holder, pool), amount in view.balances().items()
        if holder == account and dimension_of(pool) is dimension
    )


def _refuse(
    view: State,
    facts: Facts | None,
    now: Now,
    reasons: tuple[str, ...],
    shortfalls: tuple[Shortfall, ...],
) -> Refusal:
    code, summary = _code(reasons, shortfalls)
    row = CODES[code]
    if code == "node_selection_error":
        message = "; ".join(reasons)
        hint: str | None = "axern node doctor shows what this host can enforce, with remedies"
        if view.standing() is not None:
            hint = "axern node status shows since when; what runs goes on"
    else:
        message = f"{summary}: " + "; ".join(_words(shortfall) for shortfall in shortfalls)
        hint = _HINTS.get(code, "ask for less, or wait until something is released")
    return Refusal(
        code=code,
        diagnostic_code="node-selection-error" if reasons else "admission-blocked",
        summary=summary,
        message=message,
        generation=view.generation,
        facts_sequence=facts.sequence if facts else 0,
        retryable=row.retryable,
        retry_after_s=_retry_after_s(view, now) if row.retryable else None,
        shortfalls=shortfalls,
        reasons=reasons,
        hint=hint,
    )


_HINTS = {
    "request_exceeds_node": "this host can never hold it: ask for less",
    "namespace_quota_exceeded": "ask for less, release something of this namespace, "
    "or have its quota raised",
    "namespace_claim_exceeded": "ask for less, or have the claim grown",
}


def _code(reasons: tuple[str, ...], shortfalls: tuple[Shortfall, ...]) -> tuple[str, str]:
    """Return (code, summary): the host's fitness first, then the namespace's, then the node's."""
    if reasons:
        return "node_selection_error", _SELECTION_SUMMARY
    gates = {shortfall.gate for shortfall in shortfalls}
    for gate, code in (
        (NAMESPACE_QUOTA, "namespace_quota_exceeded"),
        (NAMESPACE_CLAIM, "namespace_claim_exceeded"),
    ):
        if gate in gates:
            return code, SUMMARIES[code]
    never = frozenset(s.dimension for s in shortfalls if s.gate == NODE and s.requested > s.limit)
    failing = never or frozenset(shortfall.dimension for shortfall in shortfalls)
    code = _NODE_CODES.get(failing, "node_reservation_capacity_exhausted")
    return "request_exceeds_node" if never else code, SUMMARIES[code]


def _words(shortfall: Shortfall) -> str:
    """Return *shortfall* for people: what is asked for is rounded up, what there is down."""
    dimension = BY_NAME.get(shortfall.dimension)
    label = dimension.label if dimension else shortfall.dimension
    exact = dimension.format if dimension else str
    return (
        f"{shortfall.gate} {label}: requested {format_short(shortfall.requested, exact, up=True)}, "
        f"committed {format_short(shortfall.committed, exact)} "
        f"of {format_short(shortfall.limit, exact)}, "
        f"short by {format_short(shortfall.short_by, exact, up=True)}"
    )


def _retry_after_s(view: State, now: Now) -> int:
    """Return the seconds to the next known release, 1 to 60."""
    deadlines = [
        reservation.expires_boottime_ms
        for reservation in view.reservations()
        if reservation.expires_boottime_ms is not None
    ]
    if not deadlines:
        return _RETRY_AFTER_UNKNOWN_S
    wait_ms = min(deadlines) - now.boottime_ms
    return min(_RETRY_AFTER_MOST_S, max(1, -(-wait_ms // 1000)))
