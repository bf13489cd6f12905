"""The routes of the API: from a request to a use case, and from an error to its answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import axern
from axern.api import openapi, schema, short_schema
from axern.api.batch_schema import BatchRequest
from axern.api.messages import Request, Response, StreamResponse
from axern.api.views import refusal_view
from axern.daemon import queries
from axern.daemon.batch_service import BatchService
from axern.daemon.event_routes import EventRoutes
from axern.daemon.exec_routes import ExecRoutes
from axern.daemon.input_service import InputService
from axern.daemon.inspection import Inspection
from axern.daemon.lease_service import LeaseService
from axern.daemon.log_service import LogService
from axern.daemon.namespace_routes import NamespaceRoutes
from axern.daemon.node_routes import NodeRoutes
from axern.daemon.parts import sha256_of
from axern.daemon.queue_routes import QueueRoutes
from axern.daemon.queue_service import QueueService
from axern.daemon.release_service import ReleaseService
from axern.daemon.routes import Answer, Parameters, Route, Routes, answer_json
from axern.daemon.run_lists import RunLists
from axern.daemon.run_service import RunService
from axern.daemon.service import Service
from axern.daemon.short_way import ShortWay
from axern.daemon.template_service import TemplateService
from axern.runtime.template_tree import shown
from ledger import rights
from ledger.errors import (
    CODES,
    AdmissionRefused,
    AxernError,
    GroupRefused,
    InvalidArgument,
    NotFound,
)
from ledger.release import Asked
from ledger.reservation import PHASES

if TYPE_CHECKING:
    from axern.daemon.parts import Parts

_LIST_PARAMETERS = (
    "namespace",
    "status",
    "label",
    "owner",
    "created_from_ms",
    "created_before_ms",
    "limit",
    "cursor",
)


class Handlers:
    """Everything that the API answers."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._runs = RunService(parts)
        self._lists = RunLists(parts, self._runs)
        self._input = InputService(parts)
        self._logs = LogService(parts, self._runs)
        self._leases = LeaseService(parts)
        self._releases = ReleaseService(parts)
        self._queue = QueueService(parts)
        self._batches = BatchService(parts, self._leases, self._releases)
        self._inspection = Inspection(parts)
        self.short_way = ShortWay(parts, self._leases, self._releases)
        self._service = Service(parts)
        self._templates = TemplateService(parts)
        execs = ExecRoutes(parts)
        self._execs = execs.service
        node = NodeRoutes(parts, self._service, self._inspection, self._templates)
        self._routes = Routes(
            (
                *self._of_runs(),
                *self._of_reservations(),
                *execs.routes(),
                *node.routes(),
                *NamespaceRoutes(parts).routes(),
                *EventRoutes(parts).routes(),
                *QueueRoutes(parts, self._queue, self._runs, self._leases).routes(),
                Route("GET", "/v2/openapi.json", rights.HEAR, "show this document", self._openapi),
            )
        )

    def _of_runs(self) -> tuple[Route, ...]:
        return (
            Route(
                "POST",
                "/v2/runs",
                rights.RUN,
                "run a command in a sandbox",
                self._run,
                schema.RunRequest,
            ),
            Route(
                "POST",
                "/v2/explain",
                rights.EXPLAIN,
                "say how a run would be decided on",
                self._explain,
                schema.ExplainRequest,
            ),
            Route("GET", "/v2/runs", rights.SEE, "list the runs, page by page", self._list_runs),
            Route(
                "POST",
                "/v2/runs/prune",
                rights.PRUNE,
                "remove runs that have ended",
                self._prune_runs,
                schema.PruneRequest,
            ),
            Route("GET", "/v2/runs/{id}", rights.SEE, "show one run", self._get_run),
            Route("DELETE", "/v2/runs/{id}", rights.CANCEL, "cancel a run", self._cancel_run),
            Route(
                "POST",
                "/v2/runs/{id}/stdin",
                rights.WRITE_INPUT,
                "hand on standard input",
                self._write_stdin,
            ),
            Route(
                "GET",
                "/v2/runs/{id}/stream",
                rights.TELL_RUN,
                "follow start, output and exit",
                self._stream,
            ),
        )

    def _of_reservations(self) -> tuple[Route, ...]:
        return (
            Route(
                "POST",
                "/v2/reservations",
                rights.HOLD,
                "hold resources without a sandbox",
                self._reserve,
                schema.ReserveRequest,
            ),
            Route(
                "POST",
                "/v2/batch",
                rights.HOLD,
                "reserve, release and renew many leases in one commit",
                self._batch,
                BatchRequest,
            ),
            Route(
                "GET",
                "/v2/reservations",
                rights.SEE,
                "list the reservations",
                self._list_reservations,
            ),
            Route(
                "GET",
                "/v2/reservations/{id}",
                rights.SEE,
                "show one reservation",
                self._get_reservation,
            ),
            Route(
                "DELETE",
                "/v2/reservations/{id}",
                rights.RELEASE,
                "release a reservation",
                self._release,
                schema.ReleaseRequest,
            ),
            Route(
                "POST",
                "/v2/reservations/{id}/heartbeat",
                rights.RENEW,
                "say that a lease's owner is alive",
                self._heartbeat,
                schema.HeartbeatRequest,
            ),
        )

    async def __call__(self, request: Request) -> Answer:
        """Answer *request*; raises AxernError for what can't be done."""
        path = request.path
        found = self._routes.find(request.method, path)
        if found is not None:
            route, parameters = found
            self._parts.require(route.verb, request.peer)
            if request.method != "GET":
                self._parts.condition.require_writable()
            return await route.action(request, parameters)
        known = self._routes.methods(path)
        if known:
            raise InvalidArgument(
                f"{shown(path)} does not take {request.method}, but {', '.join(known)}"
            )
        raise NotFound(
            f"there is no {shown(path)}", hint="GET /v2/openapi.json lists what there is"
        )

    async def _run(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.RunRequest, request.json())
        with self._templates.admitting(body):
            wish = self._queue.wish(body, request.peer)
            return self._waits_or(await self._runs.run(body, request.peer, wish))

    async def _explain(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.ExplainRequest, request.json())
        return answer_json(200, {"decision": await self._runs.explain(body, request.peer)})

    async def _list_runs(self, request: Request, _: Parameters) -> Answer:
        query = queries.known(request, *_LIST_PARAMETERS)
        limit = queries.limit(query)
        page = partial(self._lists.page, limit=limit, cursor=query.get("cursor"))
        runs, cursor = await asyncio.to_thread(page, queries.wanted(query), request.peer)
        return self._marked(
            {"runs": runs, "next_cursor": cursor, "generation": self._service.generation}
        )

    async def _prune_runs(self, request: Request, _: Parameters) -> Answer:
        body = schema.parse(schema.PruneRequest, request.json())
        pruned = await asyncio.to_thread(self._lists.prune, body, request.peer)
        return answer_json(200, {"pruned": pruned})

    async def _get_run(self, request: Request, parameters: Parameters) -> Answer:
        found = self._parts.resolve_id(parameters["id"])
        view = self._runs.view(found, request.peer)
        log = await asyncio.to_thread(self._logs.view, found)
        execs = await self._execs.of_run(found)
        return self._marked({"run": view, "log": log, "execs": execs})

    async def _write_stdin(self, request: Request, parameters: Parameters) -> Answer:
        query = queries.known(request, "offset", "end")
        offset, end = queries.integer(query, "offset") or 0, queries.flag(query, "end")
        taken = await self._input.write(
            parameters["id"], request.body, request.peer, offset=offset, end=end
        )
        return answer_json(200, {"stdin": taken})

    async def _cancel_run(self, request: Request, parameters: Parameters) -> Answer:
        query = queries.known(request, "grace_ms")
        grace_ms = queries.grace_ms(query)
        run = await self._runs.cancel(parameters["id"], grace_ms, request.peer)
        return answer_json(202, {"run": run})

    async def _stream(self, request: Request, parameters: Parameters) -> Answer:
        query = queries.known(request, "from", "follow", "tail", "since_ms", "timestamps")
        form = queries.form(request, timestamps=queries.flag(query, "timestamps"))
        begin = queries.begin(request, query)
        parts = await self._logs.stream(
            parameters["id"],
            begin,
            request.peer,
            form,
            wait=queries.flag(query, "follow", default="true"),
        )
        return StreamResponse(parts, form.content_type)

    async def _reserve(self, request: Request, _: Parameters) -> Answer:
        body = short_schema.reserve(request.body) or schema.parse(
            schema.ReserveRequest, request.json()
        )
        if isinstance(body, short_schema.Reserve):
            return answer_json(201, await self._leases.reserve(body, request.peer))
        wish = self._queue.wish(body, request.peer)
        return self._waits_or(await self._leases.reserve(body, request.peer, wish))

    def _waits_or(self, answer: dict[str, Any]) -> Answer:
        """Return *answer*, or where it has the id of a ticket, how that stands in the queue."""
        ticket_id = answer.pop("ticket_id", None)
        if ticket_id is None:
            return answer_json(201, answer)
        return answer_json(202, {"ticket": self._queue.told(ticket_id), **answer})

    async def _batch(self, request: Request, _: Parameters) -> Answer:
        body = short_schema.batch(request.body) or schema.parse(BatchRequest, request.json())
        results = [
            {"status": _status(result), "error": error_view(result)}
            if isinstance(result, AxernError)
            else {"status": 200, **result}
            for result in await self._batches.perform(body, request.peer)
        ]
        return answer_json(200, {"results": results, "generation": self._service.generation})

    async def _list_reservations(self, request: Request, _: Parameters) -> Answer:
        query = queries.known(request, "namespace", "phase")
        queries.require_one_of(query, "phase", PHASES)
        found = self._service.reservations(query.get("namespace"), query.get("phase"))
        return self._marked(
            {
                "reservations": found,
                "generation": self._service.generation,
                "source": "daemon",
            }
        )

    async def _get_reservation(self, request: Request, parameters: Parameters) -> Answer:
        query = queries.known(request, "evidence", "history")
        answer = await self._inspection.reservation(
            parameters["id"],
            with_evidence=queries.flag(query, "evidence"),
            with_history=queries.flag(query, "history"),
        )
        return self._marked(answer)

    async def _release(self, request: Request, parameters: Parameters) -> Answer:
        query = queries.known(request, "force", "reason", "grace_ms")
        body = schema.parse(schema.ReleaseRequest, request.json() if request.body else {})
        asked = Asked(
            self._parts.grants.caller(request.peer),
            queries.flag(query, "force"),
            query.get("reason"),
            None if body.token is None else sha256_of(body.token),
        )
        grace_ms = queries.grace_ms(query)
        over, answer = await self._releases.release(parameters["id"], asked, grace_ms)
        return answer_json(200 if over else 202, answer)

    async def _heartbeat(self, request: Request, parameters: Parameters) -> Answer:
        body = schema.parse(schema.HeartbeatRequest, request.json())
        found = self._parts.resolve_id(parameters["id"])
        return answer_json(200, await self._leases.heartbeat(found, body, request.peer))

    def _marked(self, value: dict[str, Any]) -> Response:
        """Return what was read of the ledger, with a word on whether it can be trusted."""
        return answer_json(200, {**value, "ledger_state": self._parts.condition.state})

    async def _openapi(self, _: Request, __: Parameters) -> Answer:
        routes = [(r.method, r.path, r.verb, r.summary, r.body) for r in self._routes.all]
        return answer_json(200, openapi.openapi(axern.__version__, routes))


def error_response(error: AxernError, request_id: str) -> Response:
    """Return the answer for *error*: problem+json with the one error structure inside."""
    status, structure = _status(error), error_view(error)
    problem = {
        "type": f"urn:axern:error:{error.code}",
        "title": structure.get("admission_summary") or error.code.replace("_", " "),
        "status": status,
        "detail": error.message,
        "request_id": request_id,
        "error": structure,
    }
    headers = (("retry-after", str(error.retry_after_s)),) if error.retry_after_s else ()
    return Response(status, msgspec.json.encode(problem), "application/problem+json", headers)


def error_view(error: AxernError) -> dict[str, Any]:
    """Return the structure of *error*; of a group's refusal it names the operation at fault."""
    if isinstance(error, GroupRefused):
        return error_view(error.error) | {"operation": error.index}
    if isinstance(error, AdmissionRefused):
        return refusal_view(error.refusal)
    structure = {
        "code": error.code,
        "retryable": CODES[error.code].retryable,
        "message": error.message,
        "hint": error.hint,
    }
    if error.retry_after_s:
        structure["retry_after_s"] = error.retry_after_s
    return structure


def _status(error: AxernError) -> int:
    return CODES[error.code].http_status or 500
