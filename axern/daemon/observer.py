"""Observe the host: what admission decides on, and what the node can promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.daemon import storage_facts
from axern.daemon.memory_gate import MemoryGate
from axern.errors import HostError
from axern.host import gpu, inventory
from axern.runtime.capability_table import GPU
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.facts import Facts
from ledger.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from axern.host.capabilities import Capability, Snapshot
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.reservation import Reservation
    from ledger.tables import Node

_MIB = 1024**2
_LEAST_MEMORY_RESERVE_BYTES = 512 * _MIB
_LEAST_STORAGE_RESERVE_BYTES = 1024 * _MIB
_BEFORE, _BEHIND = "capability ", " is absent"
"""How admission says that something is absent."""
_RESERVE_PART = 20
"""A default reserve is one twentieth of the capacity, but at least the above."""


def read_now() -> Now:
    """Read all clocks."""
    clocks = inventory.read_clocks()
    return Now(clocks.boot_id, clocks.monotonic_ms, clocks.boottime_ms, clocks.realtime_ms)


class Observer:
    """Takes readings and keeps the last one; each has the next sequence number."""

    def __init__(
        self, settings: Settings, layout: Layout, capabilities: Callable[[], Snapshot]
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._capabilities = capabilities
        self._sequence = 0
        self._with_value = tuple(word for word in settings.extension_capabilities if "=" in word)
        self._is_enforced = settings.cgroup_enforcement == "required"
        self.memory = MemoryGate(
            layout.root if self._is_enforced else None, settings.facts_every_ms
        )
        self.facts: Facts | None = None

    def observe(self, rows: Iterable[Reservation] = ()) -> tuple[Facts, Node]:
        """Take a reading and return it with the node's row.

        What is written already counts against the reservations in *rows*.

        Raises:
            HostError: The host can't be read, such as while no descriptor is left.
        """
        try:
            return self._read(rows)
        except OSError as err:
            raise HostError(
                "the host can't be read", syscall="open", path=err.filename, errno=err.errno
            ) from err

    def _read(self, rows: Iterable[Reservation]) -> tuple[Facts, Node]:
        filestore = self._layout.filestore
        stored = storage_facts.read(filestore, rows) if self._is_enforced else None
        capacity = self.memory.bounded(inventory.observe_capacity(filestore))
        storage_reserve = storage_reserve_bytes(
            self._settings,
            capacity.filestore_total_bytes,
            dedicated=storage_facts.is_dedicated(filestore),
        )
        settings = self._settings
        present = self._capabilities().present()
        gpus = tuple((device.uuid, device.memory_bytes) for device in gpu.known())
        node = node_of(
            Resources(
                cpu_milli=capacity.cpu_milli,
                memory_bytes=capacity.memory_bytes,
                ephemeral_storage_bytes=capacity.filestore_total_bytes,
                sandbox_slots=settings.max_sandboxes,
            ),
            Resources(
                cpu_milli=settings.system_reserve_cpu_milli,
                memory_bytes=_reserve(
                    settings.system_reserve_memory_bytes,
                    capacity.memory_bytes,
                    _LEAST_MEMORY_RESERVE_BYTES,
                ),
                ephemeral_storage_bytes=storage_reserve,
            ),
            settings.cpu_overcommit_ratio,
            gpus if GPU in present else (),
        )
        in_use_bytes = self.memory.in_use_bytes(node)
        self._sequence += 1
        self.facts = Facts(
            sequence=self._sequence,
            observed_monotonic_ms=read_now().monotonic_ms,
            capabilities=(*present, *self._with_value),
            storage_free_bytes=stored.free_bytes if stored else None,
            storage_written_bytes=stored.written_bytes if stored else None,
            storage_reserve_bytes=storage_reserve if stored else 0,
            quarantined_lanes=stored.quarantined_lanes if stored else (),
            sandboxes_memory_bytes=in_use_bytes,
        )
        return self.facts, node


def explain(capabilities: Iterable[Capability], reason: str) -> str:
    """Return a reason of a refusal with what was found out about the capability it names."""
    key = reason.removeprefix(_BEFORE).removesuffix(_BEHIND)
    if f"{_BEFORE}{key}{_BEHIND}" != reason:
        return reason
    name, _, value = key.partition("=")
    found = next((item for item in capabilities if item.key == name), None)
    if found is None:
        return f"{reason}: nothing says that this node has it"
    return f"{reason}: {'' if not value else f'of {name} '}{found.message}"


def storage_reserve_bytes(settings: Settings, total_bytes: int, *, dedicated: bool = False) -> int:
    """Return how much of a file system of *total_bytes* is kept for the host itself.

    A filestore of its own has nobody else to keep a certain amount for.
    """
    configured = settings.system_reserve_storage_bytes
    return _reserve(configured, total_bytes, 0 if dedicated else _LEAST_STORAGE_RESERVE_BYTES)


def _reserve(configured: int | None, capacity: int, least: int) -> int:
    return max(least, capacity // _RESERVE_PART) if configured is None else configured
