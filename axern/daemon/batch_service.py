"""The use case of a batch: many operations on leases in one commit, all or none or each for itself.

A batch waits in the ledger's queue as a whole, its operations counted one by one, and no user but
root may have more than a few there, so that nobody fills the queue for all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from axern.api import chance
from axern.api.views import released_view
from axern.daemon.lease_service import LeaseService
from axern.daemon.parts import Json, Parts, digest_of, sha256_of
from ledger import batch
from ledger.batch import Retried
from ledger.errors import AdmissionRefused, AxernError, GroupRefused, LedgerBusy
from ledger.release import Asked, Released
from ledger.staging import Group, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from axern.api import short_schema
    from axern.api.batch_schema import BatchHeartbeat, BatchOperation, BatchRelease, BatchRequest
    from axern.api.messages import Peer
    from axern.api.schema import ReserveRequest
    from axern.daemon.release_service import ReleaseService
    from ledger.clock import Now
    from ledger.reservation import Reservation
    from ledger.transitions import Proposal

BATCHES_PER_USER = 4
"""Under way at the same time; root has no such bound."""
BUSY_RETRY_AFTER_S = 1

Item = tuple[Operation, "Callable[[Any, Now], Json]", "Proposal | None"]
"""What is committed, how its result is told, and what it asks for if it reserves."""


class BatchService:
    """What can be asked in one request of many leases."""

    def __init__(self, parts: Parts, leases: LeaseService, releases: ReleaseService) -> None:
        self._parts = parts
        self._leases = leases
        self._releases = releases
        self._under_way: dict[int, int] = {}

    async def perform(
        self, body: BatchRequest | short_schema.Batch, peer: Peer
    ) -> list[Json | AxernError]:
        """Do what *body* asks and return what came of each operation, in order.

        Raises:
            GroupRefused: One was refused of a batch that is done all or none; nothing is done.
            LedgerBusy: The queue is full, or this user has too many batches under way.
            CommitFailed: The disk refused; nothing is done.
            InvalidArgument: An operation contradicts itself; nothing is done.
        """
        with self._place_of(peer.uid):
            now = self._parts.clock()
            items = [
                self._item(operation, _request_id(body, index), peer, now)
                for index, operation in enumerate(_operations(body))
            ]
            group = Group(tuple(item[0] for item in items), body.mode == "all")
            try:
                outcomes = cast("list[object]", await self._parts.committer.submit(group))
            except GroupRefused as error:
                at_fault = items[error.index]
                refused = self._told(error.error, at_fault, peer, self._parts.clock())
                raise GroupRefused(error.index, refused) from None
        now = self._parts.clock()
        pairs = zip(items, outcomes, strict=True)
        return [self._told(outcome, item, peer, now) for item, outcome in pairs]

    def _told(self, outcome: object, item: Item, peer: Peer, now: Now) -> Any:
        """Return what the client is told of *outcome*; a refusal is explained and kept as event."""
        _, told, proposal = item
        if isinstance(outcome, AdmissionRefused) and proposal is not None:
            viewer = self._parts.grants.caller(peer)
            refusal = self._parts.refused(outcome.refusal, proposal, viewer, in_batch=True)
            return AdmissionRefused(refusal)
        return outcome if isinstance(outcome, AxernError) else told(outcome, now)

    @contextlib.contextmanager
    def _place_of(self, uid: int) -> Iterator[None]:
        """Hold one of the places of the user *uid*."""
        count = self._under_way.get(uid, 0)
        if uid != 0 and count >= BATCHES_PER_USER:
            raise LedgerBusy(
                f"{count} batches of uid {uid} are under way, as many as one user may have",
                hint="wait for the answer to one of them",
                retry_after_s=BUSY_RETRY_AFTER_S,
            )
        self._under_way[uid] = count + 1
        try:
            yield
        finally:
            self._under_way[uid] -= 1
            if not self._under_way[uid]:
                del self._under_way[uid]

    def _item(
        self,
        operation: BatchOperation | short_schema.Operation,
        request_id: str | None,
        peer: Peer,
        now: Now,
    ) -> Item:
        if operation.reserve is not None:
            return self._reserve(operation.reserve, request_id, peer, now)
        if operation.release is not None:
            return self._release(operation.release, request_id, peer, now)
        return self._heartbeat(
            cast("BatchHeartbeat | short_schema.Heartbeat", operation.heartbeat), peer, now
        )

    def _reserve(
        self,
        body: ReserveRequest | short_schema.Reserve,
        request_id: str | None,
        peer: Peer,
        now: Now,
    ) -> Item:
        token = chance.token()
        proposal = self._leases.proposal(body, peer, token, body.request_id or request_id)
        operation = partial(
            batch.reserve_lease,
            proposal=proposal,
            facts=self._parts.observer.facts,
            now=now,
            policy=self._parts.admission_policy,
        )

        def told(row: Reservation, later: Now) -> Json:
            return self._leases.begun(row, token, later)

        return operation, told, proposal

    def _release(
        self,
        body: BatchRelease | short_schema.Release,
        request_id: str | None,
        peer: Peer,
        now: Now,
    ) -> Item:
        asked = Asked(self._parts.grants.caller(peer), reason=body.reason)
        request_id = body.request_id or request_id
        operation = partial(
            batch.release_once,
            reservation_id=body.id,
            asked=asked,
            now=now,
            request_id=request_id,
            digest=digest_of(body.document()) if request_id else "",
        )

        def told(row: Reservation | Retried, later: Now) -> Json:
            if isinstance(row, Retried):
                return self._done_before(row, asked, later)
            if row.is_sandbox:
                self._releases.let_end(row, asked)
                return {"reservation": self._parts.view(row, later), "released": None}
            return self._releases.uncharged(row, asked, later)

        return operation, told, None

    def _done_before(self, retried: Retried, asked: Asked, now: Now) -> Json:
        released = Released(retried.reservation_id, None, 0, asked.by, "", already=True)
        answer = released_view(released, now)
        answer["released"] |= {"at": None, "evidence": None}  # its history tells when and why
        return answer

    def _heartbeat(
        self, body: BatchHeartbeat | short_schema.Heartbeat, peer: Peer, now: Now
    ) -> Item:
        operation = partial(
            batch.renew_lease,
            reservation_id=body.id,
            token_sha256=sha256_of(body.token),
            ttl_ms=body.ttl_ms,
            now=now,
            caller=self._parts.grants.caller(peer),
        )

        def told(row: Reservation, later: Now) -> Json:
            self._parts.heartbeats.beat(row.id, now)
            return self._leases.told(row, later)

        return operation, told, None


def _operations(
    body: BatchRequest | short_schema.Batch,
) -> Sequence[BatchOperation | short_schema.Operation]:
    return body.operations


def _request_id(body: BatchRequest | short_schema.Batch, index: int) -> str | None:
    """Return the request id of an operation that has none of its own; no user's has a slash."""
    return None if body.request_id is None else f"{body.request_id}/{index}"
