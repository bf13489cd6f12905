"""Serve HTTP/1.1 on a unix socket: whole requests in, answers or streams out, no routes.

uvicorn parses and writes HTTP, `protocol` bounds a request and names the peer; this file reads
JSON strictly, bounds the time of an answer, and turns every error into the one problem format.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

import uvicorn

from axern.api.listener import EXHAUSTED
from axern.api.protocol import (
    IDLE_DEADLINE_S,
    ErrorView,
    FilePart,
    LimitedProtocol,
    Peer,
    Response,
)
from axern.api.strict_json import parse_json_object
from ledger.errors import AxernError, InvalidArgument, LedgerBusy

QUERY_LIMIT = 16
OVERDUE_LIMIT = 256
"""So many requests may go on after their client was told `busy`; then nothing new is begun."""
_ACCEPTED_AT_A_TIME = 16
"""Connections taken before the first of them is counted: each has its descriptor by then."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """One request, its body complete and within bounds; `id` is made here and returned."""

    id: str
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: Peer

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            InvalidArgument: Not UTF-8 JSON, a key twice, NaN, too deep, or no object.
        """
        return parse_json_object(self.body)


@dataclass(frozen=True, slots=True)
class StreamResponse:
    """An answer that goes on; its parts are sent as they come, as slowly as the client reads."""

    parts: AsyncIterator[bytes | FilePart]
    content_type: str = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that may be long in coming: counted like a stream, ended if the client leaves."""

    answer: Coroutine[Any, Any, Response]


Answer = Response | StreamResponse | Later
Handler = Callable[[Request], Awaitable[Answer]]


class _Application:
    """The ASGI side: read the body, call the handler, send what it returns."""

    def __init__(self, handler: Handler, error_view: ErrorView, deadline_s: float) -> None:
        self._handler = handler
        self._error_view = error_view
        self._deadline_s = deadline_s
        self._overdue: set[asyncio.Task[Answer]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request_id = secrets.token_hex(8)
        connection: LimitedProtocol = scope["state"]["connection"]
        response: Response | StreamResponse
        try:
            request = await _read(scope, receive, request_id, connection.peer)
            answer = await self._in_time(request)
            response = await _response_of(answer, connection, receive)
        except AxernError as error:
            response = self._error_view(error, request_id)
        except Exception as error:  # noqa: BLE001 - a bug must not take down the other clients
            hidden = _told(error, f"request {request_id}: {scope['method']} {scope['path']}")
            response = self._error_view(hidden, request_id)
        if isinstance(response, StreamResponse):
            await self._stream(response, request_id, connection, receive, send)
        else:
            await _send_whole(response, request_id, send, last=connection.is_stream)

    async def _in_time(self, request: Request) -> Answer:
        """Return the handler's answer, or be busy: what is half done must not be cancelled."""
        if len(self._overdue) >= OVERDUE_LIMIT:
            raise LedgerBusy(
                "too many requests are stuck", hint="look at the daemon's log", retry_after_s=10
            )
        task = asyncio.ensure_future(self._handler(request))
        await asyncio.wait((task,), timeout=self._deadline_s)
        if task.done():
            return task.result()
        self._overdue.add(task)
        task.add_done_callback(self._settle)
        _log.warning(
            "request %s: %s %s takes longer than %s s",
            request.id,
            request.method,
            request.path,
            self._deadline_s,
        )
        raise LedgerBusy(
            f"no answer within {self._deadline_s:g} s; it may still be carried out",
            hint="ask again, with the same request id where there is one",
            retry_after_s=1,
        )

    def _settle(self, task: asyncio.Task[Answer]) -> None:
        """Let go of a request that nobody waits for any more."""
        self._overdue.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AxernError):
            _log.error("an overdue request failed", exc_info=error)

    async def _stream(
        self,
        response: StreamResponse,
        request_id: str,
        connection: LimitedProtocol,
        receive: Any,
        send: Any,
    ) -> None:
        """Send the parts until they end or the client leaves: `send` does not say that it has."""
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # First of all it lets the connection be read, which must not happen within a file.
        leaving = asyncio.create_task(_left(receive))
        sending = asyncio.create_task(_send_parts(response.parts, request_id, connection, send))
        # Cancelled, the daemon ends, and the client has not read so far; it may come back.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                sending.cancel()
                await sending


async def _read(scope: Any, receive: Any, request_id: str, peer: Peer) -> Request:
    """Return the whole request; `protocol` has bounded its length."""
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidArgument("the client left before its request was complete")
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return Request(
        id=request_id,
        method=scope["method"],
        path=scope["path"],
        query=_query(scope["query_string"].decode("latin-1")),
        headers={
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        },
        body=bytes(body),
        peer=peer,
    )


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_LIMIT)
    except ValueError:
        raise InvalidArgument(f"a query may have at most {QUERY_LIMIT} parameters") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidArgument("a query parameter stands twice", hint="give each of them once")
    return query


def _told(error: Exception, what: str) -> AxernError:
    """Log *error* and return what the client may know of it."""
    if isinstance(error, OSError) and error.errno in EXHAUSTED:
        _log.warning("%s: %s", what, error.strerror)
        return LedgerBusy(
            f"the host has run out of something: {error.strerror}",
            hint="try again in a while",
            retry_after_s=1,
        )
    _log.error("%s", what, exc_info=error)
    return AxernError("the daemon failed; its log has the details")


async def _response_of(
    answer: Answer, connection: LimitedProtocol, receive: Any
) -> Response | StreamResponse:
    """Return what can be sent now; a stream or a long wait takes a place of its own first."""
    if isinstance(answer, Response):
        return answer
    try:
        await connection.begin_stream()
    except AxernError:
        if isinstance(answer, Later):
            answer.answer.close()
        raise
    return await _unless_left(answer.answer, receive) if isinstance(answer, Later) else answer


async def _unless_left(answer: Coroutine[Any, Any, Response], receive: Any) -> Response:
    """Return *answer*, or cancel it when the client leaves."""
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise InvalidArgument("the client left before its answer came")
    finally:
        leaving.cancel()
        answering.cancel()
        await asyncio.wait((answering,))


async def _send_whole(response: Response, request_id: str, send: Any, *, last: bool) -> None:
    headers = [
        (b"content-type", response.content_type.encode()),
        (b"content-length", str(len(response.body)).encode()),
        (b"x-request-id", request_id.encode()),
        *((name.encode(), value.encode()) for name, value in response.headers),
        *([(b"connection", b"close")] if last else []),
    ]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _send_parts(
    parts: AsyncIterator[bytes | FilePart], request_id: str, connection: LimitedProtocol, send: Any
) -> None:
    """Send *parts* until they end or can't go on, which a client learns when it comes back."""
    try:
        async with contextlib.aclosing(cast("Any", parts)) as closing:
            async for part in closing:
                if isinstance(part, FilePart):
                    with part.file:
                        await connection.send_file(part)
                else:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
    except (AxernError, OSError) as error:
        _log.info("request %s: its stream can't go on: %s", request_id, error)
    await send({"type": "http.response.body", "body": b""})


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Server(uvicorn.Server):
    """uvicorn in a loop that is not its own: the daemon handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave every signal to the daemon."""
        yield


def build(
    handler: Handler, error_view: ErrorView, protocol: type[LimitedProtocol] = LimitedProtocol
) -> Server:
    """Return a server for *handler*; start it with `serve(sockets=[listener.listen(…)])`.

    Args:
        handler: Answers a request; an AxernError that it raises becomes `error_view`'s answer.
        error_view: Turns an error and a request id into an answer.
        protocol: Bounds the connections; its class attributes are the limits.
    """
    config = uvicorn.Config(
        _Application(handler, error_view, protocol.answer_deadline_s),
        http=protocol.bound_to(error_view),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(IDLE_DEADLINE_S),
        timeout_graceful_shutdown=2,
        backlog=_ACCEPTED_AT_A_TIME,
    )
    return Server(config)
