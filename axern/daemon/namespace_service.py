"""The use cases of namespaces, quotas and claims; who may ask for which is told by their routes."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, cast

from axern.api import namespace_views as views
from axern.api.namespace_schema import given
from axern.daemon import happenings
from axern.daemon.parts import ID_LENGTH, Json, Parts
from ledger import claims, namespaces, rights
from ledger.claims import ClaimProposal, ClaimUpdate, Host
from ledger.errors import AdmissionRefused
from ledger.tables import Claim
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.api.namespace_schema import (
        ClaimRequest,
        ClaimUpdateRequest,
        NamespaceRequest,
        NamespaceUpdate,
        QuotaRequest,
    )
    from ledger.staging import Operation
    from ledger.state import State


_DEFAULTS = frozenset({"default_requests", "default_limits"})
"""What the owners of a namespace change, beside admins: bounds are there to bind them."""


class NamespaceService:
    """What can be asked of namespaces; every change takes the peer that asks.

    Each raises what its operation in the ledger raises.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    @property
    def _state(self) -> State:
        return self._parts.ledger.state

    def list(self) -> Json:
        """Return every namespace."""
        return self._dated({"namespaces": views.namespaces(self._state)})

    def get(self, name: str) -> Json:
        """Return the namespace *name*, with the ceilings of its quota."""
        found = views.namespace_view(self._state, name)
        return self._dated({"namespace": found | {"quota": self._quota(name)["quota"]}})

    async def create(self, body: NamespaceRequest, peer: Peer) -> Json:
        """Make a namespace; one that is there stays as it is."""
        await self._change(
            partial(namespaces.create, name=body.name, now=self._parts.clock(), by=_by(peer))
        )
        return self.get(body.name)

    async def update(self, name: str, body: NamespaceUpdate, peer: Peer) -> Json:
        """Change what one request of *name* may be.

        Raises:
            PermissionDenied: More than its defaults, which are its owners', for one no admin.
        """
        edits = body.edits()
        verb = rights.SET_DEFAULTS if edits.keys() <= _DEFAULTS else rights.GOVERN
        self._parts.require(verb, peer, rights.Thing(f"namespace {name}", namespace=name))
        await self._change(partial(namespaces.update, name=name, edits=edits, by=_by(peer)))
        return self.get(name)

    async def delete(self, name: str, peer: Peer) -> Json:
        """Take the namespace *name* away, which must be empty; its events stay."""
        await self._change(partial(namespaces.delete, name=name, by=_by(peer)))
        return self._dated({"namespace": {"name": name, "deleted": True}})

    def quotas(self, *, constrained: bool, pressure: bool) -> Json:
        """Return the quota of every namespace, or of those that are as said."""
        found = views.quotas(self._state, constrained=constrained, pressure=pressure)
        return self._dated({"quotas": found})

    def quota(self, name: str) -> Json:
        """Return the quota of *name*, and what of it is in use."""
        return self._dated({"quota": self._quota(name)})

    async def set_quota(self, name: str, body: QuotaRequest, peer: Peer) -> Json:
        """Change the ceilings that *body* names."""
        ceilings = given(body.quota)
        await self._change(
            partial(namespaces.set_quota, name=name, ceilings=ceilings, by=_by(peer))
        )
        return self.quota(name)

    async def unset_quota(self, name: str, peer: Peer) -> Json:
        """Take every ceiling of *name* away."""
        await self._change(partial(namespaces.unset_quota, name=name, by=_by(peer)))
        return self.quota(name)

    def events(self, name: str, limit: int) -> Json:
        """Return what the gates of *name* have refused, newest first, also when it is gone."""
        wall_ms = self._parts.clock().wall_ms
        found = self._parts.events.newest(name, limit, wall_ms, happenings.OF_QUOTAS)
        return {
            "events": [
                {
                    "sequence": event.sequence,
                    "type": event.what.kind,
                    "namespace": event.what.namespace,
                    "uid": event.what.uid,
                    "code": event.what.code,
                    "reason": event.what.reason,
                    "count": event.count,
                    "created_at": format_rfc3339(event.first_wall_ms),
                    "last_at": format_rfc3339(event.last_wall_ms),
                    "message": event.what.message,
                    **event.what.detail,
                }
                for event in found
            ]
        }

    def claims(self, namespace: str | None) -> Json:
        """Return every claim, of one namespace if named."""
        found = views.claims(self._state, self._parts.clock(), namespace)
        return self._dated({"claims": found})

    def claim(self, word: str) -> Json:
        """Return the claim whose id begins with *word*."""
        return self._told(views.find_claim(self._state, word))

    async def create_claim(self, body: ClaimRequest, peer: Peer) -> Json:
        """Guarantee capacity to a namespace, if it is there."""
        asked = ClaimProposal(
            id=secrets.token_hex(ID_LENGTH // 2),
            namespace=body.namespace,
            amounts=given(body.amounts),
            hard=body.mode == views.HARD,
            ttl_ms=body.ttl_ms,
        )
        operation = partial(claims.create, proposal=asked, host=self._host(), by=_by(peer))
        return await self._claimed(body.namespace, peer, operation)

    async def update_claim(self, word: str, body: ClaimUpdateRequest, peer: Peer) -> Json:
        """Let a claim grow, shrink, change its mode or last longer."""
        wanted = ClaimUpdate(
            amounts=given(body.amounts),
            hard=None if body.mode is None else body.mode == views.HARD,
            ttl_ms=body.ttl_ms,
            lasting="ttl_ms" in body.model_fields_set and body.ttl_ms is None,
        )
        row = views.find_claim(self._state, word)
        operation = partial(
            claims.update, claim_id=row.id, wanted=wanted, host=self._host(), by=_by(peer)
        )
        return await self._claimed(row.namespace, peer, operation)

    async def release_claim(self, word: str, peer: Peer) -> Json:
        """Give a claim up; what runs goes on."""
        claim_id = views.find_claim(self._state, word).id
        operation = partial(claims.release, claim_id=claim_id, by=_by(peer))
        last = cast("Claim", await self._change(operation))
        return self._dated({"claim": views.claim_view(last, self._parts.clock()), "released": True})

    async def _claimed(self, namespace: str, peer: Peer, operation: Operation) -> Json:
        """Return the claim that *operation* makes or changes; its refusal is an event."""
        try:
            return self._told(cast("Claim", await self._change(operation)))
        except AdmissionRefused as error:
            self._parts.note_refusal(namespace, peer.uid, error.refusal)
            raise

    async def _change(self, operation: Operation) -> object:
        return await self._parts.committer.submit(operation)

    def _host(self) -> Host:
        parts = self._parts
        return Host(parts.observer.facts, parts.clock(), parts.admission_policy)

    def _quota(self, name: str) -> Json:
        return views.quota_view(self._state, name)

    def _told(self, row: Claim) -> Json:
        return self._dated({"claim": views.claim_view(row, self._parts.clock())})

    def _dated(self, answer: Json) -> Json:
        return {**answer, "generation": self._state.generation, "source": "daemon"}


def _by(peer: Peer) -> str:
    return f"uid:{peer.uid}"
