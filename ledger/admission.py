"""The one decider: whether a demand fits, and if not, every gate and dimension that says no.

`evaluate` is pure. It is called inside a ledger transaction, and by everything that explains,
waits or replays, so that no second opinion can exist. Gates, in order: what the host can run at
all, the cap on entries, the namespace's ceiling, the node's headroom.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ledger import exposure, published
from ledger.quick import quick
from ledger.refusal import (
    ENTRIES,
    NAMESPACE_CLAIM,
    NAMESPACE_ENTRIES,
    NAMESPACE_QUOTA,
    NODE,
    NODE_MEMORY_USE,
    NODE_STORAGE_FREE,
    refuse,
    short,
)
from ledger.reservation import SANDBOX_LANES
from ledger.resources import DIMENSIONS, Resources, dimension_of, gpu_pool, pool
from ledger.state import HEADROOM, claimed_account, committed_account

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.refusal import Refusal, Shortfall
    from ledger.resources import Dimension, OptionalResources
    from ledger.state import State
    from ledger.tables import Node, Port

    Asked = Sequence[tuple[Dimension, int]]


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The bounds that are not resources; counts and milliseconds, each > 0.

    `max_exposure` has (dimension, numerator, denominator) where limits together are bounded, as a
    part of what the node can promise.
    """

    entry_cap: int = 10_000
    namespace_entry_cap: int = 1_000
    facts_stale_after_ms: int = 15_000
    max_exposure: tuple[tuple[str, int, int], ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Demand:
    """What admission is asked for. `requires` are the capability keys that must be present.

    `limits` are those of a sandbox, None for a lease; `ports` are to be published.
    """

    namespace: str
    requests: Resources
    requires: tuple[str, ...] = ()
    limits: OptionalResources | None = None
    ports: tuple[Port, ...] = ()


@quick
@dataclass(frozen=True, slots=True)
class Admitted:
    """The demand fits; `gpu_device` is the device that was picked, if one was asked for."""

    generation: int
    facts_sequence: int
    gpu_device: str | None = None


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
    reasons = reasons_of(view, node, facts, demand, now, policy)
    if node is None or facts is None:
        return refuse(view, facts, now, reasons, ())
    device = pick_device(view, node, demand)
    asked = _asked_of(demand.requests)
    free = _free(view, demand.namespace)
    shortfalls = (
        *_entry_shortfalls(view, demand, policy),
        *_quota_shortfalls(view, demand.namespace, asked, namespace.quota),
        *_claim_shortfalls(view, demand.namespace, asked),
        *_node_shortfalls(free, node, facts, asked, device),
        *_observed_shortfalls(free, node, facts, demand),
        *published.shortfalls(view, demand.ports),
        *(_exposure_shortfalls(view, node, demand, policy) if policy.max_exposure else ()),
    )
    if reasons or shortfalls:
        return refuse(view, facts, now, reasons, shortfalls)
    return Admitted(view.generation, facts.sequence, device)


def available(view: State, namespace: str, pool: str) -> int:
    """Return what *namespace* could still get from *pool*: headroom and its own undrawn claim."""
    return _free(view, namespace).get(pool, 0)


def _free(view: State, namespace: str) -> Mapping[str, int]:
    """Return what is `available` of every pool; one that is not there has nothing."""
    headroom, claimed = view.account(HEADROOM), view.account(claimed_account(namespace))
    if not claimed:
        return headroom
    return {pool: headroom.get(pool, 0) + claimed.get(pool, 0) for pool in {**headroom, **claimed}}


def effective_allocatable(node: Node, dimension: Dimension, device: str | None) -> int:
    """Return all that *node* can promise in *dimension*, on *device* where there are devices."""
    if dimension.per_device:
        return dict(node.gpu_allocatable).get(device or "", 0)
    amount: int = getattr(node.effective_allocatable, dimension.name)
    return amount


def promised(node: Node, facts: Facts, dimension: Dimension, device: str | None) -> tuple[int, int]:
    """Return what *node* can promise now, and what of its room is lost to lanes in quarantine."""
    limit = effective_allocatable(node, dimension, device)
    if dimension.name != "sandbox_slots":
        return limit, 0
    lanes = SANDBOX_LANES - len(facts.quarantined_lanes)
    return min(limit, lanes), max(0, min(limit, SANDBOX_LANES) - lanes)


def reasons_of(
    view: State,
    node: Node | None,
    facts: Facts | None,
    demand: Demand,
    now: Now,
    policy: AdmissionPolicy,
) -> tuple[str, ...]:
    """Return what keeps *demand* from this node whatever is free: its standing, what it lacks."""
    standing = view.standing()
    reasons = [] if standing is None else [f"this node is {standing.state}: {standing.reason}"]
    if node is None or facts is None:
        return (*reasons, "the host has not been observed yet")
    age_ms = now.monotonic_ms - facts.observed_monotonic_ms
    if age_ms > policy.facts_stale_after_ms:
        reasons.append(f"the last observation of the host is {age_ms // 1000} s old")
    reasons += [
        f"capability {key} is absent" for key in demand.requires if key not in facts.capabilities
    ]
    if demand.requests.gpu_memory_bytes and not node.gpu_allocatable:
        reasons.append("capability gpu is absent")
    return tuple(reasons)


def pick_device(view: State, node: Node, demand: Demand) -> str | None:
    """Return the fullest device that still fits, so that large demands keep finding room.

    Where none fits it is the emptiest of those that ever could, whose shortfall is the smallest.
    Who has claimed memory of a device gets that one where it fits, and no other if the claim is a
    hard one.
    """
    wanted = demand.requests.gpu_memory_bytes
    if not wanted or not node.gpu_allocatable:
        return None
    rooms = [
        (available(view, demand.namespace, gpu_pool(device)), size >= wanted, device)
        for device, size in node.gpu_allocatable
    ]
    fitting = [(room, device) for room, large, device in rooms if large and room >= wanted]
    claim = view.claim_of(demand.namespace)
    if claim is not None and claim.amount.gpu_memory_bytes:
        own = claim.gpu_device
        if claim.hard or any(device == own for _, device in fitting):
            return own
    if fitting:
        return min(fitting)[1]
    return max((large, room, device) for room, large, device in rooms)[2]


def _asked_of(requests: Resources) -> Asked:
    """Return the dimensions of which *requests* wants any, each with how much."""
    return [
        (dimension, requested)
        for dimension, requested in zip(DIMENSIONS, requests.amounts(), strict=True)
        if requested
    ]


def _entry_shortfalls(view: State, demand: Demand, policy: AdmissionPolicy) -> list[Shortfall]:
    found = []
    for gate, cap, namespace in (
        (ENTRIES, policy.entry_cap, ""),
        (NAMESPACE_ENTRIES, policy.namespace_entry_cap, demand.namespace),
    ):
        room = cap - view.entry_count(namespace)
        if not namespace:
            room -= view.holding  # what is held for the head of the queue becomes an entry
        if room < 1:
            found.append(short(gate, "entries", 1, cap, room))
    return found


def _quota_shortfalls(
    view: State, namespace: str, asked: Asked, quota: OptionalResources
) -> list[Shortfall]:
    found = []
    for dimension, requested in asked:
        limit: int | None = getattr(quota, dimension.name)
        if limit is not None:
            room = limit - _sum_over_devices(view, committed_account(namespace), dimension)
            if requested > room:
                found.append(short(NAMESPACE_QUOTA, dimension.name, requested, limit, room))
    return found


def _claim_shortfalls(view: State, namespace: str, asked: Asked) -> list[Shortfall]:
    found: list[Shortfall] = []
    claim = view.claim_of(namespace)
    if claim is None or not claim.hard:
        return found
    for dimension, requested in asked:
        limit: int = getattr(claim.amount, dimension.name)
        room: int = limit - getattr(claim.drawdown, dimension.name)
        # What is not claimed has no ceiling: whoever wants one of 0 has the quota.
        if limit and requested > room:
            one = short(NAMESPACE_CLAIM, dimension.name, requested, limit, room)
            found.append(replace(one, claim_id=claim.id))
    return found


def _node_shortfalls(
    free: Mapping[str, int], node: Node, facts: Facts, asked: Asked, device: str | None
) -> list[Shortfall]:
    found = []
    for dimension, requested in asked:
        if dimension.per_device and device is None:
            continue
        limit, lost = promised(node, facts, dimension, device)
        room = free.get(pool(dimension, device), 0) - lost
        if requested > room or requested > limit:
            found.append(short(NODE, dimension.name, requested, limit, min(room, limit)))
    return found


def _observed_shortfalls(
    free: Mapping[str, int], node: Node, facts: Facts, demand: Demand
) -> list[Shortfall]:
    """Compare with what the kernel says is really free, where that was measured."""
    found = []
    storage = demand.requests.ephemeral_storage_bytes
    if storage and facts.storage_free_bytes is not None:
        name = "ephemeral_storage_bytes"
        limit = max(0, facts.storage_free_bytes - facts.storage_reserve_bytes)
        # What the namespace has claimed and not drawn is promised to this very demand.
        reserved = node.effective_allocatable.ephemeral_storage_bytes - free.get(name, 0)
        room = limit - max(0, reserved - (facts.storage_written_bytes or 0))
        if storage > room:
            found.append(short(NODE_STORAGE_FREE, name, storage, limit, room))
    memory = demand.requests.memory_bytes
    if memory and facts.sandboxes_memory_bytes is not None:
        limit = node.effective_allocatable.memory_bytes
        room = limit - facts.sandboxes_memory_bytes
        if memory > room:
            found.append(short(NODE_MEMORY_USE, "memory_bytes", memory, limit, room))
    return found


def _exposure_shortfalls(
    view: State, node: Node, demand: Demand, policy: AdmissionPolicy
) -> Iterator[Shortfall]:
    claimed = view.account(claimed_account(demand.namespace))
    return exposure.shortfalls(view, node, demand, claimed, policy)


def _sum_over_devices(view: State, account: str, dimension: Dimension) -> int:
    if not dimension.per_device:
        return view.balance(account, dimension.name)
    return sum(
        amount for pool, amount in view.account(account).items() if dimension_of(pool) is dimension
    )
