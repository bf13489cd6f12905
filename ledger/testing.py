"""What tests of the ledger and of all above it share: a clock by hand, and small builders."""

from __future__ import annotations

from dataclasses import replace

from ledger import transitions
from ledger.admission import AdmissionPolicy
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.facts import Facts
from ledger.reservation import EXTERNAL, Owner
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.staging import Operation
from ledger.state import Change, State
from ledger.tables import Node
from ledger.transitions import Proposal

GIB = 1024**3


class ManualClock:
    """A clock that moves only by hand; call it for a reading."""

    def __init__(self) -> None:
        self.now = Now("boot-1", 1_000_000, 1_000_000, 1_700_000_000_000)
        self._boots = 1

    def __call__(self) -> Now:
        """Return the reading."""
        return self.now

    def advance(self, ms: int) -> Now:
        """Let *ms* pass for everyone."""
        return self._move(monotonic_ms=ms, boottime_ms=ms, wall_ms=ms)

    def suspend(self, ms: int) -> Now:
        """Let the host sleep for *ms*: CLOCK_MONOTONIC stands still."""
        return self._move(monotonic_ms=0, boottime_ms=ms, wall_ms=ms)

    def jump_wall(self, ms: int) -> Now:
        """Set the wall clock forward by *ms*, or back if it is negative."""
        return self._move(monotonic_ms=0, boottime_ms=0, wall_ms=ms)

    def reboot(self, ms: int = 20_000) -> Now:
        """Start the host anew after *ms* of being off."""
        self._boots += 1
        self.now = Now(f"boot-{self._boots}", 5_000, 5_000, self.now.wall_ms + ms)
        return self.now

    def _move(self, *, monotonic_ms: int, boottime_ms: int, wall_ms: int) -> Now:
        self.now = replace(
            self.now,
            monotonic_ms=self.now.monotonic_ms + monotonic_ms,
            boottime_ms=self.now.boottime_ms + boottime_ms,
            wall_ms=self.now.wall_ms + wall_ms,
        )
        return self.now


def small_node(cpu_milli: int = 4_000, memory_bytes: int = 8 * GIB, slots: int = 100) -> Node:
    """Return a node that holds a handful of what `small_proposal` asks for."""
    capacity = Resources(cpu_milli, memory_bytes, 100 * GIB, 0, slots)
    return node_of(capacity, Resources(), "1")


def small_facts(now: Now, sequence: int = 1) -> Facts:
    """Return facts of *now* that stand in nobody's way."""
    return Facts(sequence, now.monotonic_ms)


def small_proposal(number: int, cpu_milli: int = 100, ttl_ms: int | None = None) -> Proposal:
    """Return the proposal of an external lease; *number* makes its id and its request id."""
    requests = Resources(cpu_milli, GIB // 16, 0, 0, 1)
    return Proposal(
        id=f"{number:032x}",
        namespace="default",
        owner=Owner(EXTERNAL, 1000, f"lease-{number}"),
        spec=ResourceSpec(OptionalResources(cpu_milli, GIB // 16)),
        resolved=ResolvedSpec(requests, OptionalResources()),
        digest=f"{number:064x}",
        enforced=False,
        request_id=f"request-{number}",
        ttl_ms=ttl_ms,
    )


def observing(node: Node) -> Operation:
    """Return the operation that posts *node*."""
    return lambda view: transitions.observe_node(view, node)


def reserving(proposal: Proposal, now: Now, facts: Facts | None = None) -> Operation:
    """Return the operation that asks for *proposal*."""
    seen = facts or small_facts(now)

    def reserve(view: State) -> Change:
        return transitions.reserve(view, proposal, seen, now, AdmissionPolicy())

    return reserve


def releasing(number: int) -> Operation:
    """Return the operation that releases the lease of `small_proposal(number)`."""
    return lambda view: transitions.release(view, f"{number:032x}", "test")
