"""Serve HTTP/1.1 on a unix socket: whole requests in, answers or streams out, no routes.

`protocol` parses, bounds and orders; this file lets a handler answer, bounds the time of an answer,
and turns every error into the one problem format.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from axern.api.listener import EXHAUSTED
from axern.api.messages import (
    LAST_CHUNK,
    Answer,
    ErrorView,
    FilePart,
    Later,
    Request,
    Response,
    StreamResponse,
    chunk,
    stream_head,
)
from axern.api.protocol import Exchange, LimitedProtocol
from ledger.errors import AxernError, InvalidArgument, LedgerBusy

OVERDUE_LIMIT = 256
"""So many requests may go on after their client was told `busy`; then nothing new is begun."""
_ACCEPTED_AT_A_TIME = 16
"""Connections taken before the first of them is counted: each has its descriptor by then."""
_GRACE_S = 2.0
"""How long what is under way may take when the server ends."""

_log = logging.getLogger(__name__)


Handler = Callable[[Request], Awaitable[Answer]]
Shortly = Callable[[Request, Callable[[Response | Awaitable[Answer]], None]], bool]
"""Begins to answer what is ordinary, without a task, or returns False and has done nothing.

It hands its answer, or what is left to do for one, to the second argument: once, and later.
"""


def _never(_request: Request, _reply: object) -> bool:
    return False


class _Application:
    """Lets each exchange be answered, shortly or by the handler in a task, and sends the answer."""

    def __init__(self, handler: Handler, error_view: ErrorView, shortly: Shortly) -> None:
        self._handler = handler
        self._error_view = error_view
        self._shortly = shortly
        self.tasks: set[asyncio.Task[None]] = set()
        self._overdue: set[Exchange] = set()

    def answer(self, connection: LimitedProtocol, exchange: Exchange) -> None:
        """Begin to answer *exchange*."""
        request = exchange.request
        if len(self._overdue) < OVERDUE_LIMIT:
            try:
                if self._shortly(request, partial(self._reply, connection, exchange)):
                    return
            except Exception as error:  # noqa: BLE001 - a bug must not take down the other clients
                self._begin(connection, exchange, _failed(error))
                return
        self._begin(connection, exchange, self._handle(request))

    def _reply(
        self,
        connection: LimitedProtocol,
        exchange: Exchange,
        answer: Response | Awaitable[Answer],
    ) -> None:
        """Send an *answer* that came shortly, or let what is left of it go on in a task."""
        if not isinstance(answer, Response):
            self._begin(connection, exchange, answer)
        elif exchange.is_answered:
            self._overdue.discard(exchange)
        else:
            connection.respond(exchange, answer)

    def _begin(
        self, connection: LimitedProtocol, exchange: Exchange, answering: Awaitable[Answer]
    ) -> None:
        task = connection.loop.create_task(self._serve(connection, exchange, answering))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _handle(self, request: Request) -> Answer:
        if len(self._overdue) >= OVERDUE_LIMIT:
            raise LedgerBusy(
                "too many requests are stuck", hint="look at the daemon's log", retry_after_s=10
            )
        return await self._handler(request)

    def give_up(self, connection: LimitedProtocol, exchange: Exchange) -> None:
        """Tell the client `busy`; what is half done must not be cancelled."""
        if exchange.is_answered or exchange.error is not None:
            return
        self._overdue.add(exchange)
        request, seconds = exchange.request, connection.answer_deadline_s
        what = (request.id, request.method, request.path)
        _log.warning("request %s: %s %s takes longer than %s s", *what, seconds)
        error = LedgerBusy(
            f"no answer within {seconds:g} s; it may still be carried out",
            hint="ask again, with the same request id where there is one",
            retry_after_s=1,
        )
        connection.respond(exchange, self._error_view(error, request.id))

    async def _serve(
        self, connection: LimitedProtocol, exchange: Exchange, answering: Awaitable[Answer]
    ) -> None:
        """Answer *exchange* with what *answering* comes to, unless it was given up meanwhile."""
        try:
            await self._serve_on(connection, exchange, answering)
        finally:
            self._overdue.discard(exchange)

    async def _serve_on(
        self, connection: LimitedProtocol, exchange: Exchange, answering: Awaitable[Answer]
    ) -> None:
        request = exchange.request
        response: Response | StreamResponse
        try:
            answer = await answering
            if exchange.is_answered:
                _drop(answer)
                return
            response = (
                answer if isinstance(answer, Response) else await _response_of(answer, connection)
            )
        except AxernError as error:
            response = self._error_view(error, request.id)
        except Exception as error:  # noqa: BLE001 - a bug must not take down the other clients
            hidden = _told(error, f"request {request.id}: {request.method} {request.path}")
            response = self._error_view(hidden, request.id)
        if isinstance(response, StreamResponse):
            exchange.is_answered = True
            await _stream(response, request.id, connection)
        elif not exchange.is_answered:
            connection.respond(exchange, response)
        else:
            response.drop()


async def _failed(error: Exception) -> Answer:
    raise error


def _drop(answer: Answer) -> None:
    """Let go of an answer that nobody waits for any more."""
    if isinstance(answer, Later):
        answer.answer.close()
    elif isinstance(answer, Response):
        answer.drop()


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


async def _response_of(answer: Answer, connection: LimitedProtocol) -> Response | StreamResponse:
    """Return what can be sent now; a stream or a long wait takes a place of its own first."""
    try:
        await connection.begin_stream()
    except AxernError:
        _drop(answer)
        raise
    return await _unless_left(answer.answer, connection) if isinstance(answer, Later) else answer


async def _unless_left(
    answer: Coroutine[Any, Any, Response], connection: LimitedProtocol
) -> Response:
    """Return *answer*, or cancel it when the client leaves."""
    answering = asyncio.create_task(answer)
    leaving = asyncio.create_task(connection.left.wait())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise InvalidArgument("the client left before its answer came")
    finally:
        leaving.cancel()
        answering.cancel()
        await asyncio.wait((answering,))


async def _stream(response: StreamResponse, request_id: str, connection: LimitedProtocol) -> None:
    """Send the parts until they end or the client leaves: `send` does not say that it has."""
    connection.is_streaming = True
    connection.transport.write(stream_head(response, request_id))
    leaving = asyncio.create_task(connection.left.wait())
    sending = asyncio.create_task(_send_parts(response.parts, request_id, connection))
    # Cancelled, the daemon ends, and the client has not read so far; it may come back.
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await sending


async def _send_parts(
    parts: AsyncIterator[bytes | FilePart], request_id: str, connection: LimitedProtocol
) -> None:
    """Send *parts* until they end or can't go on, which a client learns when it comes back."""
    try:
        async with contextlib.aclosing(cast("Any", parts)) as closing:
            async for part in closing:
                if isinstance(part, FilePart):
                    with part.file:
                        await connection.send_file(part)
                elif part:
                    await connection.send(chunk(part))
    except (AxernError, OSError) as error:
        _log.info("request %s: its stream can't go on: %s", request_id, error)
    await connection.send(LAST_CHUNK)
    connection.transport.close()


class Server:
    """Listens and answers until it is stopped; made by `build`."""

    def __init__(self, application: _Application, protocol: type[LimitedProtocol]) -> None:
        self._application = application
        self._protocol = protocol
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Let `serve` come to its end; any thread may call it, once it serves."""
        if self._loop is None:
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve on *sockets* and close them in the end."""
        self._loop = loop = asyncio.get_running_loop()
        servers = [
            await loop.create_server(self._protocol, sock=each, backlog=_ACCEPTED_AT_A_TIME)
            for each in sockets
        ]
        try:
            await self._stopping.wait()
        finally:
            for server in servers:
                server.close()
            for each in sockets:
                each.close()
        await self._end()

    async def _end(self) -> None:
        """Let what is under way be answered for a moment, then end it."""
        connections = tuple(self._protocol.tally.open)
        for connection in connections:
            connection.end_soon()
        leaving = [asyncio.create_task(each.left.wait()) for each in connections]
        under_way = (*leaving, *self._application.tasks)
        if under_way:
            await asyncio.wait(under_way, timeout=_GRACE_S)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for connection in connections:
            connection.transport.abort()


def build(
    handler: Handler,
    error_view: ErrorView,
    protocol: type[LimitedProtocol] = LimitedProtocol,
    *,
    shortly: Shortly = _never,
) -> Server:
    """Return a server for *handler*; start it with `serve(sockets=[listener.listen(…)])`.

    Args:
        handler: Answers a request; an AxernError that it raises becomes `error_view`'s answer.
        error_view: Turns an error and a request id into an answer.
        protocol: Bounds the connections; its class attributes are the limits.
        shortly: Answers what it can without a task; the rest is the handler's.
    """
    application = _Application(handler, error_view, shortly)
    return Server(
        application, protocol.bound_to(error_view, application.answer, application.give_up)
    )
