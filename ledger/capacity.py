"""What the node can promise, computed from what it has: reserve, CPU overcommit, GPU devices."""

from __future__ import annotations

from dataclasses import replace

from ledger.errors import InvalidArgument
from ledger.resources import Resources
from ledger.tables import Node
from ledger.units import MAX_INTEGER, parse_ratio


def node_of(
    capacity: Resources,
    system_reserve: Resources,
    cpu_overcommit_ratio: str,
    gpu_allocatable: tuple[tuple[str, int], ...] = (),
) -> Node:
    """Return the node's row: allocatable is capacity − reserve, never below zero.

    Only CPU is overcommitted: effective is `floor(allocatable_milli × ratio)`, with the ratio the
    exact decimal of its text. The reserve is cut to what the node has, so that the accounts add up.

    Raises:
        InvalidArgument: The ratio is not a positive decimal, or makes more than 2**53 - 1 milli.
    """
    ratio = parse_ratio(cpu_overcommit_ratio, "cpu_overcommit_ratio")
    allocatable = capacity.minus(system_reserve)
    effective_milli = allocatable.cpu_milli * ratio // 1
    if effective_milli > MAX_INTEGER:
        raise InvalidArgument(
            f"cpu_overcommit_ratio: {cpu_overcommit_ratio!r} is not valid: it makes more of "
            f"{allocatable.cpu_milli}m than can be counted",
            hint="for example 1.5",
        )
    return Node(
        capacity=capacity,
        system_reserve=capacity.minus(allocatable),
        effective_allocatable=replace(allocatable, cpu_milli=effective_milli),
        cpu_overcommit_ratio=cpu_overcommit_ratio,
        gpu_allocatable=gpu_allocatable,
    )
