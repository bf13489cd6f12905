"""The use cases of leases: hold resources without a sandbox, and renew them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from axern.api import chance
from axern.daemon.parts import Json, Parts, digest_of, sha256_of
from axern.host import process
from ledger import batch, tickets, transitions
from ledger.errors import InvalidArgument
from ledger.limit_range import resolve_lease
from ledger.reservation import EXTERNAL, Owner
from ledger.tables import Ticket
from ledger.units import format_duration_ms

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.api.schema import HeartbeatRequest, ReserveRequest
    from axern.api.short_schema import Reserve
    from ledger.clock import Now
    from ledger.reservation import ProcessIdentity, Reservation
    from ledger.tickets import Wish


class LeaseService:
    """What can be asked of leases; every change takes the peer that asks, or the lease's token."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def reserve(
        self, body: ReserveRequest | Reserve, peer: Peer, wish: Wish | None = None
    ) -> Json:
        """Hold resources for an external owner; the answer has the lease's token.

        With a *wish* it may wait, and then the answer has the id of its ticket.

        A retry of the same user gets the same lease with a new token: it never saw the one before.

        Raises:
            AdmissionRefused: It does not fit.
            InvalidArgument: Resources that contradict each other, or an owner that does not live.
        """
        token = chance.token()
        proposal = self.proposal(body, peer, token, body.request_id)
        caller = self._parts.grants.caller(peer)
        if wish is None:
            row: Reservation | Ticket = await self._parts.reserve(proposal, caller)
        else:
            row = await self._parts.reserve_or_wait(proposal, wish, caller)
        if isinstance(row, Ticket):
            return await self.waits(row, proposal, token)
        return await self.granted(row, proposal, token)

    async def waits(self, row: Ticket, proposal: transitions.Proposal, token: str) -> Json:
        """Let *token* stand for the lease that *row* waits for, and tell it."""
        operation = partial(
            tickets.replace_token,
            ticket_id=row.id,
            token_sha256=cast("str", proposal.token_sha256),
            by=f"uid:{proposal.owner.uid}",
            owner_process=proposal.owner_process,
        )
        if row.id != proposal.id:
            await self._parts.committer.submit(operation)
        return {"ticket_id": row.id, "token": token}

    async def granted(self, row: Reservation, proposal: transitions.Proposal, token: str) -> Json:
        """Let *token* stand for *row*, which *proposal* was granted now or before, and tell it."""
        if row.token_sha256 != proposal.token_sha256:
            operation = partial(
                transitions.replace_token,
                reservation_id=row.id,
                token_sha256=cast("str", proposal.token_sha256),
                by=f"uid:{proposal.owner.uid}",
                owner_process=proposal.owner_process,
            )
            row = cast("Reservation", await self._parts.committer.submit(operation))
        return self.begun(row, token, self._parts.clock())

    def begun(self, row: Reservation, token: str, now: Now) -> Json:
        """Return what the holder of *row*, heard *now*, is told: *token* stands for them."""
        self._parts.heartbeats.beat(row.id, now)
        answer = self.told(row, now)
        answer["token"] = token
        return answer

    def told(self, reservation: Reservation, now: Now) -> Json:
        """Return what its holder is told of a lease: the row, and how long it lasts from *now* on.

        A duration, since the wall clocks of holder and daemon prove nothing to each other.
        """
        ends_ms = reservation.expires_boottime_ms
        left_ms = None if ends_ms is None else max(0, ends_ms - now.boottime_ms)
        return {"reservation": self._parts.view(reservation, now), "expires_in_ms": left_ms}

    def proposal(
        self, body: ReserveRequest | Reserve, peer: Peer, token: str, request_id: str | None
    ) -> transitions.Proposal:
        """Return the lease that *body* asks for, which *token* will stand for.

        Raises:
            InvalidArgument: Resources that contradict each other, or an owner that does not live.
        """
        spec, namespace = body.spec(), body.namespace
        parent_id = None if body.parent is None else self._parts.resolve_id(body.parent)
        # Whoever says no namespace means that of the parent.
        if parent_id is not None and "namespace" not in getattr(body, "model_fields_set", ()):
            namespace = self._parts.ledger.state.reservation(parent_id).namespace
        bounds = self._parts.ledger.state.limit_range(namespace)
        resolved = resolve_lease(spec, self._parts.defaults, bounds)
        longest_ms = self._parts.settings.lease_max_lifetime_ms
        if (body.max_lifetime_ms or 0) > longest_ms:
            raise InvalidArgument(
                f"max_lifetime_ms: no lease of this node lasts longer than "
                f"{format_duration_ms(longest_ms)}",
                hint="ask for less, or have lease_max_lifetime raised",
            )
        return transitions.Proposal(
            id=chance.identity(),
            namespace=namespace,
            owner=Owner(EXTERNAL, peer.uid, body.name),
            spec=spec,
            resolved=resolved,
            digest=digest_of(body.document()) if request_id else "",
            enforced=False,
            request_id=request_id,
            owner_process=_owner_process(body, peer),
            ttl_ms=body.ttl_ms or self._parts.settings.lease_ttl_ms,
            max_lifetime_ms=body.max_lifetime_ms or longest_ms,
            token_sha256=sha256_of(token),
            parent_id=parent_id,
        )

    async def heartbeat(self, reservation_id: str, body: HeartbeatRequest, peer: Peer) -> Json:
        """Note that a lease's owner lives, and renew its deadline where asked.

        Raises:
            PermissionDenied: The token is not the lease's.
            NotFound: It has ended.
        """
        now = self._parts.clock()
        # The token is looked at where the deadline moves: it may be replaced at any moment.
        operation = partial(
            batch.renew_lease,
            reservation_id=reservation_id,
            token_sha256=sha256_of(body.token),
            ttl_ms=body.ttl_ms,
            now=now,
            caller=self._parts.grants.caller(peer),
        )
        if body.ttl_ms is None:
            reservation = operation(self._parts.ledger.state).result
        else:
            reservation = await self._parts.committer.submit(operation)
        self._parts.heartbeats.beat(reservation_id, now)
        return self.told(cast("Reservation", reservation), self._parts.clock())


def _owner_process(body: ReserveRequest | Reserve, peer: Peer) -> ProcessIdentity | None:
    """Return the process that *body* names as the owner, by default the one that asks.

    Raises:
        InvalidArgument: There is no such process.
    """
    if body.owner_process is None:
        return None
    pid = peer.pid if body.owner_process.pid is None else body.owner_process.pid
    found = process.identify(pid)
    if found is None:
        raise InvalidArgument(f"owner_process.pid: no process has the number {pid}")
    return found
