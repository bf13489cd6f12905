"""The vectors over the resource dimensions; all amounts are integers.

Every sum, JSON object, table and check iterates over `DIMENSIONS`. GPU memory is a pool per
device; every other dimension is one pool for the node.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.dimensions import BY_NAME, DIMENSIONS, Dimension, parse_count
from ledger.quick import quick

__all__ = (
    "BY_NAME",
    "DIMENSIONS",
    "Dimension",
    "OptionalResources",
    "Resources",
    "by_pool",
    "dimension_of",
    "gpu_pool",
    "parse_count",
    "pool",
)


@quick
@dataclass(frozen=True, slots=True)
class Resources:
    """An amount in each dimension; every field 0 to 2**53 - 1."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    ephemeral_storage_bytes: int = 0
    gpu_memory_bytes: int = 0
    sandbox_slots: int = 0

    def plus(self, other: Resources) -> Resources:
        """Return the sum, dimension by dimension."""
        return Resources(*(a + b for a, b in zip(self.amounts(), other.amounts(), strict=True)))

    def minus(self, other: Resources) -> Resources:
        """Return the difference, never below zero in any dimension."""
        return Resources(
            *(max(0, a - b) for a, b in zip(self.amounts(), other.amounts(), strict=True))
        )

    def amounts(self) -> tuple[int, int, int, int, int]:
        """Return the amounts in the order of `DIMENSIONS`."""
        return (
            self.cpu_milli,
            self.memory_bytes,
            self.ephemeral_storage_bytes,
            self.gpu_memory_bytes,
            self.sandbox_slots,
        )


@quick
@dataclass(frozen=True, slots=True)
class OptionalResources:
    """An amount or None in each dimension: a user's spec, limits, or a quota (None = unlimited)."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    ephemeral_storage_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    sandbox_slots: int | None = None

    def amounts(self) -> tuple[int | None, int | None, int | None, int | None, int | None]:
        """Return the amounts in the order of `DIMENSIONS`."""
        return (
            self.cpu_milli,
            self.memory_bytes,
            self.ephemeral_storage_bytes,
            self.gpu_memory_bytes,
            self.sandbox_slots,
        )


def pool(dimension: Dimension, device: str | None) -> str:
    """Return the name of the pool that *dimension* draws on: its own, or that of one device."""
    return f"{dimension.name}/{device}" if dimension.per_device else dimension.name


def gpu_pool(device: str) -> str:
    """Return the name of the GPU memory pool of *device*."""
    return pool(BY_NAME["gpu_memory_bytes"], device)


def dimension_of(pool_name: str) -> Dimension:
    """Return the dimension that the pool *pool_name* belongs to."""
    return BY_NAME[pool_name.partition("/")[0]]


_POOLS = tuple("" if dimension.per_device else dimension.name for dimension in DIMENSIONS)


def by_pool(resources: Resources, device: str | None) -> dict[str, int]:
    """Return the non-zero amounts of *resources* keyed by pool, in the order of `DIMENSIONS`."""
    return {
        name or gpu_pool(str(device)): amount
        for name, amount in zip(_POOLS, resources.amounts(), strict=True)
        if amount
    }
