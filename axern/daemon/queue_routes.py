"""The routes of the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api.messages import StreamResponse
from axern.daemon import queries
from axern.daemon.routes import Answer, Parameters, Route, answer_json
from ledger import rights

if TYPE_CHECKING:
    from axern.api.messages import Request
    from axern.daemon.lease_service import LeaseService
    from axern.daemon.parts import Json, Parts
    from axern.daemon.queue_service import QueueService
    from axern.daemon.run_service import RunService

_TICKET = "/v2/queue/{id}"


class QueueRoutes:
    """What the API answers about those who wait."""

    def __init__(
        self, parts: Parts, service: QueueService, runs: RunService, leases: LeaseService
    ) -> None:
        self._parts = parts
        self._service = service
        self._runs = runs
        self._leases = leases

    def routes(self) -> tuple[Route, ...]:
        """Return all of them."""
        return (
            Route("GET", "/v2/queue", rights.SEE, "list who waits, in order", self._list),
            Route("POST", "/v2/queue/pause", rights.REST, "grant nothing that waits", self._pause),
            Route("DELETE", "/v2/queue/pause", rights.REST, "let the queue go on", self._resume),
            Route("GET", _TICKET, rights.SEE, "show one who waits", self._get),
            Route("DELETE", _TICKET, rights.LEAVE_QUEUE, "take one out of it", self._cancel),
            Route(
                "GET",
                f"{_TICKET}/stream",
                rights.LEAVE_QUEUE,
                "wait for a grant; who leaves gives up",
                self._stream,
            ),
        )

    async def _list(self, request: Request, _: Parameters) -> Answer:
        queries.known(request)
        return answer_json(200, self._service.list())

    async def _get(self, request: Request, parameters: Parameters) -> Answer:
        queries.known(request)
        return answer_json(200, self._service.get(parameters["id"]))

    async def _cancel(self, request: Request, parameters: Parameters) -> Answer:
        return answer_json(200, await self._service.cancel(parameters["id"], request.peer))

    async def _pause(self, request: Request, _: Parameters) -> Answer:
        return answer_json(200, await self._service.rest(request.peer, resting=True))

    async def _resume(self, request: Request, _: Parameters) -> Answer:
        return answer_json(200, await self._service.rest(request.peer, resting=False))

    async def _stream(self, request: Request, parameters: Parameters) -> Answer:
        peer = request.peer

        def told(ticket_id: str) -> Json:
            row = self._parts.ledger.state.find_reservation(ticket_id)
            if row is not None and not row.is_sandbox:
                return self._leases.told(row, self._parts.clock())
            return {"run": self._runs.view(ticket_id, peer)}

        return StreamResponse(self._service.stream(parameters["id"], peer, told))
