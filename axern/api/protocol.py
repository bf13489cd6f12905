"""One client's connection: who is at the other end, and how much and how slowly it may send."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from io import FileIO
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from axern.api.places import Claim, Limits, Places
from ledger.errors import AxernError, InvalidArgument, LedgerBusy

HEADER_COUNT_LIMIT = 64
HEAD_LIMIT_BYTES = 16 * 1024
BODY_LIMIT_BYTES = 1024**2
REQUEST_DEADLINE_S = 10.0
"""For a client to send a request, and again for the daemon to answer it."""
IDLE_DEADLINE_S = 30.0
BUSY_AFTER_S = 1.0
"""How long a client without a place waits before it is told `busy`."""
_UNKEPT_AFTER_S = 1.0
"""How long a part of a file that has no name any more may take: till then it takes up the disk."""
_SLICE_BYTES = 4096
"""Parsed at a time, so that what is pipelined stays bytes until the requests before it are done."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as the kernel says. Source: unix(7), SO_PEERCRED."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a streamed answer: *head*, then *size_bytes* of an open file from *begin* on."""

    head: bytes
    file: FileIO
    begin: int
    size_bytes: int


ErrorView = Callable[[AxernError, str], Response]
"""Turns an error and a request id into an answer."""


@dataclass(slots=True)
class Tally:
    """Who is served by one server: connections, and streams and waits apart from them.

    `open_limit` bounds all connections together by the descriptors that the process may have, so
    that clients leave some for the daemon's own work.
    """

    connections: Places
    streams: Places
    open_limit: int
    open: int = 0


def _tally(limits: Limits) -> Tally:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Tally(
        Places(limits.connections, limits.connections_per_uid),
        Places(limits.streams, limits.streams_per_uid),
        open_limit=descriptors // 2,
    )


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the peer's credentials, bounds on the head, and deadlines.

    Where a bound is passed, the answer is written here and the connection closed: the application
    never hears of it. What makes the length of a request doubtful is refused: two readers that
    count differently would see different requests.
    """

    request_deadline_s = REQUEST_DEADLINE_S
    answer_deadline_s = REQUEST_DEADLINE_S
    idle_deadline_s = IDLE_DEADLINE_S
    busy_after_s = BUSY_AFTER_S
    limits = Limits()

    tally: Tally
    error_view: ErrorView
    peer: Peer
    place: Claim | None = None
    stream: Claim | None = None
    deadline: asyncio.TimerHandle | None = None
    stalled: asyncio.TimerHandle | None = None
    head_bytes = 0
    head_complete = False
    receiving = False
    requests_received = 0

    @classmethod
    def bound_to(cls, error_view: ErrorView) -> type[LimitedProtocol]:
        """Return a subclass for one server: its own count of connections and form of errors."""
        attributes = {"tally": _tally(cls.limits), "error_view": staticmethod(error_view)}
        return type("BoundProtocol", (cls,), attributes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Name the peer, and let it have a place or wait a moment for one."""
        super().connection_made(transport)
        self.unparsed = bytearray()
        self.peer = _peer_of(transport.get_extra_info("socket"))
        self.app_state = {**self.app_state, "connection": self}
        self.tally.open += 1
        if self.tally.open <= self.tally.open_limit:
            self.place = self.tally.connections.ask(self.peer.uid, self._begin)
        if self.place is None:
            self._refuse_as_busy()
        elif not self.place.held:
            self.flow.pause_reading()
            self._at_deadline(self.busy_after_s, self._refuse_as_busy)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection out."""
        self._expect_within(None)
        self._forget_stall()
        self.tally.open -= 1
        for claim in (self.place, self.stream):
            if claim is not None:
                claim.leave()
        super().connection_lost(exc)

    async def begin_stream(self) -> None:
        """Count the connection among the streams from now on; the last thing it asks for.

        Raises:
            LedgerBusy: There were too many for a second.
            InvalidArgument: Another request has come behind it.
        """
        granted = asyncio.Event()
        self.stream = self.tally.streams.ask(self.peer.uid, granted.set)
        try:
            async with asyncio.timeout(self.busy_after_s if self.stream else 0):
                await granted.wait()
        except TimeoutError:
            if self.stream is not None:
                self.stream.leave()
            raise LedgerBusy(
                "too many streams are open",
                hint="end some, or try again in a while",
                retry_after_s=1,
            ) from None
        if self.stream and (self.receiving or self.pipeline or self.unparsed):
            # Its deadline would end the stream, and it hides from uvicorn who is answered.
            self.stream.leave()
            raise InvalidArgument(
                "a request came behind one whose answer is the last on its connection",
                hint="send it on another connection",
            )
        if self.place is not None:
            self.place.leave()

    @property
    def is_stream(self) -> bool:
        """Tell whether it counts as a stream, so that no other request may follow."""
        return self.stream is not None and self.stream.held

    async def send_file(self, part: FilePart) -> None:
        """Send *part* as one chunk of a streamed answer; the kernel copies it, we do not.

        Raises:
            OSError: The client has left, or stands still in a file that nobody keeps any more, or
                the file is shorter than was said. The connection is closed.
        """
        self.transport.set_write_buffer_limits(0)
        self.transport.write(b"%x\r\n" % (len(part.head) + part.size_bytes) + part.head)
        try:
            sent = await self._copied(part)
            if sent != part.size_bytes:
                raise OSError(f"only {sent} of {part.size_bytes} bytes were there to send")
        except BaseException:
            self.transport.abort()  # the chunk has no end
            raise
        self.transport.write(b"\r\n")

    async def _copied(self, part: FilePart) -> int:
        """Copy the file's bytes to the client, and return how many there were.

        The transport must not be closed meanwhile, or the loop goes on to watch a descriptor that
        is another client's by then; nothing does, for a stream has no deadline and is not read.
        """
        looking: asyncio.TimerHandle

        def look() -> None:
            nonlocal looking
            if os.fstat(part.file.fileno()).st_nlink == 0:
                limit.reschedule(self.loop.time())
            else:
                looking = self.loop.call_later(_UNKEPT_AFTER_S, look)

        looking = self.loop.call_later(_UNKEPT_AFTER_S, look)
        try:
            async with asyncio.timeout(None) as limit:
                await self.flow.drain()  # sendfile would, too, but can't be cancelled in that
                return await self.loop.sendfile(
                    self.transport, part.file, part.begin, part.size_bytes, fallback=False
                )
        except TimeoutError:
            raise TimeoutError("the client stands still in what is no longer kept") from None
        except RuntimeError as error:  # what asyncio says if not a byte was sent
            raise ConnectionResetError(f"the client has left: {error}") from error
        finally:
            looking.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse *data* as far as it is its turn; what comes during a stream is not taken in."""
        if self.is_stream:
            self.flow.pause_reading()
        else:
            self.unparsed += data
            self._parse_on()

    def _begin(self) -> None:
        """Take requests: there is a place, now or after a wait."""
        self._expect_within(self.idle_deadline_s)
        self.flow.resume_reading()

    def _refuse_as_busy(self) -> None:
        if self.place is not None:
            self.place.leave()
        self._answer(
            LedgerBusy("too many connections", hint="close some, or try again", retry_after_s=1)
        )

    def _parse_on(self) -> None:
        """Parse what has come, until a request has to wait for the one before it.

        More is read when that is answered: a client that pipelines without end costs no more than
        what was read at once.
        """
        while self.unparsed and not self.pipeline and not self.transport.is_closing():
            part = bytes(self.unparsed[:_SLICE_BYTES])
            del self.unparsed[:_SLICE_BYTES]
            self._parse(part)
        if self.transport.is_closing():
            self.unparsed.clear()
        elif self.unparsed:
            self.flow.pause_reading()
            self._expect_within(None)

    def _parse(self, data: bytes) -> None:
        """Parse *data*, unless the head has grown past its bound."""
        received = self.requests_received
        super().data_received(data)
        if self.receiving and not self.head_complete and received == self.requests_received:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_LIMIT_BYTES:
                self._answer(InvalidArgument(f"headers exceed {HEAD_LIMIT_BYTES} bytes"))

    def on_message_begin(self) -> None:
        """Start the request's deadline: for all of it, not for each read."""
        super().on_message_begin()
        self.receiving, self.head_bytes, self.head_complete = True, 0, False
        self._expect_within(self.request_deadline_s)

    def on_headers_complete(self) -> None:
        """Refuse a head that is too large, or that leaves the length of the request in doubt."""
        self.head_complete = True
        size = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if len(self.headers) > HEADER_COUNT_LIMIT or size > HEAD_LIMIT_BYTES:
            self._answer(
                InvalidArgument(
                    f"{len(self.headers)} headers of {size} bytes; at most "
                    f"{HEADER_COUNT_LIMIT} of {HEAD_LIMIT_BYTES} bytes are accepted"
                )
            )
        elif any(name == b"transfer-encoding" for name, _ in self.headers):
            self._answer(InvalidArgument("a request needs a content-length, no transfer-encoding"))
        elif self.parser.should_upgrade():
            self._answer(InvalidArgument("there is no other protocol to upgrade to"))
        elif self._announced_bytes() > BODY_LIMIT_BYTES:
            self._answer(InvalidArgument(f"the body exceeds {BODY_LIMIT_BYTES} bytes"))
        else:
            super().on_headers_complete()

    def _announced_bytes(self) -> int:
        """Return the length of the body; the parser has refused what is no single number."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return int(lengths[0][:20]) if lengths else 0

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, unless the request was answered already."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """End the deadline: the rest is the daemon's time."""
        if self.transport.is_closing():
            return
        self.receiving = False
        self.requests_received += 1
        self._expect_within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Expect the next request soon, and until then that the answer is read."""
        super().on_response_complete()
        if not self.receiving and self.cycle.response_complete:
            self._expect_within(self.idle_deadline_s)
        if self.unparsed and not self.pipeline:
            if self.receiving:
                self._expect_within(self.request_deadline_s)  # it stood still while we did
            self._parse_on()

    def pause_writing(self) -> None:
        """Expect the client to read its answer soon; a stream may be read as slowly as it likes."""
        super().pause_writing()
        if not self.cycle.chunked_encoding:
            self.stalled = self.loop.call_later(self.idle_deadline_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing: the client reads."""
        self._forget_stall()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP in the one problem format."""
        self._answer(InvalidArgument(f"this is not HTTP/1.1: {msg}"))

    def _expect_within(self, seconds: float | None) -> None:
        """Drop the connection after *seconds*, with what it has not read; None is never."""
        self._at_deadline(seconds, self.transport.abort)

    def _at_deadline(self, seconds: float | None, call: Callable[[], None]) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = None if seconds is None else self.loop.call_later(seconds, call)

    def _forget_stall(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None

    def _answer(self, error: AxernError) -> None:
        """Answer and close without asking the application.

        While a request before this one has no answer yet, the client would take this for it: then
        the connection is closed without a word.
        """
        if self.transport.is_closing():
            return
        cycle = cast("RequestResponseCycle | None", self.cycle)
        before = cycle is not None and not cycle.response_complete and not cycle.more_body
        if not before and not self.pipeline:
            response = self.error_view(error, "")
            head = (
                f"HTTP/1.1 {response.status} \r\ncontent-type: {response.content_type}\r\n"
                f"content-length: {len(response.body)}\r\nconnection: close\r\n"
            )
            more = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
            self.transport.write(f"{head}{more}\r\n".encode() + response.body)
        self.transport.close()
        self._expect_within(self.idle_deadline_s)


def _peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return Peer(*struct.unpack("3i", credentials))
