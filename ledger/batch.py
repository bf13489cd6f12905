"""What a batch asks of leases, each operation such that a retry of all of them changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from ledger import release, tables, transitions
from ledger.errors import PermissionDenied
from ledger.state import Change, Put
from ledger.tables import RequestRecord, request_key

if TYPE_CHECKING:
    from ledger.admission import AdmissionPolicy
    from ledger.clock import Now
    from ledger.facts import Facts
    from ledger.release import Asked
    from ledger.reservation import Reservation
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
        view, granted.id, proposal.token_sha256, f"uid:{proposal.owner.uid}"
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


def renew_lease(
    view: State, reservation_id: str, token_sha256: str, ttl_ms: int | None, now: Now
) -> Change:
    """Move the deadline of the lease that *token_sha256* stands for, if *ttl_ms* is given.

    Raises:
        PermissionDenied: The token is not the lease's.
        NotFound: It has ended.
    """
    reservation = view.reservation(reservation_id)
    if reservation.token_sha256 != token_sha256:  # hashes: their comparison tells no token
        raise PermissionDenied(f"the token does not belong to reservation {reservation_id}")
    if ttl_ms is None:
        return Change("renew", result=reservation)
    return transitions.renew(view, reservation_id, ttl_ms, now)
