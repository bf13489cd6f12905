"""The operations on reservations, each a pure function from a state to a change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ledger import nesting, tables
from ledger.admission import Admitted, Demand, evaluate
from ledger.drawdown import drawdown_put
from ledger.errors import AdmissionRefused, RequestIdConflict, StateConflict
from ledger.postings import change
from ledger.quick import quick
from ledger.reservation import (
    RELEASED,
    RESERVED,
    RETIRING,
    RUNNING,
    SANDBOX_LANES,
    STARTING,
    STOPPING,
    Reservation,
    require_transition,
)
from ledger.resources import Resources
from ledger.state import Change, Put
from ledger.tables import Beat, Node, RequestRecord, request_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.admission import AdmissionPolicy
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.reservation import CgroupIdentity, Owner, ProcessIdentity
    from ledger.spec import ResolvedSpec, ResourceSpec
    from ledger.state import State
    from ledger.tables import Network


@quick
@dataclass(frozen=True, slots=True)
class Proposal:
    """A reservation that somebody asks for. `id` is made by the server, 128 random bits.

    `ttl_ms` is the first deadline counted from admission, `max_lifetime_ms` the ceiling on it and
    on all renewals; None is none. `digest` is the SHA-256 of the request's body. `parent_id` is the
    lease within which a lease is.
    """

    id: str
    namespace: str
    owner: Owner
    spec: ResourceSpec
    resolved: ResolvedSpec
    digest: str
    enforced: bool
    runtime: str | None = None
    requires: tuple[str, ...] = ()
    request_id: str | None = None
    owner_process: ProcessIdentity | None = None
    ttl_ms: int | None = None
    max_lifetime_ms: int | None = None
    token_sha256: str | None = None
    network: Network | None = None
    parent_id: str | None = None


def reserve(
    view: State, proposal: Proposal, facts: Facts | None, now: Now, policy: AdmissionPolicy
) -> Change:
    """Charge *proposal* if it fits; its result is the reservation.

    A retry with a request id that was granted before returns that entry unchanged, so that a
    client which never saw the answer can't hold twice.

    Raises:
        AdmissionRefused: It does not fit; nothing is changed and the request id stays unused.
        RequestIdConflict: The request id stands for another body.
        NotFound: The namespace does not exist.
    """
    granted = find_granted(view, proposal)
    if granted is not None:
        return Change("reserve", result=granted)
    return admit(view, proposal, facts, now, policy)


def admit(
    view: State, proposal: Proposal, facts: Facts | None, now: Now, policy: AdmissionPolicy
) -> Change:
    """Charge *proposal* if it fits, whatever its request id stands for; result: the reservation.

    Raises:
        AdmissionRefused: It does not fit.
        NotFound: The namespace does not exist.
    """
    decision = evaluate(view, facts, demand_of(proposal), now, policy)
    if not isinstance(decision, Admitted):
        raise AdmissionRefused(decision)
    place, proposal = nesting.place_of(view, proposal), nesting.bounded(view, proposal, now)
    claim = None if place else view.claim_of(proposal.namespace)
    reservation = Reservation(
        id=proposal.id,
        namespace=proposal.namespace,
        owner=proposal.owner,
        spec=proposal.spec,
        requests=proposal.resolved.requests,
        limits=proposal.resolved.limits,
        charged=proposal.resolved.requests,
        phase=RESERVED,
        created_wall_ms=now.wall_ms,
        created_boottime_ms=now.boottime_ms,
        enforced=proposal.enforced,
        gpu_device=place.gpu_device if place else decision.gpu_device,
        claim_id=claim.id if claim else None,
        request_id=proposal.request_id,
        runtime=proposal.runtime,
        lane=free_lane(view, facts) if proposal.runtime else None,
        owner_process=proposal.owner_process,
        expires_boottime_ms=_after(now.boottime_ms, _first_ttl_ms(proposal)),
        expires_limit_boottime_ms=_after(now.boottime_ms, proposal.max_lifetime_ms),
        token_sha256=proposal.token_sha256,
        requires=proposal.requires,
    )
    puts = [
        *([Put(tables.NESTED, reservation.id, place)] if place else ()),
        Put(tables.RESERVATIONS, reservation.id, reservation),
        *drawdown_put(view, None, reservation),
    ]
    if proposal.network is not None:
        puts.append(Put(tables.NETWORKS, reservation.id, proposal.network))
    if proposal.request_id is not None:
        key = request_key(proposal.owner.uid, proposal.request_id)
        record = RequestRecord(proposal.digest, reservation.id, now.boottime_ms)
        puts.append(Put(tables.REQUESTS, key, record))
    return change(
        view, "reserve", tuple(puts), by=_by(proposal.owner), facts=facts, result=reservation
    )


def demand_of(proposal: Proposal) -> Demand:
    """Return what admission is asked for *proposal*, by `reserve` and by whoever explains."""
    if proposal.parent_id is not None:  # it was admitted with its parent, but for the entry
        return Demand(proposal.namespace, Resources())
    limits = proposal.resolved.limits if proposal.runtime else None
    ports = proposal.network.ports if proposal.network else ()
    return Demand(proposal.namespace, proposal.resolved.requests, proposal.requires, limits, ports)


def granted_id(view: State, uid: int, request_id: str | None, digest: str) -> str | None:
    """Return the id of the entry that was granted to *uid* under *request_id*, or None.

    The entry itself may have ended since.

    Raises:
        RequestIdConflict: It was granted for another body.
    """
    if request_id is None:
        return None
    row = view.row(tables.REQUESTS, request_key(uid, request_id))
    if row is None:
        return None
    record = cast("RequestRecord", row)
    if record.digest != digest:
        raise RequestIdConflict(
            f"request id {request_id!r} was used for another request, "
            f"which became {record.reservation_id}",
            hint="use a new request id, or send the same body again",
        )
    return record.reservation_id


def find_granted(view: State, proposal: Proposal) -> Reservation | None:
    """Return the entry that the request id of *proposal* was granted, or None.

    Raises:
        RequestIdConflict: It was granted for another body.
        StateConflict: It was granted, and the entry has ended since; or it waits.
    """
    key = granted_id(view, proposal.owner.uid, proposal.request_id, proposal.digest)
    if key is None:
        return None
    row = view.row(tables.RESERVATIONS, key)
    if row is None and view.row(tables.TICKETS, key) is not None:
        raise StateConflict(
            f"request id {proposal.request_id!r} waits in the queue as {key}",
            hint="use a new request id, or send the same body again",
        )
    if row is None:
        raise StateConflict(
            f"request id {proposal.request_id!r} was granted as {key}, "
            "which has been released since",
            hint="use a new request id to reserve again",
        )
    return cast("Reservation", row)


def free_lane(view: State, facts: Facts | None = None) -> int:
    """Return a lane that nobody holds; lanes are walked round, so a freed one rests longest.

    Those that *facts* has in quarantine are passed over.

    Raises:
        StateConflict: All are held; admission refuses before this on the slots.
    """
    quarantined = frozenset(facts.quarantined_lanes) if facts else frozenset()
    for step in range(1, SANDBOX_LANES + 1):
        lane = (view.last_lane + step) % SANDBOX_LANES
        if view.lane_holder(lane) is None and lane not in quarantined:
            return lane
    raise StateConflict(f"all {SANDBOX_LANES} lanes are held or in quarantine")


def start(view: State, reservation_id: str) -> Change:
    """Go to `starting`: from here on, something may exist in the kernel."""
    return _advance(view, reservation_id, "start", phase=STARTING)


def run(
    view: State,
    reservation_id: str,
    monitor: ProcessIdentity,
    cgroup: CgroupIdentity,
    started_wall_ms: int | None = None,
    ends_boottime_ms: int | None = None,
) -> Change:
    """Go to `running`, with the identities by which the workload is found again.

    *ends_boottime_ms*, when the workload has run for as long as it may, moves the deadline nearer.
    One that was asked to stop during its launch stays `stopping`, and is found all the same.
    """
    found: dict[str, Any] = {
        "monitor": monitor,
        "cgroup": cgroup,
        "started_wall_ms": started_wall_ms,
        "expires_boottime_ms": _nearer(
            view.reservation(reservation_id).expires_boottime_ms, ends_boottime_ms
        ),
    }
    if view.reservation(reservation_id).phase == STOPPING:
        return _advance(view, reservation_id, "run", **found)
    return _advance(view, reservation_id, "run", phase=RUNNING, **found)


def stop(view: State, reservation_id: str, reason: str, by: str) -> Change:
    """Go to `stopping` for *reason*; one that is stopping or retiring already stays as it is."""
    reservation = view.reservation(reservation_id)
    if reservation.phase in (STOPPING, RETIRING):
        return Change("stop", result=reservation)
    return _advance(view, reservation_id, "stop", by=by, phase=STOPPING, reason=reason)


def give_reason(view: State, reservation_id: str, reason: str, by: str) -> Change:
    """Let *reason* be why one that is stopping already ends, since somebody insists."""
    return _advance(view, reservation_id, "stop", by=by, reason=reason)


def retire(view: State, reservation_id: str, reason: str, memory_bytes: int = 0) -> Change:
    """Go to `retiring`: the quota is free of it; node and claim hold it until it is proved gone.

    Args:
        view: The state.
        reservation_id: The entry; one that is retiring already stays as it is.
        reason: Why it ended.
        memory_bytes: What its cgroup uses now; the charge becomes the larger of this and the
            request.
    """
    reservation = view.reservation(reservation_id)
    if reservation.phase == RETIRING:
        return Change("retire", result=reservation)
    charged = reservation.charged
    charged = replace(charged, memory_bytes=max(charged.memory_bytes, memory_bytes))
    return _advance(
        view,
        reservation_id,
        "retire",
        note=reason,
        more=drawdown_put(view, reservation, replace(reservation, charged=charged)),
        phase=RETIRING,
        reason=reservation.reason or reason,
        charged=charged,
    )


def release(view: State, reservation_id: str, evidence: str, by: str = "daemon") -> Change:
    """End the charge; *evidence* says what proved that nothing is left. Result: the last row.

    Raises:
        StateConflict: The entry may still have something in the kernel (see `TRANSITIONS`).
        NotFound: It is gone already.
    """
    reservation = view.reservation(reservation_id)
    require_transition(reservation, RELEASED)
    puts = (
        Put(tables.RESERVATIONS, reservation_id, None),
        *drawdown_put(view, reservation, None),
        *nesting.ending(view, reservation_id),  # what is within a lease ends with it
        *(
            Put(table, reservation_id, None)
            for table in (tables.BEATS, tables.NETWORKS)
            if view.row(table, reservation_id)
        ),
    )
    return change(view, "release", puts, by=by, note=evidence, result=reservation)


def renew(view: State, reservation_id: str, ttl_ms: int, now: Now) -> Change:
    """Move the deadline to *ttl_ms* from now, never past the cumulative ceiling, never back."""
    reservation = view.reservation(reservation_id)
    deadline = now.boottime_ms + ttl_ms
    if reservation.expires_limit_boottime_ms is not None:
        deadline = min(deadline, reservation.expires_limit_boottime_ms)
    if reservation.expires_boottime_ms is None or deadline <= reservation.expires_boottime_ms:
        return Change("renew", result=reservation)
    return _advance(view, reservation_id, "renew", expires_boottime_ms=deadline)


def replace_token(
    view: State,
    reservation_id: str,
    token_sha256: str,
    by: str,
    owner_process: ProcessIdentity | None = None,
) -> Change:
    """Let another token and process stand for the owner; those before are worth nothing from now.

    Whoever asks again under a request id holds the lease from then on: the process that asked
    first may be gone.
    """
    return _advance(
        view,
        reservation_id,
        "replace-token",
        by=by,
        token_sha256=token_sha256,
        owner_process=owner_process,
    )


def observe_node(view: State, node: Node) -> Change:
    """Post what the node can promise; a change of nothing is no change.

    Headroom may go below zero: what is committed stays, and new work waits until it fits.
    """
    if view.node() == node:
        return Change("observe-node", result=node)
    return change(view, "observe-node", (Put(tables.NODES, tables.NODE_KEY, node),), result=node)


def persist_beats(view: State, beats: Mapping[str, int]) -> Change:
    """Write the heartbeats that moved, for entries that still exist."""
    puts = tuple(
        Put(tables.BEATS, key, Beat(monotonic_ms))
        for key, monotonic_ms in beats.items()
        if view.row(tables.RESERVATIONS, key) is not None
    )
    return change(view, "beat", puts)


def forget_requests(view: State, keys: Iterable[str]) -> Change:
    """Drop the request records *keys*, whose lifetime is over."""
    puts = tuple(Put(tables.REQUESTS, key, None) for key in keys if view.row(tables.REQUESTS, key))
    return change(view, "forget-requests", puts)


def _advance(
    view: State,
    reservation_id: str,
    operation: str,
    *,
    by: str = "daemon",
    note: str = "",
    more: tuple[Put, ...] = (),
    **fields: object,
) -> Change:
    reservation = view.reservation(reservation_id)
    if "phase" in fields:
        require_transition(reservation, str(fields["phase"]))
    moved = replace(reservation, **fields)  # type: ignore[arg-type]  # field names are ours
    puts = (Put(tables.RESERVATIONS, reservation_id, moved), *more)
    return change(view, operation, puts, by=by, note=note, result=moved)


def _first_ttl_ms(proposal: Proposal) -> int | None:
    return _nearer(proposal.ttl_ms, proposal.max_lifetime_ms)


def _nearer(one_ms: int | None, other_ms: int | None) -> int | None:
    if one_ms is None or other_ms is None:
        return other_ms if one_ms is None else one_ms
    return min(one_ms, other_ms)


def _after(base_ms: int, duration_ms: int | None) -> int | None:
    return None if duration_ms is None else base_ms + duration_ms


def _by(owner: Owner) -> str:
    return f"uid:{owner.uid}"
