"""Serve HTTP/1.1 on a unix socket: whole requests in, answers or streams out, no routes.

uvicorn parses and writes HTTP, `protocol` bounds the head of a request and names the peer; this
file bounds the body, reads JSON strictly, and turns every error into the one problem format.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

import uvicorn

from axern.api.protocol import (
    CONNECTION_LIMIT,
    IDLE_DEADLINE_S,
    ErrorView,
    LimitedProtocol,
    Peer,
    Response,
)
from ledger.errors import AxernError, InvalidArgument

BODY_LIMIT_BYTES = 1024**2
JSON_DEPTH_LIMIT = 8
SHOWN_LENGTH = 64
"""How much of a client's own text an error repeats."""

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

    parts: AsyncIterator[bytes]
    content_type: str = "text/event-stream"


Handler = Callable[[Request], Awaitable[Response | StreamResponse]]


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in *body*, read strictly; raises InvalidArgument for anything else."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
        if b"\\u" in body:
            _refuse_lone_surrogates(value)
    except RecursionError:
        raise InvalidArgument(f"the body nests deeper than {JSON_DEPTH_LIMIT}") from None
    except ValueError as error:
        raise InvalidArgument(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidArgument("the body must be a JSON object")
    if _depth(value) > JSON_DEPTH_LIMIT:
        raise InvalidArgument(f"the body nests deeper than {JSON_DEPTH_LIMIT}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {key[:SHOWN_LENGTH]!r} stands twice")
    return unique


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:SHOWN_LENGTH]} is larger than any number")
    return number


def _refuse_lone_surrogates(value: object) -> None:
    r"""Refuse what an escape such as `\ud800` alone makes: no UTF-8 could ever hold it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair") from None


def _depth(value: object) -> int:
    deepest = 0
    level = [value]
    while level and deepest <= JSON_DEPTH_LIMIT:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            else:
                continue
        deepest += any(isinstance(item, (dict, list)) for item in level)
        level = inner
    return deepest


def listen(path: str, group_id: int | None) -> socket.socket:
    """Return a listening socket at *path*, mode 0660 and owned by *group_id* from its first moment.

    It is bound under a private name and renamed, so that a client never meets wider rights, nor a
    socket that nobody listens on.

    Raises:
        InvalidArgument: The path is too long for a socket, or can't be made.
    """
    try:
        return _listen(path, group_id)
    except OSError as error:
        raise InvalidArgument(f"socket {path}: {error.strerror or error}") from error


def _listen(path: str, group_id: int | None) -> socket.socket:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if _is_served(path):
        raise InvalidArgument(
            f"socket {path}: somebody serves on it already", hint="give this daemon another one"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    private = f"{path}.{secrets.token_hex(4)}"
    previous_mask = os.umask(0o177)
    try:
        listener.bind(private)
    finally:
        os.umask(previous_mask)
    if group_id is not None:
        os.chown(private, -1, group_id)
    os.chmod(private, 0o660)
    listener.listen(CONNECTION_LIMIT)
    listener.settimeout(0)
    os.rename(private, path)
    return listener


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(path) in (0, errno.EAGAIN)


class _Application:
    """The ASGI side: read a bounded body, call the handler, send what it returns."""

    def __init__(self, handler: Handler, error_view: ErrorView) -> None:
        self._handler = handler
        self._error_view = error_view

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request_id = secrets.token_hex(8)
        try:
            request = await self._read(scope, receive, request_id)
            response = await self._handler(request)
        except AxernError as error:
            response = self._error_view(error, request_id)
        except Exception:  # noqa: BLE001 - a bug must not take down the other clients
            _log.exception("request %s: %s %s", request_id, scope["method"], scope["path"])
            hidden = AxernError("the daemon failed; its log has the details")
            response = self._error_view(hidden, request_id)
        if isinstance(response, StreamResponse):
            await self._stream(response, request_id, receive, send)
        else:
            await self._send(response, request_id, send)

    async def _read(self, scope: Any, receive: Any, request_id: str) -> Request:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidArgument("the client left before its request was complete")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > BODY_LIMIT_BYTES:
                raise InvalidArgument(f"the body exceeds {BODY_LIMIT_BYTES} bytes")
        return Request(
            id=request_id,
            method=scope["method"],
            path=scope["path"],
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)),
            headers=headers,
            body=bytes(body),
            peer=cast("Peer", scope["state"]["peer"]),
        )

    async def _send(self, response: Response, request_id: str, send: Any) -> None:
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"content-length", str(len(response.body)).encode()),
            (b"x-request-id", request_id.encode()),
            *((name.encode(), value.encode()) for name, value in response.headers),
        ]
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": response.body})

    async def _stream(
        self, response: StreamResponse, request_id: str, receive: Any, send: Any
    ) -> None:
        """Send the parts until they end or the client leaves: `send` does not say that it has."""
        headers = [
            (b"content-type", response.content_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.create_task(_send_parts(response.parts, send))
        leaving = asyncio.create_task(_left(receive))
        # Cancelled, the daemon ends, and the client has not read so far; it may come back.
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                sending.cancel()
                await sending


async def _send_parts(parts: AsyncIterator[bytes], send: Any) -> None:
    async with contextlib.aclosing(cast("Any", parts)) as closing:
        async for part in closing:
            await send({"type": "http.response.body", "body": part, "more_body": True})
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
    """Return a server for *handler*; start it with `serve(sockets=[listen(…)])`.

    Args:
        handler: Answers a request; an AxernError that it raises becomes `error_view`'s answer.
        error_view: Turns an error and a request id into an answer.
        protocol: Bounds the connections; its class attributes are the limits.
    """
    config = uvicorn.Config(
        _Application(handler, error_view),
        http=protocol.bound_to(error_view),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(IDLE_DEADLINE_S),
        timeout_graceful_shutdown=2,
        backlog=CONNECTION_LIMIT,
    )
    return Server(config)
