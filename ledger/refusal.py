"""A refusal: the one structure that says why not, from which every text and answer is made.

It has each failing gate with its numbers. Who holds what is short, and what would make it fit, is
worked out apart from it, in `ledger.why`, since a decision must be fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.errors import CODES
from ledger.resources import BY_NAME
from ledger.units import format_short

if TYPE_CHECKING:
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.state import State
    from ledger.why import Explanation


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One gate that is short in one dimension; `short_by` > 0, amounts in the dimension's unit.

    `claim_id` names the claim that is the gate.
    """

    gate: str
    dimension: str
    requested: int
    committed: int
    limit: int
    available: int
    short_by: int
    claim_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the demand does not fit. `shortfalls` has every one; `reasons` what the host lacks.

    `explanation` is None where nobody has asked for it, or there was no time for it.
    """

    code: str
    diagnostic_code: str
    summary: str
    message: str
    generation: int
    facts_sequence: int
    retryable: bool
    retry_after_s: int | None = None
    shortfalls: tuple[Shortfall, ...] = ()
    reasons: tuple[str, ...] = ()
    hint: str | None = None
    explanation: Explanation | None = None

    @property
    def waitable(self) -> bool:
        """Tell whether it may wait for others to end: not if the demand alone is over a ceiling."""
        return CODES[self.code].waitable and not any(
            short.gate in _CEILINGS and short.requested > short.limit for short in self.shortfalls
        )


ENTRIES = "entries"
NAMESPACE_ENTRIES = "namespace-entries"
NAMESPACE_QUOTA = "namespace-quota"
NAMESPACE_CLAIM = "namespace-claim"
NODE = "node"
NODE_STORAGE_FREE = "node-storage-free"
NODE_MEMORY_USE = "node-memory-use"
NODE_EXPOSURE = "node-exposure"
PUBLISHED_PORT = "published-port"

SUMMARIES = {
    "namespace_quota_exceeded": "namespace quota exceeded",
    "namespace_claim_exceeded": "namespace claim exceeded",
    "node_cpu_capacity_exhausted": "node CPU capacity exhausted",
    "node_memory_capacity_exhausted": "node memory capacity exhausted",
    "node_cpu_and_memory_capacity_exhausted": "node CPU and memory capacity exhausted",
    "node_ephemeral_storage_capacity_exhausted": "node ephemeral storage capacity exhausted",
    "node_gpu_memory_capacity_exhausted": "node GPU memory capacity exhausted",
    "runtime_slot_capacity_exhausted": "runtime slot capacity exhausted",
    "node_reservation_capacity_exhausted": "node reservation capacity exhausted",
    "published_port_taken": "published port taken",
}
"""The compact labels for people; the first five of the source document are kept to the byte."""

_CEILINGS = (NAMESPACE_QUOTA, NAMESPACE_CLAIM, NODE, NODE_EXPOSURE)
_FIXED = (NODE, NODE_EXPOSURE)
"""Gates whose limit is a property of the host."""
NODE_CODES = {
    frozenset({"cpu_milli"}): "node_cpu_capacity_exhausted",
    frozenset({"memory_bytes"}): "node_memory_capacity_exhausted",
    frozenset({"cpu_milli", "memory_bytes"}): "node_cpu_and_memory_capacity_exhausted",
    frozenset({"ephemeral_storage_bytes"}): "node_ephemeral_storage_capacity_exhausted",
    frozenset({"gpu_memory_bytes"}): "node_gpu_memory_capacity_exhausted",
    frozenset({"sandbox_slots"}): "runtime_slot_capacity_exhausted",
}
_SELECTION_SUMMARY = "node selection failed"
RETRY_AFTER_UNKNOWN_S = 10
RETRY_AFTER_MOST_S = 60


def short(gate: str, dimension: str, requested: int, limit: int, room: int) -> Shortfall:
    """Return how short *requested*, which is more than *room*, falls."""
    at_hand = max(0, room)
    return Shortfall(gate, dimension, requested, limit - room, limit, at_hand, requested - at_hand)


def refuse(
    view: State,
    facts: Facts | None,
    now: Now,
    reasons: tuple[str, ...],
    shortfalls: tuple[Shortfall, ...],
) -> Refusal:
    """Return the refusal for *reasons*, what the host lacks, and *shortfalls*; one is not empty."""
    code, summary = _code(reasons, shortfalls)
    row = CODES[code]
    if code == "node_selection_error":
        message = "; ".join(reasons)
        hint: str | None = "axern node doctor shows what this host can enforce, with remedies"
        if view.standing() is not None:
            hint = "axern node status shows since when; what runs goes on"
    else:
        message = f"{summary}: " + "; ".join(_words(shortfall) for shortfall in shortfalls)
        hint = _HINTS.get(code, "ask for less, or wait until something is released")
        if all(shortfall.gate == NODE_EXPOSURE for shortfall in shortfalls):
            hint = "give it a smaller limit: what all may use together is bounded"
    return Refusal(
        code=code,
        diagnostic_code="node-selection-error" if reasons else "admission-blocked",
        summary=summary,
        message=message,
        generation=view.generation,
        facts_sequence=facts.sequence if facts else 0,
        retryable=row.retryable,
        retry_after_s=_retry_after_s(view, now) if row.retryable else None,
        shortfalls=shortfalls,
        reasons=reasons,
        hint=hint,
    )


_HINTS = {
    "request_exceeds_node": "this host can never hold it: ask for less",
    "namespace_quota_exceeded": "ask for less, release something of it, or have its quota raised",
    "namespace_claim_exceeded": "ask for less, or have the claim grown",
    "published_port_taken": "publish another port of the host, or wait until its holder ends",
}


def _code(reasons: tuple[str, ...], shortfalls: tuple[Shortfall, ...]) -> tuple[str, str]:
    """Return (code, summary): the host's fitness first, then the namespace's, then the node's."""
    if reasons:
        return "node_selection_error", _SELECTION_SUMMARY
    gates = {shortfall.gate for shortfall in shortfalls}
    for gate, code in (
        (NAMESPACE_QUOTA, "namespace_quota_exceeded"),
        (NAMESPACE_CLAIM, "namespace_claim_exceeded"),
    ):
        if gate in gates:
            return code, SUMMARIES[code]
    if gates == {PUBLISHED_PORT}:
        return "published_port_taken", SUMMARIES["published_port_taken"]
    shortfalls = tuple(each for each in shortfalls if each.gate != PUBLISHED_PORT)
    never = frozenset(s.dimension for s in shortfalls if s.gate in _FIXED and s.requested > s.limit)
    failing = never or frozenset(shortfall.dimension for shortfall in shortfalls)
    code = NODE_CODES.get(failing, "node_reservation_capacity_exhausted")
    return "request_exceeds_node" if never else code, SUMMARIES[code]


def _words(shortfall: Shortfall) -> str:
    """Return *shortfall* for people: what is asked for is rounded up, what there is down."""
    dimension = BY_NAME.get(shortfall.dimension)
    label = dimension.label if dimension else shortfall.dimension
    exact = dimension.format if dimension else str
    return (
        f"{shortfall.gate} {label}: requested {format_short(shortfall.requested, exact, up=True)}, "
        f"committed {format_short(shortfall.committed, exact)} "
        f"of {format_short(shortfall.limit, exact)}, "
        f"short by {format_short(shortfall.short_by, exact, up=True)}"
    )


def _retry_after_s(view: State, now: Now) -> int:
    """Return the seconds to the next known release, 1 to 60."""
    deadline_ms = view.next_deadline_ms()
    if deadline_ms is None:
        return RETRY_AFTER_UNKNOWN_S
    return min(RETRY_AFTER_MOST_S, max(1, -(-(deadline_ms - now.boottime_ms) // 1000)))
