"""The routes of namespaces, quotas and claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api import namespace_schema as bodies
from axern.api import schema
from axern.daemon import queries
from axern.daemon.namespace_service import NamespaceService
from axern.daemon.routes import Answer, Parameters, Route, answer_json
from ledger import rights

if TYPE_CHECKING:
    from axern.api.messages import Request
    from axern.daemon.parts import Parts

_NAMESPACE = "/v2/namespaces/{name}"
_QUOTA = "/v2/quotas/{namespace}"
_CLAIM = "/v2/claims/{id}"


class NamespaceRoutes:
    """What the API answers about namespaces."""

    def __init__(self, parts: Parts) -> None:
        self._service = NamespaceService(parts)

    def routes(self) -> tuple[Route, ...]:
        """Return all of them."""
        return (
            Route("GET", "/v2/namespaces", rights.SEE, "list the namespaces", self._list),
            Route(
                "POST",
                "/v2/namespaces",
                rights.GOVERN,
                "make a namespace",
                self._create,
                bodies.NamespaceRequest,
            ),
            Route("GET", _NAMESPACE, rights.SEE, "show one namespace", self._get),
            Route(
                "PATCH",
                _NAMESPACE,
                rights.SET_DEFAULTS,
                "change what one request of a namespace may be",
                self._update,
                bodies.NamespaceUpdate,
            ),
            Route("DELETE", _NAMESPACE, rights.GOVERN, "delete an empty namespace", self._delete),
            Route("GET", "/v2/quotas", rights.SEE, "list the quotas", self._quotas),
            Route("GET", _QUOTA, rights.SEE, "show one quota and what is in use", self._quota),
            Route(
                "PATCH",
                _QUOTA,
                rights.GOVERN,
                "change the ceilings that are named",
                self._set_quota,
                bodies.QuotaRequest,
            ),
            Route("DELETE", _QUOTA, rights.GOVERN, "take every ceiling away", self._unset_quota),
            Route(
                "GET",
                f"{_QUOTA}/events",
                rights.SEE,
                "list what a namespace was refused",
                self._events,
            ),
            Route("GET", "/v2/claims", rights.SEE, "list the claims", self._claims),
            Route(
                "POST",
                "/v2/claims",
                rights.GOVERN,
                "guarantee capacity to a namespace",
                self._create_claim,
                bodies.ClaimRequest,
            ),
            Route("GET", _CLAIM, rights.SEE, "show one claim", self._claim),
            Route(
                "PATCH",
                _CLAIM,
                rights.GOVERN,
                "change a claim",
                self._update_claim,
                bodies.ClaimUpdateRequest,
            ),
            Route("DELETE", _CLAIM, rights.GOVERN, "give a claim up", self._release_claim),
        )

    async def _list(self, request: Request, _: Parameters) -> Answer:
        queries.known(request)
        return answer_json(200, self._service.list())

    async def _create(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(bodies.NamespaceRequest, request.json())
        return answer_json(201, await self._service.create(body, request.peer))

    async def _get(self, _: Request, parameters: Parameters) -> Answer:
        return answer_json(200, self._service.get(parameters["name"]))

    async def _update(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(bodies.NamespaceUpdate, request.json())
        return answer_json(200, await self._service.update(parameters["name"], body, request.peer))

    async def _delete(self, request: Request, parameters: Parameters) -> Answer:
        return answer_json(200, await self._service.delete(parameters["name"], request.peer))

    async def _quotas(self, request: Request, _: Parameters) -> Answer:
        query = queries.known(request, "constrained", "pressure")
        found = self._service.quotas(
            constrained=queries.flag(query, "constrained"),
            pressure=queries.flag(query, "pressure"),
        )
        return answer_json(200, found)

    async def _quota(self, _: Request, parameters: Parameters) -> Answer:
        return answer_json(200, self._service.quota(parameters["namespace"]))

    async def _set_quota(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(bodies.QuotaRequest, request.json())
        name = parameters["namespace"]
        return answer_json(200, await self._service.set_quota(name, body, request.peer))

    async def _unset_quota(self, request: Request, parameters: Parameters) -> Answer:
        name = parameters["namespace"]
        return answer_json(200, await self._service.unset_quota(name, request.peer))

    async def _events(self, request: Request, parameters: Parameters) -> Answer:
        limit = queries.limit(queries.known(request, "limit"))
        return answer_json(200, self._service.events(parameters["namespace"], limit))

    async def _claims(self, request: Request, _: Parameters) -> Answer:
        query = queries.known(request, "namespace")
        return answer_json(200, self._service.claims(query.get("namespace")))

    async def _create_claim(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(bodies.ClaimRequest, request.json())
        return answer_json(201, await self._service.create_claim(body, request.peer))

    async def _claim(self, _: Request, parameters: Parameters) -> Answer:
        return answer_json(200, self._service.claim(parameters["id"]))

    async def _update_claim(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(bodies.ClaimUpdateRequest, request.json())
        changed = await self._service.update_claim(parameters["id"], body, request.peer)
        return answer_json(200, changed)

    async def _release_claim(self, request: Request, parameters: Parameters) -> Answer:
        return answer_json(200, await self._service.release_claim(parameters["id"], request.peer))
