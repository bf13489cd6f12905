"""The use cases of leases: hold resources without a sandbox, and renew them."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, cast

from axern.daemon.parts import ID_LENGTH, Json, Parts, digest_of, sha256_of
from axern.host import process
from ledger import rights, transitions
from ledger.batch import lease_thing
from ledger.errors import InvalidArgument
from ledger.limit_range import resolve_lease
from ledger.reservation import EXTERNAL, Owner, Reservation

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.api.schema import HeartbeatRequest, ReserveRequest


class LeaseService:
    """What can be asked of leases; every change takes the peer that asks, or the lease's token."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def reserve(self, body: ReserveRequest, peer: Peer) -> Json:
        """Hold resources for an external owner; the answer has the lease's token.

        A retry of the same user gets the same lease with a new token: it never saw the one before.

        Raises:
            AdmissionRefused: It does not fit.
            InvalidArgument: Resources that contradict each other, or an owner that does not live.
        """
        token = secrets.token_urlsafe(16)
        proposal = self.proposal(body, peer, token, body.request_id)
        reservation = await self._parts.reserve(proposal, self._parts.grants.caller(peer))
        if reservation.token_sha256 != sha256_of(token):
            operation = partial(
                transitions.replace_token,
                reservation_id=reservation.id,
                token_sha256=sha256_of(token),
                by=f"uid:{peer.uid}",
            )
            reservation = cast("Reservation", await self._parts.committer.submit(operation))
        self._parts.heartbeats.beat(reservation.id, self._parts.clock())
        return {"reservation": self._parts.view(reservation), "token": token}

    def proposal(
        self, body: ReserveRequest, peer: Peer, token: str, request_id: str | None
    ) -> transitions.Proposal:
        """Return the lease that *body* asks for, which *token* will stand for.

        Raises:
            InvalidArgument: Resources that contradict each other, or an owner that does not live.
        """
        spec = body.spec()
        bounds = self._parts.ledger.state.limit_range(body.namespace)
        resolved = resolve_lease(spec, self._parts.defaults, bounds)
        owner_process = None
        if body.owner_process is not None:
            owner_process = process.identify(body.owner_process.pid)
            if owner_process is None:
                raise InvalidArgument(
                    f"owner_process.pid: no process has the number {body.owner_process.pid}"
                )
        longest_ms = self._parts.settings.lease_max_lifetime_ms
        return transitions.Proposal(
            id=secrets.token_hex(ID_LENGTH // 2),
            namespace=body.namespace,
            owner=Owner(EXTERNAL, peer.uid, body.name),
            spec=spec,
            resolved=resolved,
            digest=digest_of(body.model_dump(mode="json")) if request_id else "",
            enforced=False,
            request_id=request_id,
            owner_process=owner_process,
            ttl_ms=body.ttl_ms or self._parts.settings.lease_ttl_ms,
            max_lifetime_ms=min(body.max_lifetime_ms or longest_ms, longest_ms),
            token_sha256=sha256_of(token),
        )

    async def heartbeat(self, reservation_id: str, body: HeartbeatRequest, peer: Peer) -> Json:
        """Note that a lease's owner lives, and renew its deadline where asked.

        Raises:
            PermissionDenied: The token is not the lease's.
            NotFound: It has ended.
        """
        reservation = self._parts.ledger.state.reservation(reservation_id)
        expected = reservation.token_sha256 or ""
        fits = secrets.compare_digest(sha256_of(body.token), expected)
        self._parts.require(rights.RENEW, peer, lease_thing(reservation, token_fits=fits))
        now = self._parts.clock()
        if body.ttl_ms is not None:
            operation = partial(
                transitions.renew, reservation_id=reservation_id, ttl_ms=body.ttl_ms, now=now
            )
            reservation = cast("Reservation", await self._parts.committer.submit(operation))
        self._parts.heartbeats.beat(reservation_id, now)
        return {"reservation": self._parts.view(reservation)}
