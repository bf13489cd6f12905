"""The routes of the node, its templates and doctors, and of who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api import schema
from axern.api.messages import Request, StreamResponse
from axern.daemon.node_service import NodeService
from axern.daemon.routes import Answer, Parameters, Route, answer_json
from ledger import rights

if TYPE_CHECKING:
    from axern.daemon.inspection import Inspection
    from axern.daemon.parts import Parts
    from axern.daemon.service import Service
    from axern.daemon.template_service import TemplateService


class NodeRoutes:
    """What the API answers about the node as a whole."""

    def __init__(
        self,
        parts: Parts,
        service: Service,
        inspection: Inspection,
        templates: TemplateService,
    ) -> None:
        self._parts = parts
        self._service = service
        self._inspection = inspection
        self._templates = templates
        self._standing = NodeService(parts)

    def routes(self) -> tuple[Route, ...]:
        """Return all of them."""
        return (
            Route("GET", "/v2/doctor", rights.SEE, "compare ledger and host", self._doctor),
            Route("GET", "/v2/node", rights.SEE, "show capacity and capabilities", self._node),
            Route("GET", "/v2/node/doctor", rights.SEE, "check the node", self._node_doctor),
            Route(
                "POST",
                "/v2/node/drain",
                rights.STAND,
                "admit nothing new",
                self._drain,
                schema.StandingRequest,
            ),
            Route("DELETE", "/v2/node/drain", rights.STAND, "take new work again", self._undrain),
            Route(
                "POST",
                "/v2/node/retire",
                rights.STAND,
                "take no work ever again",
                self._retire,
                schema.StandingRequest,
            ),
            Route("GET", "/v2/templates", rights.SEE, "list the templates", self._list_templates),
            Route(
                "POST",
                "/v2/templates",
                rights.ADD_TEMPLATE,
                "import a template and follow how far it is",
                self._add_template,
                schema.TemplateRequest,
            ),
            Route(
                "GET", "/v2/templates/{name}", rights.SEE, "show one template", self._get_template
            ),
            Route(
                "DELETE",
                "/v2/templates/{name}",
                rights.ADD_TEMPLATE,
                "remove a template",
                self._remove_template,
            ),
            Route("GET", "/v2/health", rights.HEAR, "answer", self._health),
            Route("GET", "/v2/whoami", rights.HEAR, "say what the caller may do", self._whoami),
        )

    async def _doctor(self, _: Request, __: Parameters) -> Answer:
        found = await self._inspection.examine()
        return answer_json(200, found | {"ledger_state": self._parts.condition.state})

    async def _node_doctor(self, _: Request, __: Parameters) -> Answer:
        return answer_json(200, await self._inspection.node())

    async def _node(self, _: Request, __: Parameters) -> Answer:
        return answer_json(200, {"node": self._service.node(), "source": "daemon"})

    async def _drain(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.StandingRequest, request.json())
        return answer_json(200, await self._standing.drain(body.reason, request.peer))

    async def _undrain(self, request: Request, _: Parameters) -> Answer:
        return answer_json(200, await self._standing.undrain(request.peer))

    async def _retire(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.StandingRequest, request.json())
        return answer_json(200, await self._standing.retire(body.reason, request.peer))

    async def _list_templates(self, _: Request, __: Parameters) -> Answer:
        return answer_json(200, {"templates": await self._templates.list()})

    async def _add_template(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.TemplateRequest, request.json())
        return StreamResponse(self._templates.add(body))

    async def _get_template(self, _: Request, parameters: Parameters) -> Answer:
        return answer_json(200, {"template": await self._templates.get(parameters["name"])})

    async def _remove_template(self, _: Request, parameters: Parameters) -> Answer:
        removed = await self._templates.remove(parameters["name"])
        return answer_json(200, {"template": removed})

    async def _health(self, _: Request, __: Parameters) -> Answer:
        return answer_json(200, self._service.health())

    async def _whoami(self, request: Request, _: Parameters) -> Answer:
        caller = self._parts.grants.caller(request.peer)
        you = {
            "uid": caller.uid,
            "rights": [right for right in rights.RIGHTS if right in caller.rights],
            "namespaces": sorted(caller.namespaces),
        }
        return answer_json(200, {"you": you})
