"""What is left at one gate in one dimension: the number that a shortfall there compares with.

Whoever is refused stays refused as long as this is less than what they ask for. So a queue need not
decide on everybody again after each commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ledger.admission import available, promised
from ledger.exposure import whole_of
from ledger.refusal import (
    ENTRIES,
    NAMESPACE_CLAIM,
    NAMESPACE_ENTRIES,
    NAMESPACE_QUOTA,
    NODE,
    NODE_EXPOSURE,
    NODE_MEMORY_USE,
    NODE_STORAGE_FREE,
)
from ledger.resources import BY_NAME, dimension_of, gpu_pool
from ledger.state import claimed_account, committed_account
from ledger.units import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.admission import AdmissionPolicy
    from ledger.facts import Facts
    from ledger.state import State
    from ledger.tables import Node

CAPABILITY = "capability"
"""The gate of what the host must be able to do; its dimension is the key, and 1 is asked for."""
GPU = "gpu"


class Gate(NamedTuple):
    """One gate in one dimension, as it is for a namespace; "" where all of them have the same."""

    name: str
    namespace: str
    dimension: str


class Ground(NamedTuple):
    """What there is to decide on, after the node was observed once."""

    view: State
    node: Node
    facts: Facts
    policy: AdmissionPolicy


def room_at(gate: Gate, ground: Ground) -> int:
    """Return what is left at *gate*; a bound that does not exist leaves `MAX_INTEGER`."""
    return _ROOMS[gate.name](gate, ground)


def _on_node(gate: Gate, ground: Ground) -> int:
    """Return the headroom; of several devices that of the one that has most."""
    view, node, facts, _ = ground
    dimension = BY_NAME[gate.dimension]
    if not dimension.per_device:
        limit, lost = promised(node, facts, dimension, None)
        return min(limit, available(view, gate.namespace, dimension.name) - lost)
    return max(
        (
            min(size, available(view, gate.namespace, gpu_pool(device)))
            for device, size in node.gpu_allocatable
        ),
        default=0,
    )


def _in_quota(gate: Gate, ground: Ground) -> int:
    view, namespace, name = ground.view, gate.namespace, gate.dimension
    limit: int | None = getattr(view.namespace(namespace).quota, name)
    if limit is None:
        return MAX_INTEGER
    return limit - sum(
        amount
        for pool, amount in view.account(committed_account(namespace)).items()
        if dimension_of(pool).name == name
    )


def _in_claim(gate: Gate, ground: Ground) -> int:
    claim = ground.view.claim_of(gate.namespace)
    amount: int = getattr(claim.amount, gate.dimension) if claim and claim.hard else 0
    return amount - getattr(claim.drawdown, gate.dimension) if claim and amount else MAX_INTEGER


def _in_namespace(gate: Gate, ground: Ground) -> int:
    return ground.policy.namespace_entry_cap - ground.view.entry_count(gate.namespace)


def _in_all(_: Gate, ground: Ground) -> int:
    return ground.policy.entry_cap - ground.view.entry_count() - ground.view.holding


def _in_use(_: Gate, ground: Ground) -> int:
    in_use = ground.facts.sandboxes_memory_bytes
    return MAX_INTEGER if in_use is None else whole_of(ground.node, "memory_bytes") - in_use


def _on_disk(gate: Gate, ground: Ground) -> int:
    view, node, facts, _ = ground
    if facts.storage_free_bytes is None:
        return MAX_INTEGER
    limit = max(0, facts.storage_free_bytes - facts.storage_reserve_bytes)
    whole = node.effective_allocatable.ephemeral_storage_bytes
    reserved = whole - available(view, gate.namespace, gate.dimension)
    return limit - max(0, reserved - (facts.storage_written_bytes or 0))


def _to_expose(gate: Gate, ground: Ground) -> int:
    whole = whole_of(ground.node, gate.dimension)
    for name, numerator, denominator in ground.policy.max_exposure:
        if name == gate.dimension:
            room = whole * numerator // denominator - ground.view.exposure().amount(name, whole)
            return max(room, ground.view.balance(claimed_account(gate.namespace), name))
    return MAX_INTEGER


def _has(gate: Gate, ground: Ground) -> int:
    if gate.dimension == GPU:
        return int(bool(ground.node.gpu_allocatable))
    return int(gate.dimension in ground.facts.capabilities)


_ROOMS: Mapping[str, Callable[[Gate, Ground], int]] = {
    NODE: _on_node,
    NODE_STORAGE_FREE: _on_disk,
    NODE_MEMORY_USE: _in_use,
    NODE_EXPOSURE: _to_expose,
    NAMESPACE_QUOTA: _in_quota,
    NAMESPACE_CLAIM: _in_claim,
    NAMESPACE_ENTRIES: _in_namespace,
    ENTRIES: _in_all,
    CAPABILITY: _has,
}
