"""The index of kept runs: what lists and retention ask of each, read from its files only once.

How a run ended never changes, so that only runs which have not are looked at again. A thread may
use it beside another.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from axern.daemon.runs import RunStore

_BLOCK_BYTES = 512
"""Unit of st_blocks, whatever the file system's own is. Source: stat(2)."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One kept run; `status`, `finished_wall_ms` and `disk_bytes` are None until it has ended."""

    created_wall_ms: int
    id: str
    namespace: str
    uid: int
    labels: dict[str, str]
    status: str | None = None
    finished_wall_ms: int | None = None
    disk_bytes: int | None = None


class RunIndex:
    """Follows the folders of *runs*; some hundred bytes of memory for each."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        self._entries: dict[str, Entry] = {}
        self._newest_first: list[str] = []
        self._lock = threading.Lock()

    def entries(self) -> list[Entry]:
        """Return every kept run, newest first, as its folder is now."""
        with self._lock:
            names = set(self._runs.names())
            known = self._entries.keys()
            changed = False
            for gone in known - names:
                del self._entries[gone]
                changed = True
            unknown = names - known
            open_ends = [entry.id for entry in self._entries.values() if entry.status is None]
            for run_id in (*unknown, *open_ends):
                entry = self._read(run_id)
                if entry is not None:
                    changed |= run_id in unknown
                    self._entries[run_id] = entry
            if changed:
                ordered = sorted(self._entries.values(), key=place, reverse=True)
                self._newest_first = [entry.id for entry in ordered]
            return [self._entries[run_id] for run_id in self._newest_first]

    def _read(self, run_id: str) -> Entry | None:
        known = self._entries.get(run_id)
        record = self._runs.exit(run_id)
        if known is None:
            spec = self._runs.spec(run_id)
            if spec is not None:
                known = Entry(spec.created_wall_ms, run_id, spec.namespace, spec.uid, spec.labels)
            elif record is not None:  # its spec is damaged; it is kept for as long as others
                known = Entry(record.finished_wall_ms, run_id, "", 0, {})
        if known is None or record is None:
            return known
        return msgspec.structs.replace(
            known,
            status=record.status,
            finished_wall_ms=record.finished_wall_ms,
            disk_bytes=disk_bytes(f"{self._runs.root}/{run_id}"),
        )


def place(entry: Entry) -> tuple[int, str]:
    """Return where *entry* stands among all others: by its creation, and its id among equals."""
    return entry.created_wall_ms, entry.id


def disk_bytes(folder: str) -> int:
    """Return what the files right below *folder* take on disk; one that vanishes takes nothing."""
    blocks: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            status = file.stat(follow_symlinks=False)
            blocks[status.st_ino] = status.st_blocks  # the end of a log has two names
    return sum(blocks.values()) * _BLOCK_BYTES
