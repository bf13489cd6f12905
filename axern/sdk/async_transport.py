"""The wire without blocking: one request, or one stream, over a unix socket with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from axern.api import frames, wire
from axern.api.client import (
    ANSWER_LIMIT_BYTES,
    ANSWER_TIMEOUT_S,
    HEALTH_TIMEOUT_S,
    STREAM_TIMEOUT_S,
)
from axern.api.decoding import LINE_LIMIT_BYTES, ChunkedDecoder, Event
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_READ_BYTES = 256 * 1024
_END_OF_HEAD = b"\r\n\r\n"


async def request(
    path: str, method: str, target: str, body: Json | None, timeout_s: float | None
) -> Json:
    """Return the answer of the daemon at *path*; raises as `axern.api.client.Client.request`."""
    async with _connected(path) as connection:
        try:
            async with asyncio.timeout(timeout_s or ANSWER_TIMEOUT_S):
                status, headers = await connection.send(wire.request(method, target, body))
                return wire.decoded(status, await connection.whole(headers))
        except TimeoutError as error:
            raise connection.lost("gave no answer in time") from error


async def events(path: str, target: str) -> AsyncGenerator[Event, None]:
    """Yield the events of the stream *target*, until the daemon ends it; raises as `request`."""
    async with _connected(path) as connection:
        try:
            async with asyncio.timeout(STREAM_TIMEOUT_S):
                message = wire.request("GET", target, None, frames.CONTENT_TYPE)
                status, headers = await connection.send(message)
                if not wire.is_stream(headers):
                    wire.decoded(status, await connection.whole(headers))
                    raise ProtocolError(f"the daemon answered {target} with no stream")
        except TimeoutError as error:
            raise connection.lost("gave no answer in time") from error
        parser = wire.parser(headers)
        async with contextlib.aclosing(connection.content(headers)) as parts:
            async for part in parts:
                for event in parser.feed(part):
                    yield event


@contextlib.asynccontextmanager
async def _connected(path: str) -> AsyncIterator[_Connection]:
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT_BYTES)
    except PermissionError as error:
        raise PermissionDenied(
            f"you may not use {path}", hint="members of its group may: see ls -l"
        ) from error
    except OSError as error:  # a time-out is one too, without a word
        raise DaemonUnreachable(
            f"no daemon answers at {path}: {error.strerror or 'it takes nobody'}",
            hint="start it: axernd --config PATH",
        ) from error
    try:
        yield _Connection(path, reader, writer)
    finally:
        writer.close()


class _Connection:
    """One connection, for one request."""

    def __init__(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer

    def lost(self, what: str) -> wire.ConnectionLost:
        """Return the error of a connection that broke after a request was sent."""
        return wire.ConnectionLost(
            f"the daemon at {self._path} {what}", hint="see its log: the standard error of axernd"
        )

    async def send(self, message: bytes) -> tuple[int, dict[str, str]]:
        """Send a request and return the status and headers of its answer."""
        # An answer may be there all the same: a server that refuses does not read to the end.
        with contextlib.suppress(ConnectionError):
            self._writer.write(message)
            await self._writer.drain()
        try:
            data = await self._reader.readuntil(_END_OF_HEAD)
        except asyncio.LimitOverrunError as error:
            raise ProtocolError("the daemon's answer has a head without an end") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self.lost("closed the connection") from error
        return wire.head(data.removesuffix(_END_OF_HEAD))

    async def whole(self, headers: dict[str, str]) -> bytes:
        """Return the content of an answer."""
        content = bytearray()
        async with contextlib.aclosing(self.content(headers)) as parts:
            async for part in parts:
                content += part
                if len(content) > ANSWER_LIMIT_BYTES:
                    raise ProtocolError(f"the daemon's answer exceeds {ANSWER_LIMIT_BYTES} bytes")
        return bytes(content)

    async def content(self, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the content part by part, as it comes."""
        if wire.is_chunked(headers):
            decoder = ChunkedDecoder()
            while not decoder.done:
                yield decoder.feed(await self._receive())
            return
        left = wire.length(headers)
        while left:
            part = (await self._receive())[:left]
            left -= len(part)
            yield part

    async def _receive(self) -> bytes:
        try:
            async with asyncio.timeout(STREAM_TIMEOUT_S):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError as error:
            raise self.lost("gave no answer in time") from error
        except OSError as error:
            raise self.lost("broke the connection") from error
        if not data:
            raise self.lost("closed the connection")
        return data
