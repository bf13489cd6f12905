"""One client's connection: who is at the other end, and how much and how slowly it may send."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ledger.errors import AxernError, InvalidArgument, LedgerBusy

HEADER_COUNT_LIMIT = 64
HEAD_LIMIT_BYTES = 16 * 1024
REQUEST_DEADLINE_S = 10.0
IDLE_DEADLINE_S = 30.0
CONNECTION_LIMIT = 1024
CONNECTION_LIMIT_PER_UID = 256


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


ErrorView = Callable[[AxernError, str], Response]
"""Turns an error and a request id into an answer."""


@dataclass(slots=True)
class Connections:
    """How many connections there are, in all and by uid; uid 0 has no cap of its own."""

    limit: int = CONNECTION_LIMIT
    limit_per_uid: int = CONNECTION_LIMIT_PER_UID
    total: int = 0
    by_uid: Counter[int] = field(default_factory=Counter)

    def admit(self, uid: int) -> bool:
        """Count one more connection of *uid* and tell whether it is within the limits."""
        self.total += 1
        self.by_uid[uid] += 1
        within = uid == 0 or self.by_uid[uid] <= self.limit_per_uid
        return within and self.total <= self.limit

    def leave(self, uid: int) -> None:
        """Count one connection of *uid* less."""
        self.total -= 1
        self.by_uid[uid] -= 1
        if not self.by_uid[uid]:
            del self.by_uid[uid]


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with the peer's credentials, bounds on the head, and deadlines.

    Where a bound is passed, the answer is written here and the connection closed: the application
    never hears of it. What makes the length of a request doubtful is refused: two readers that
    count differently would see different requests.
    """

    request_deadline_s = REQUEST_DEADLINE_S
    idle_deadline_s = IDLE_DEADLINE_S
    limits = (CONNECTION_LIMIT, CONNECTION_LIMIT_PER_UID)

    tally: Connections
    error_view: ErrorView
    peer: Peer
    deadline: asyncio.TimerHandle | None = None
    stalled: asyncio.TimerHandle | None = None
    head_bytes = 0
    head_complete = False
    receiving = False
    requests_received = 0

    @classmethod
    def bound_to(cls, error_view: ErrorView) -> type[LimitedProtocol]:
        """Return a subclass for one server: its own count of connections and form of errors."""
        attributes = {"tally": Connections(*cls.limits), "error_view": staticmethod(error_view)}
        return type("BoundProtocol", (cls,), attributes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Name the peer, count the connection, and expect a request soon."""
        super().connection_made(transport)
        self.peer = _peer_of(transport.get_extra_info("socket"))
        self.app_state = {**self.app_state, "peer": self.peer}
        if not self.tally.admit(self.peer.uid):
            self._answer(LedgerBusy("too many connections", hint="close some, or try again"))
            return
        self._expect_within(self.idle_deadline_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection out."""
        self._expect_within(None)
        self._forget_stall()
        self.tally.leave(self.peer.uid)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse *data*, unless the head has grown past its bound."""
        if self.transport.is_closing():
            return
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
        else:
            super().on_headers_complete()

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
        if self.deadline is not None:
            self.deadline.cancel()
        later = self.loop.call_later
        self.deadline = None if seconds is None else later(seconds, self.transport.abort)

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
                f"content-length: {len(response.body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + response.body)
        self.transport.close()
        self._expect_within(self.idle_deadline_s)


def _peer_of(connection: socket.socket) -> Peer:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return Peer(*struct.unpack("3i", credentials))
