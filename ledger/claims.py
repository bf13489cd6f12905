"""Claims: capacity guaranteed to a namespace, each operation a pure function to a change.

To make a claim or to let it grow is itself an admission: what it sets aside has to be there. What
the namespace holds already moves under it. Source: docs/decisions/0028-claims.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.admission import Demand, promised, reasons_of
from ledger.drawdown import drawn_from
from ledger.errors import AdmissionRefused, InvalidArgument, NotFound, StateConflict
from ledger.postings import change
from ledger.refusal import NAMESPACE_QUOTA, NODE, refuse, short
from ledger.resources import DIMENSIONS, Resources, gpu_pool, pool
from ledger.state import HEADROOM, Change, Put
from ledger.tables import Claim
from ledger.units import format_short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.admission import AdmissionPolicy
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.refusal import Shortfall
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Node

CLAIM_TTL_MS = 24 * 3_600_000
"""How long a claim lasts where nobody says otherwise."""

Amounts = Mapping[str, int]
"""New amounts by the name of their dimension; what is not there stays, 0 is not claimed."""


@dataclass(frozen=True, slots=True)
class Host:
    """What an admission is decided on besides the state."""

    facts: Facts | None
    now: Now
    policy: AdmissionPolicy


@dataclass(frozen=True, slots=True)
class ClaimProposal:
    """A claim that somebody asks for. `id` is made by the server; None in `ttl_ms` is for ever."""

    id: str
    namespace: str
    amounts: Amounts
    hard: bool = True
    ttl_ms: int | None = CLAIM_TTL_MS


@dataclass(frozen=True, slots=True)
class ClaimUpdate:
    """What shall be otherwise with a claim: None changes nothing.

    `ttl_ms` counts from now; `lasting` takes the deadline away.
    """

    amounts: Amounts
    hard: bool | None = None
    ttl_ms: int | None = None
    lasting: bool = False


def find(view: State, claim_id: str) -> Claim:
    """Return the claim *claim_id*.

    Raises:
        NotFound: There is none.
    """
    row = view.row(tables.CLAIMS, claim_id)
    if row is None:
        raise NotFound(f"no claim has the id {claim_id}", hint="list them with: axern claim list")
    return cast("Claim", row)


def create(view: State, proposal: ClaimProposal, host: Host, by: str) -> Change:
    """Set capacity aside for a namespace; its result is the claim.

    To ask again for what the namespace has claimed already changes nothing.

    Raises:
        AdmissionRefused: It is not there, or the node takes nothing new; nothing is changed.
        StateConflict: Another claim is there, or a hard one would be below what is held.
        NotFound: The namespace does not exist.
        InvalidArgument: It claims nothing.
    """
    view.namespace(proposal.namespace)
    amount = _amount(Resources(), proposal.amounts)
    existing = view.claim_of(proposal.namespace)
    if existing is not None:
        if (existing.amount, existing.hard) == (amount, proposal.hard):
            return Change("claim-create", result=existing)
        raise StateConflict(
            f"namespace {proposal.namespace} has the claim {existing.id} already",
            hint=f"change it with: axern claim update {existing.id}",
        )
    row = Claim(
        id=proposal.id,
        namespace=proposal.namespace,
        amount=Resources(),
        drawdown=Resources(),
        hard=proposal.hard,
        created_wall_ms=host.now.wall_ms,
        expires_boottime_ms=_deadline(proposal.ttl_ms, host.now),
    )
    return _resized(view, row, amount, host, "claim-create", by)


def update(view: State, claim_id: str, wanted: ClaimUpdate, host: Host, by: str) -> Change:
    """Let a claim grow, shrink, last longer or become hard or advisory; its result is the claim.

    Raises:
        AdmissionRefused: What it shall grow by is not there; nothing is changed.
        StateConflict: It would shrink below what is drawn, or a hard one would be overdrawn.
        NotFound: There is no such claim.
        InvalidArgument: It would claim nothing.
    """
    before = find(view, claim_id)
    deadline = before.expires_boottime_ms
    if wanted.lasting:
        deadline = None
    elif wanted.ttl_ms is not None:
        deadline = _deadline(wanted.ttl_ms, host.now)
    hard = before.hard if wanted.hard is None else wanted.hard
    row = replace(before, hard=hard, expires_boottime_ms=deadline)
    amount = _amount(before.amount, wanted.amounts)
    for dimension, new, old, drawn in zip(
        DIMENSIONS,
        amount.amounts(),
        before.amount.amounts(),
        before.drawdown.amounts(),
        strict=True,
    ):
        if 0 < new < min(old, drawn):
            raise StateConflict(
                f"claim {claim_id} shrinks down to what is drawn from it, not below: "
                f"{dimension.label} {format_short(new, dimension.format)} of "
                f"{format_short(drawn, dimension.format, up=True)} drawn",
                hint="release something of the namespace first",
            )
    return _resized(view, row, amount, host, "claim-update", by)


def release(view: State, claim_id: str, by: str, note: str = "") -> Change:
    """Give a claim up: what it had not drawn is everybody's, what runs goes on.

    Its result is the last row.

    Raises:
        NotFound: There is no such claim.
    """
    row = find(view, claim_id)
    puts = (Put(tables.CLAIMS, claim_id, None),)
    return change(view, "claim-release", puts, by=by, note=note, result=row)


def expire(view: State, claim_id: str, now: Now) -> Change:
    """Give up a claim whose time is over; from then on its namespace has best effort.

    One that was prolonged meanwhile, or is gone, stays as it is.
    """
    row = cast("Claim | None", view.row(tables.CLAIMS, claim_id))
    if row is None or not has_expired(row, now):
        return Change("claim-release", result=row)
    return release(view, claim_id, "daemon", "expired")


def has_expired(claim: Claim, now: Now) -> bool:
    """Tell whether the time of *claim* is over."""
    deadline = claim.expires_boottime_ms
    return deadline is not None and now.boottime_ms >= deadline


def overdrawn(claim: Claim) -> tuple[str, ...]:
    """Return the names of the claimed dimensions of which more is drawn than claimed."""
    return tuple(
        dimension.name
        for dimension, claimed, drawn in zip(
            DIMENSIONS, claim.amount.amounts(), claim.drawdown.amounts(), strict=True
        )
        if 0 < claimed < drawn
    )


def _deadline(ttl_ms: int | None, now: Now) -> int | None:
    return None if ttl_ms is None else now.boottime_ms + ttl_ms


def _amount(before: Resources, wanted: Amounts) -> Resources:
    amount = replace(before, **wanted)
    if not any(amount.amounts()):
        raise InvalidArgument(
            "a claim must claim something: an amount above zero in one dimension at least",
            hint="to give it up: axern claim release",
        )
    return amount


def _resized(
    view: State, before: Claim, amount: Resources, host: Host, operation: str, by: str
) -> Change:
    """Return the change by which the row *before* claims *amount*."""
    grows = any(
        new > old for new, old in zip(amount.amounts(), before.amount.amounts(), strict=True)
    )
    is_new = view.row(tables.CLAIMS, before.id) is None
    held = [
        replace(row, claim_id=before.id)
        for row in view.outermost()
        if row.namespace == before.namespace and (is_new or row.claim_id == before.id)
    ]
    node = view.node()
    device = before.gpu_device if before.amount.gpu_memory_bytes else None
    if node is not None and device is None and amount.gpu_memory_bytes:
        device = _pick_device(view, node, held, amount.gpu_memory_bytes)
    moved = replace(before, amount=amount, gpu_device=device)
    drawdown = Resources()
    for row in held:
        drawdown = drawdown.plus(drawn_from(moved, row))
    moved = replace(moved, drawdown=drawdown)
    if grows:
        _require_room(view, before, moved, host)
    _require_within(moved)
    if moved == view.row(tables.CLAIMS, moved.id):
        return Change(operation, result=moved)
    puts = [Put(tables.CLAIMS, moved.id, moved)]
    if is_new:
        puts += [Put(tables.RESERVATIONS, row.id, row) for row in held]
    facts = host.facts if grows else None
    return change(view, operation, tuple(puts), by=by, facts=facts, result=moved)


def _require_within(claim: Claim) -> None:
    over = overdrawn(claim) if claim.hard else ()
    if over:
        raise StateConflict(
            f"namespace {claim.namespace} holds more than a hard claim would let it: "
            + ", ".join(_both(claim, name) for name in over),
            hint="claim as much, make the claim advisory, or release something first",
        )


def _both(claim: Claim, name: str) -> str:
    dimension = next(each for each in DIMENSIONS if each.name == name)
    held, claimed = getattr(claim.drawdown, name), getattr(claim.amount, name)
    return (
        f"{dimension.label} {format_short(held, dimension.format, up=True)} "
        f"of {format_short(claimed, dimension.format)}"
    )


def _pick_device(view: State, node: Node, held: list[Reservation], wanted: int) -> str | None:
    """Return the fullest device that has room for what is not held there yet, or the emptiest."""
    on: dict[str, int] = {}
    for row in held:
        if row.gpu_device is not None:
            on[row.gpu_device] = on.get(row.gpu_device, 0) + row.charged.gpu_memory_bytes
    spare = [
        (view.balance(HEADROOM, gpu_pool(device)) - max(0, wanted - on.get(device, 0)), device)
        for device, _ in node.gpu_allocatable
    ]
    fitting = [pair for pair in spare if pair[0] >= 0]
    return min(fitting)[1] if fitting else max(spare)[1] if spare else None


def _require_room(view: State, before: Claim, after: Claim, host: Host) -> None:
    """Refuse what *after* would set aside beyond *before*, unless it is free.

    Raises:
        AdmissionRefused: With every dimension that is short, and whatever the node lacks.
    """
    node, facts = view.node(), host.facts
    more = after.amount.minus(after.drawdown).minus(before.amount.minus(before.drawdown))
    demand = Demand(after.namespace, replace(more, gpu_memory_bytes=after.amount.gpu_memory_bytes))
    reasons = reasons_of(view, node, facts, demand, host.now, host.policy)
    shortfalls: tuple[Shortfall, ...] = ()
    if node is not None and facts is not None:
        shortfalls = (
            *_over_quota(view, after),
            *_over_node(view, node, facts, more, after.gpu_device),
        )
    if reasons or shortfalls:
        raise AdmissionRefused(refuse(view, facts, host.now, reasons, shortfalls))


def _over_quota(view: State, claim: Claim) -> Iterator[Shortfall]:
    """Yield where more would be claimed than the namespace may ever hold."""
    quota = view.namespace(claim.namespace).quota
    for dimension, amount in zip(DIMENSIONS, claim.amount.amounts(), strict=True):
        limit: int | None = getattr(quota, dimension.name)
        if limit is not None and amount > limit:
            yield short(NAMESPACE_QUOTA, dimension.name, amount, limit, limit)


def _over_node(
    view: State, node: Node, facts: Facts, more: Resources, device: str | None
) -> Iterator[Shortfall]:
    for dimension, requested in zip(DIMENSIONS, more.amounts(), strict=True):
        if not requested or (dimension.per_device and device is None):
            continue
        limit, lost = promised(node, facts, dimension, device)
        room = min(view.balance(HEADROOM, pool(dimension, device)) - lost, limit)
        if requested > room:
            yield short(NODE, dimension.name, requested, limit, room)
