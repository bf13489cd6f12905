"""The routes of processes that are added to a running sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from axern.api import schema
from axern.api.messages import Later, Response
from axern.daemon import queries
from axern.daemon.exec_service import Asked, ExecService
from axern.daemon.routes import Answer, Parameters, Route, answer_json
from ledger import rights

if TYPE_CHECKING:
    from axern.api.messages import Request
    from axern.daemon.parts import Parts

LEASE_HEADER = "x-axern-lease"
"""Has the token of an execution lease, for who is neither its holder nor the run's owner."""
_ALL = "/v2/runs/{id}/execs"
_ONE = "/v2/runs/{id}/execs/{exec}"


class ExecRoutes:
    """What the API answers about added processes."""

    def __init__(self, parts: Parts) -> None:
        self.service = ExecService(parts)
        self._parts = parts

    def routes(self) -> tuple[Route, ...]:
        """Return all of them."""
        return (
            Route(
                "GET", _ALL, rights.SEE, "list the processes that were added to a run", self._list
            ),
            Route(
                "POST",
                _ALL,
                rights.EXEC,
                "add a process to a run; its descriptors come beside the answer (SCM_RIGHTS)",
                self._begin,
                schema.ExecRequest,
            ),
            Route("GET", _ONE, rights.STEER, "wait for the end of an added process", self._wait),
            Route(
                "DELETE",
                _ONE,
                rights.STEER,
                "revoke its execution lease, which kills it",
                self._revoke,
            ),
            Route(
                "POST",
                f"{_ONE}/signal",
                rights.STEER,
                "send an added process a signal",
                self._signal,
                schema.SignalRequest,
            ),
        )

    async def _list(self, request: Request, parameters: Parameters) -> Answer:
        queries.known(request)
        found = self._parts.resolve_id(parameters["id"])
        return answer_json(200, {"execs": await self.service.of_run(found)})

    async def _begin(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(schema.ExecRequest, request.json())

        async def begun() -> Response:
            view, files = await self.service.begin(parameters["id"], body, request.peer)
            return Response(201, msgspec.json.encode({"exec": view}), files=files)

        return Later(begun())

    async def _wait(self, request: Request, parameters: Parameters) -> Answer:
        queries.known(request)

        async def waited() -> Response:
            return answer_json(200, {"exec": await self.service.wait(_asked(request, parameters))})

        return Later(waited())

    async def _revoke(self, request: Request, parameters: Parameters) -> Answer:
        queries.known(request)
        return answer_json(200, {"exec": await self.service.revoke(_asked(request, parameters))})

    async def _signal(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(schema.SignalRequest, request.json())
        asked = _asked(request, parameters)
        return answer_json(200, {"exec": await self.service.signal(asked, body.signal)})


def _asked(request: Request, parameters: Parameters) -> Asked:
    token = request.headers.get(LEASE_HEADER)
    return Asked(parameters["id"], parameters["exec"], request.peer, token)
