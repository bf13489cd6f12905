"""What was observed of the host when a decision was taken; journaled with the decision."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.quick import quick


@quick
@dataclass(frozen=True, slots=True)
class Facts:
    """One coherent reading, numbered by `sequence` within a run of the daemon.

    None means not measured on this host, and the gate that needs it does not apply.
    `capabilities` are typed keys such as `runtime/runc` or `limit/memory`.
    `storage_free_bytes` is what the file system under the filestore has left,
    `storage_written_bytes` the part of the reserved storage that is written already,
    `storage_reserve_bytes` what must stay free; `sandboxes_memory_bytes` the memory in use below
    the sandboxes' cgroup, clean file cache left out. `quarantined_lanes` are given to nobody:
    something on the host still has their project id.
    """

    sequence: int
    observed_monotonic_ms: int
    capabilities: tuple[str, ...] = ()
    storage_free_bytes: int | None = None
    storage_written_bytes: int | None = None
    storage_reserve_bytes: int = 0
    sandboxes_memory_bytes: int | None = None
    quarantined_lanes: tuple[int, ...] = ()
