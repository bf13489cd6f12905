"""The memory of all sandboxes together: what they may have, what they use, and taking some back."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from axern.host import cgroup_tree
from axern.host.cgroup_tree import Ceiling
from ledger.refusal import NODE_MEMORY_USE

if TYPE_CHECKING:
    from axern.host.cgroup import Cgroup
    from axern.host.inventory import Capacity
    from ledger.refusal import Refusal
    from ledger.tables import Node

_log = logging.getLogger(__name__)


class MemoryGate:
    """Keeps the wall around all sandboxes below *root* and reads what is behind it.

    Without a *root*, where nothing is enforced, nothing is measured, and admission counts promises
    alone. The kernel is asked to take memory back once in *pause_ms* at most.
    """

    def __init__(self, root: Cgroup | None, pause_ms: int) -> None:
        self._root = root
        self._pause_ms = pause_ms
        self._reclaimed_at_ms: int | None = None
        self._stands = True

    def bounded(self, capacity: Capacity) -> Capacity:
        """Return *capacity*, with no more than the groups above Axern's own allow.

        Raises:
            HostError: They can't be read.
        """
        most = cgroup_tree.ceiling(self._root) if self._root else Ceiling(None, None)
        return replace(
            capacity,
            cpu_milli=min(capacity.cpu_milli, most.cpu_milli or capacity.cpu_milli),
            memory_bytes=min(capacity.memory_bytes, most.memory_bytes or capacity.memory_bytes),
        )

    def in_use_bytes(self, node: Node) -> int | None:
        """Let the wall stand at what *node* can promise, and return what is in use behind it.

        None where there is no memory controller, without which nothing is admitted anyway.

        Raises:
            HostError: The kernel can't be asked, or refused.
        """
        in_use = cgroup_tree.memory_in_use_bytes(self._root) if self._root else None
        if self._root is None or in_use is None:
            return None
        wanted = node.effective_allocatable.memory_bytes
        stands = cgroup_tree.raise_wall(self._root, wanted)
        if stands != self._stands:
            self._stands = stands
            words = "stands at" if stands else "waits for sandboxes to need less than"
            _log.warning("the wall around all sandboxes %s %s bytes of memory", words, wanted)
        return in_use

    def may_reclaim(self, refusal: Refusal, monotonic_ms: int) -> int:
        """Return how many bytes would turn *refusal* into a yes if the kernel took them back.

        0 where something else refuses too, and where it was tried a moment ago.
        """
        short = [each for each in refusal.shortfalls if each.gate == NODE_MEMORY_USE]
        if refusal.reasons or not short or len(short) != len(refusal.shortfalls):
            return 0
        last_ms = self._reclaimed_at_ms
        if last_ms is not None and monotonic_ms - last_ms < self._pause_ms:
            return 0
        self._reclaimed_at_ms = monotonic_ms
        return short[0].short_by

    def reclaim(self, amount_bytes: int) -> None:
        """Let the kernel take back what it can; blocks for as long as that takes."""
        if self._root is not None:
            cgroup_tree.reclaim(self._root, amount_bytes)
