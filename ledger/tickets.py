"""The operations on requests that wait, each a pure function from a state to a change.

A ticket is granted by the same decision and with the same rows as a reservation that had not to
wait. When that is tried, and for whom first, is `ledger.granting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ledger import tables, transitions
from ledger.admission import pick_device
from ledger.errors import AdmissionRefused, InvalidArgument, QueueFull
from ledger.postings import change
from ledger.queue import (
    DEFAULT_PRIORITY,
    MOST_BYPASSES,
    PRIORITIES,
    Waiter,
    age_ms,
    find,
    pause_of,
)
from ledger.resources import DIMENSIONS, Resources, pool
from ledger.spec import ResolvedSpec
from ledger.state import HEADROOM, Change, Put, claimed_account
from ledger.tables import NODE_KEY, Pause, RequestRecord, Ticket, Wait, request_key

if TYPE_CHECKING:
    from ledger.claims import Host
    from ledger.clock import Now
    from ledger.refusal import Refusal
    from ledger.reservation import ProcessIdentity
    from ledger.state import State
    from ledger.transitions import Proposal

FULL_RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How many may wait, overall and of one namespace, and for how long at most, in ms."""

    depth: int = 1000
    namespace_depth: int = 500
    longest_ms: int = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Wish:
    """How long somebody would wait from now on, and how urgently; `for_ms` > 0.

    Raises:
        InvalidArgument: No such priority, or no time at all.
    """

    for_ms: int
    priority: int = DEFAULT_PRIORITY

    def __post_init__(self) -> None:
        """Refuse what no queue knows."""
        if self.priority not in PRIORITIES:
            raise InvalidArgument(
                f"priority: {self.priority} is not one of 0 to {PRIORITIES[-1]}",
                hint=f"{DEFAULT_PRIORITY} is what everybody has who names none",
            )
        if self.for_ms <= 0:
            raise InvalidArgument("wait_ms: it must be greater than zero")


def wait(view: State, proposal: Proposal, wish: Wish, host: Host, policy: QueuePolicy) -> Change:
    """Charge *proposal* if it fits, else let it wait; its result is a reservation or a ticket.

    A retry finds what it became the first time.

    Raises:
        AdmissionRefused: It does not fit, and no waiting will help; nothing is changed.
        QueueFull: As many wait as may, overall or of its namespace.
        InvalidArgument: It would wait for longer than anybody may.
        RequestIdConflict, StateConflict, NotFound: As `transitions.reserve`.
    """
    if wish.for_ms > policy.longest_ms:
        raise InvalidArgument(
            f"wait_ms: {wish.for_ms} is more than {policy.longest_ms}, the longest wait",
            hint="wait for less; the configuration may allow more: queue_longest_ms",
        )
    known = transitions.granted_id(view, proposal.owner.uid, proposal.request_id, proposal.digest)
    ticket = None if known is None else view.row(tables.TICKETS, known)
    if ticket is not None:
        return Change("wait", result=ticket)
    try:
        return transitions.reserve(view, proposal, host.facts, host.now, host.policy)
    except AdmissionRefused as error:
        # A ticket has no place for a network, and nobody shall be granted less than they asked for;
        # within a lease there is nothing to wait for: what was refused is one more entry.
        is_plain = proposal.network is None and proposal.parent_id is None
        if not error.refusal.waitable or not is_plain:
            raise
        why = error.refusal.message
    _require_place(view, proposal.namespace, policy)
    return enter(view, proposal, wish, host, why)


def _require_place(view: State, namespace: str, policy: QueuePolicy) -> None:
    """Raise QueueFull if no other one of *namespace* may wait."""
    rows = (cast("Ticket", row) for _, row in view.rows(tables.TICKETS))
    mine = sum(row.namespace == namespace for row in rows)
    for count, most, whose in (
        (view.waiting, policy.depth, ""),
        (mine, policy.namespace_depth, f" of namespace {namespace}"),
    ):
        if count >= most:
            raise QueueFull(
                f"the queue is full: {count} requests{whose} wait, as many as may",
                hint="try again later",
                retry_after_s=FULL_RETRY_AFTER_S,
            )


def enter(view: State, proposal: Proposal, wish: Wish, host: Host, why: str) -> Change:
    """Let *proposal* wait behind all others, since it was refused for *why*; result: the ticket."""
    now, resolved = host.now, proposal.resolved
    rows = (cast("Ticket", row) for _, row in view.rows(tables.TICKETS))
    ticket = Ticket(
        id=proposal.id,
        namespace=proposal.namespace,
        owner_uid=proposal.owner.uid,
        requests=resolved.requests,
        held=Resources(),
        sequence=1 + max((row.sequence for row in rows), default=0),
        created_wall_ms=now.wall_ms,
        expires_boottime_ms=now.boottime_ms + wish.for_ms,
    )
    row = Wait(
        owner=proposal.owner,
        spec=proposal.spec,
        limits=resolved.limits,
        digest=proposal.digest,
        enforced=proposal.enforced,
        priority=wish.priority,
        aging_boottime_ms=now.boottime_ms,
        runtime=proposal.runtime,
        requires=proposal.requires,
        request_id=proposal.request_id,
        owner_process=proposal.owner_process,
        ttl_ms=proposal.ttl_ms,
        max_lifetime_ms=proposal.max_lifetime_ms,
        token_sha256=proposal.token_sha256,
    )
    puts = [Put(tables.TICKETS, ticket.id, ticket), Put(tables.WAITS, ticket.id, row)]
    if proposal.request_id is not None:
        key = request_key(proposal.owner.uid, proposal.request_id)
        record = RequestRecord(proposal.digest, ticket.id, now.boottime_ms)
        puts.append(Put(tables.REQUESTS, key, record))
    by = f"uid:{proposal.owner.uid}"
    return change(view, "wait", tuple(puts), by=by, note=why, facts=host.facts, result=ticket)


def proposal_of(waiter: Waiter) -> Proposal:
    """Return the reservation that *waiter* asks for."""
    ticket, row = waiter
    return transitions.Proposal(
        id=ticket.id,
        namespace=ticket.namespace,
        owner=row.owner,
        spec=row.spec,
        resolved=ResolvedSpec(ticket.requests, row.limits),
        digest=row.digest,
        enforced=row.enforced,
        runtime=row.runtime,
        requires=row.requires,
        request_id=row.request_id,
        owner_process=row.owner_process,
        ttl_ms=row.ttl_ms,
        max_lifetime_ms=row.max_lifetime_ms,
        token_sha256=row.token_sha256,
    )


def without(view: State, waiter: Waiter) -> State:
    """Return *view* as it is for *waiter* itself: what is held for it is free."""
    if not waiter.holds:
        return view
    free = view.fork()
    free.apply(change(free, "hold", (Put(tables.TICKETS, waiter.ticket.id, None),)))
    return free


def grant(view: State, waiter: Waiter, host: Host) -> Change | Refusal:
    """Let the reservation take the place of the ticket, or return why it can't; result: its row."""
    try:
        made = transitions.admit(
            without(view, waiter), proposal_of(waiter), host.facts, host.now, host.policy
        )
    except AdmissionRefused as error:
        return error.refusal
    puts = (*_gone(waiter.ticket.id), *made.puts)
    return change(view, "grant", puts, by=made.by, facts=host.facts, result=made.result)


def give_up(view: State, ticket_id: str, note: str, by: str) -> Change:
    """Take a ticket out of the queue; its request id is free again. Its result is the last row.

    One that is gone already, or was granted, stays so, and the result is None.
    """
    ticket = view.row(tables.TICKETS, ticket_id)
    if ticket is None:
        return Change("ticket-end")
    puts = [Put(tables.TICKETS, ticket_id, None)]
    row = cast("Wait | None", view.row(tables.WAITS, ticket_id))
    if row is not None:
        puts.append(Put(tables.WAITS, ticket_id, None))
    if row is not None and row.request_id is not None:
        key = request_key(row.owner.uid, row.request_id)
        record = cast("RequestRecord | None", view.row(tables.REQUESTS, key))
        if record is not None and record.reservation_id == ticket_id:
            puts.append(Put(tables.REQUESTS, key, None))
    return change(view, "ticket-end", tuple(puts), by=by, note=note, result=ticket)


def expire(view: State, ticket_id: str, now: Now) -> Change:
    """Take a ticket whose time is over out of the queue; any other one stays."""
    ticket = cast("Ticket | None", view.row(tables.TICKETS, ticket_id))
    if ticket is None or not has_expired(ticket, now):
        return Change("ticket-end")
    return give_up(view, ticket_id, "it has waited for as long as it would", "daemon")


def has_expired(ticket: Ticket, now: Now) -> bool:
    """Tell whether *ticket* has waited for as long as it would."""
    deadline = ticket.expires_boottime_ms
    return deadline is not None and now.boottime_ms >= deadline


def bypass(view: State, waiter: Waiter) -> Change:
    """Count that somebody else was given what *waiter*, the head, waits for.

    After `MOST_BYPASSES` what there is of it is held, so that it can't happen again.
    """
    key = waiter.ticket.id
    row = replace(waiter.wait, bypasses=waiter.wait.bypasses + 1)
    puts = [Put(tables.WAITS, key, row)]
    if row.bypasses >= MOST_BYPASSES:
        puts.append(Put(tables.TICKETS, key, _holding(view, waiter)))
    return change(view, "bypass", tuple(puts), result=row)


def hold(view: State, waiter: Waiter) -> Change:
    """Hold for *waiter* all that there is of what it asks for; its result is the ticket."""
    ticket = _holding(view, waiter)
    if ticket == waiter.ticket:
        return Change("hold", result=ticket)
    return change(view, "hold", (Put(tables.TICKETS, ticket.id, ticket),), result=ticket)


def let_go(view: State, waiter: Waiter) -> Change:
    """Hold nothing more for *waiter*, which is not the head any more, and forget its bypasses."""
    ticket = replace(waiter.ticket, held=Resources(), gpu_device=None)
    row = replace(waiter.wait, bypasses=0)
    puts = (Put(tables.TICKETS, ticket.id, ticket), Put(tables.WAITS, ticket.id, row))
    note = "the node alone does not keep it any more"
    return change(view, "hold", puts, note=note, result=ticket)


def lacks(view: State, waiter: Waiter) -> frozenset[str]:
    """Return the names of the dimensions in which less than *waiter* needs is held for it."""
    ticket = waiter.ticket
    wanted = _wanted(view, ticket, ticket.gpu_device).amounts()
    return frozenset(
        dimension.name
        for dimension, amount, held in zip(DIMENSIONS, wanted, ticket.held.amounts(), strict=True)
        if held < amount
    )


def pause(view: State, by: str, now: Now) -> Change:
    """Grant nothing of the queue from now on, and let nobody in it grow older."""
    before = pause_of(view)
    if before is not None:
        return Change("queue-pause", result=before)
    row = Pause(by, now.wall_ms, now.boottime_ms)
    return change(view, "queue-pause", (Put(tables.PAUSES, NODE_KEY, row),), by=by, result=row)


def resume(view: State, by: str, now: Now) -> Change:
    """Let the queue go on; nobody in it is older than when it was paused."""
    before = pause_of(view)
    if before is None:
        return Change("queue-resume")
    puts = [Put(tables.PAUSES, NODE_KEY, None)]
    for key, each in view.rows(tables.WAITS):
        row = cast("Wait", each)
        since_ms = now.boottime_ms - age_ms(row, before, now)
        puts.append(Put(tables.WAITS, key, replace(row, aging_boottime_ms=since_ms)))
    return change(view, "queue-resume", tuple(puts), by=by)


def replace_token(
    view: State,
    ticket_id: str,
    token_sha256: str,
    by: str,
    owner_process: ProcessIdentity | None = None,
) -> Change:
    """Let another token stand for the lease to come: who asks again never saw the one before.

    Of one that was granted meanwhile, that of the lease is replaced. Result: ticket or lease.

    Raises:
        NotFound: It is gone.
    """
    waiter = find(view, ticket_id)
    if waiter is None:
        return transitions.replace_token(view, ticket_id, token_sha256, by, owner_process)
    owner_process = owner_process or waiter.wait.owner_process
    row = replace(waiter.wait, token_sha256=token_sha256, owner_process=owner_process)
    puts = (Put(tables.WAITS, ticket_id, row),)
    return change(view, "replace-token", puts, by=by, result=waiter.ticket)


def _gone(ticket_id: str) -> tuple[Put, Put]:
    return Put(tables.TICKETS, ticket_id, None), Put(tables.WAITS, ticket_id, None)


def _wanted(view: State, ticket: Ticket, device: str | None) -> Resources:
    """Return what must be held for *ticket*: its request, less what its namespace has claimed."""
    claimed = view.account(claimed_account(ticket.namespace))
    if not claimed:
        return ticket.requests
    return Resources(
        *(
            max(0, amount - claimed.get(pool(dimension, device), 0))
            for dimension, amount in zip(DIMENSIONS, ticket.requests.amounts(), strict=True)
        )
    )


def _holding(view: State, waiter: Waiter) -> Ticket:
    """Return the ticket with as much held as there is, and no more than it needs."""
    ticket, node = waiter.ticket, view.node()
    device = ticket.gpu_device
    has_gpu = ticket.held.gpu_memory_bytes == _wanted(view, ticket, device).gpu_memory_bytes
    if not (device and has_gpu) and ticket.requests.gpu_memory_bytes and node is not None:
        device = pick_device(without(view, waiter), node, waiter.demand)
    headroom = view.account(HEADROOM)
    held = {}
    wanted = _wanted(view, ticket, device)
    for dimension, amount, had in zip(
        DIMENSIONS, wanted.amounts(), ticket.held.amounts(), strict=True
    ):
        if dimension.per_device and device != ticket.gpu_device:
            had = 0  # noqa: PLW2901 - what was held is held elsewhere
        room = had + headroom.get(pool(dimension, device), 0)
        held[dimension.name] = max(0, min(amount, room))
    if not held["gpu_memory_bytes"]:
        device = None
    return replace(ticket, held=Resources(**held), gpu_device=device)
