"""What admission must know of the filestore: free space, what is written of what is reserved."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from axern.host import inventory, project_quota
from axern.runtime import storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from axern.host.project_quota import Project
    from ledger.reservation import Reservation


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """One reading; bytes. `quarantined_lanes` are in use by something that has no entry."""

    free_bytes: int
    written_bytes: int
    quarantined_lanes: tuple[int, ...]


def read(filestore: str, rows: Iterable[Reservation]) -> StorageFacts | None:
    """Read the filestore; None where it has no project quotas, and so nothing is admitted there.

    What is written is read before what is free: bytes that come in between are then missing from
    what is free and count as yet to be written, so that no room is seen that is not there.

    Raises:
        HostError: It is missing, or can't tell.
    """
    try:
        project_quota.require_enforced(filestore)
    except CapabilityMissing:
        return None
    lanes = storage.lanes(filestore)
    held = {row.lane: row for row in rows if row.lane is not None}
    free_bytes = inventory.filestore_free_bytes(filestore)
    return StorageFacts(free_bytes, written_bytes(held, lanes), quarantined(held, lanes))


def written_bytes(held: Mapping[int, Reservation], lanes: Mapping[int, Project]) -> int:
    """Return how much of what is charged for storage is written already.

    A sandbox that has written more than its request counts with no more than that.
    """
    return sum(
        min(row.charged.ephemeral_storage_bytes, lanes[lane].used_bytes)
        for lane, row in held.items()
        if lane in lanes
    )


def quarantined(held: Mapping[int, Reservation], lanes: Mapping[int, Project]) -> tuple[int, ...]:
    """Return the lanes that something uses although no entry holds them, the lowest first."""
    return tuple(sorted(n for n, found in lanes.items() if found.is_used and n not in held))


def is_dedicated(filestore: str) -> bool:
    """Tell whether nothing but sandboxes can write to the file system of *filestore*."""
    return os.path.ismount(filestore)
