"""The route of all events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from axern.api.messages import StreamResponse
from axern.daemon import event_number, event_view, queries
from axern.daemon.event_service import Begin, EventService
from axern.daemon.event_stream import Form, Wanted
from axern.daemon.routes import Answer, Parameters, Route
from ledger import rights

if TYPE_CHECKING:
    from axern.api.messages import Request
    from axern.daemon.parts import Parts

LINES = "application/x-ndjson"
_PARAMETERS = ("since", "since_ms", "namespace", "kind", "follow")


class EventRoutes:
    """What the API answers about events."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._service = EventService(parts)

    def routes(self) -> tuple[Route, ...]:
        """Return all of them."""
        summary = "follow everything that happens"
        return (Route("GET", "/v2/events", rights.SEE, summary, self._stream),)

    async def _stream(self, request: Request, _: Parameters) -> Answer:
        query = queries.known(request, *_PARAMETERS)
        wait = queries.flag(query, "follow", default="true")
        queries.require_one_of(query, "kind", event_view.KINDS)
        kinds = query["kind"].split(",") if "kind" in query else ()
        begin = _begin(request, query, wait=wait)
        viewer = self._parts.grants.caller(request.peer)
        wanted = Wanted(viewer, query.get("namespace"), frozenset(kinds), begin.wall_ms or 0)
        form = Form(as_lines=request.headers.get("accept", "") == LINES)
        parts = await self._service.stream(begin, wanted, form, wait=wait)
        return StreamResponse(parts, form.content_type)


def _begin(request: Request, query: dict[str, str], *, wait: bool) -> Begin:
    """Return where the reader wants to begin; who reconnects goes on where it was."""
    since_ms = queries.integer(query, "since_ms")
    last = request.headers.get("last-event-id", "")
    number = last or query.get("since")
    if number is not None:
        name = "last-event-id" if last else "since"
        return Begin(event_number.parse(number, name), since_ms)
    return Begin(wall_ms=since_ms, now=wait and since_ms is None)
