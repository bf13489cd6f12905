"""What a batch asks of leases, each operation such that a retry of all of them changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ledger import release, rights, tables, transitions
from ledger.state import Change, Put
from ledger.tables import RequestRecord, request_key

if TYPE_CHECKING:
    from ledger.admission import AdmissionPolicy
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.release import Asked
    from ledger.reservation import Reservation
    from ledger.rights import Caller
    from ledger.state import State
    from ledger.transitions import Proposal


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of an operation that was done under the same request id before."""

    reservation_id: str


def reserve_lease(
    view: State, proposal: Proposal, facts: Facts | None, now: Now, policy: AdmissionPolicy
) -> Change:
    """Charge *proposal*; a retry gets the same lease, and its own token stands for it from now on.

    Raises:
        AdmissionRefused, RequestIdConflict, StateConflict, NotFound: As `transitions.reserve`.
    """
    change = transitions.reserve(view, proposal, facts, now, policy)
    granted = cast("Reservation", change.result)
    if change.puts or proposal.token_sha256 is None:
        return change
    return transitions.replace_token(
        view,
        granted.id,
        proposal.token_sha256,
        f"uid:{proposal.owner.uid}",
        proposal.owner_process,
    )


def release_once(
    view: State,
    reservation_id: str,
    asked: Asked,
    now: Now,
    *,
    request_id: str | None,
    digest: str,
) -> Change:
    """Release as `release.begin` does; a retry under *request_id* is answered with `Retried`.

    Raises:
        RequestIdConflict: The request id stands for another body.
        NotFound, PermissionDenied, StateConflict: As `release.begin`.
    """
    before = transitions.granted_id(view, asked.uid, request_id, digest)
    if before is not None:
        return Change("release", result=Retried(before))
    change = release.begin(view, reservation_id, asked)
    if request_id is None:
        return change
    record = RequestRecord(digest, reservation_id, now.boottime_ms)
    noted = Put(tables.REQUESTS, request_key(asked.uid, request_id), record)
    return replace(change, puts=(*change.puts, noted))


def lease_thing(row: Reservation, *, token_fits: bool) -> rights.Thing:
    """Return *row* as the thing that somebody renews with a token."""
    name = f"reservation {row.id}"
    return rights.Thing(name, row.owner.uid, row.namespace, token_fits=token_fits)


def renew_lease(
    view: State,
    reservation_id: str,
    token_sha256: str,
    ttl_ms: int | None,
    now: Now,
    caller: Caller,
) -> Change:
    """Move the deadline of the lease that *token_sha256* stands for, if *ttl_ms* is given.

    Raises:
        PermissionDenied: The token is not the lease's, or *caller* may hold none.
        NotFound: It has ended.
    """
    reservation = view.reservation(reservation_id)
    fits = reservation.token_sha256 == token_sha256  # hashes: their comparison tells no token
    rights.require(rights.RENEW, caller, lease_thing(reservation, token_fits=fits))
    if ttl_ms is None:
        return Change("renew", result=reservation)
    return transitions.renew(view, reservation_id, ttl_ms, now)
