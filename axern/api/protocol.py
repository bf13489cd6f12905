"""HTTP/1.1 as httptools parses it: requests within bounds and deadlines, answers in their order.

A request becomes whole here. Where a bound is passed, the answer is written here and the connection
closed: the daemon never hears of it.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import httptools

from axern.api import chance
from axern.api.connection import Connection, Tally
from axern.api.messages import CONTINUE, ErrorView, Headers, Request, Response, head_of
from ledger.errors import AxernError, InvalidArgument, LedgerBusy

HEADER_COUNT_LIMIT = 64
HEAD_LIMIT_BYTES = 16 * 1024
BODY_LIMIT_BYTES = 1024**2
QUERY_LIMIT = 16
REQUEST_DEADLINE_S = 10.0
"""For a client to send a request, and again for the daemon to answer it."""
_SLICE_BYTES = 4096
"""Parsed at a time, so that what is pipelined stays bytes until the requests before it are done."""
_PLAIN_TARGET = re.compile(rb"(?:/[A-Za-z0-9._-]+)+")
"""A path that is spelled as it is meant, without a query: what `parse_url` would say is known."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what becomes of it.

    `is_last` closes the connection after the answer; `error` is the answer where it is known.
    """

    request: Request
    is_last: bool
    error: AxernError | None = None
    is_answered: bool = False


class LimitedProtocol(Connection):
    """What a client says, and what it is answered.

    What makes the length of a request doubtful is refused: two readers that count differently
    would see different requests.
    """

    request_deadline_s = REQUEST_DEADLINE_S
    answer_deadline_s = REQUEST_DEADLINE_S

    error_view: ErrorView
    answer: Callable[[LimitedProtocol, Exchange], None]
    """Lets an exchange be answered, by `respond` or as a stream."""
    give_up: Callable[[LimitedProtocol, Exchange], None]
    """Answers an exchange that has taken too long."""

    current: Exchange | None = None
    head_bytes = 0
    head_complete = False
    receiving = False
    requests_received = 0
    _wants_continue = False
    _is_timed = False

    @classmethod
    def bound_to(cls, error_view: ErrorView, answer: Any, give_up: Any) -> type[LimitedProtocol]:
        """Return a subclass for one server: its own count of connections, and who answers."""
        attributes = {
            "tally": Tally.of(cls.limits),
            "error_view": staticmethod(error_view),
            "answer": staticmethod(answer),
            "give_up": staticmethod(give_up),
        }
        return type("BoundProtocol", (cls,), attributes)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a client that has said nothing."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.unparsed = bytearray()
        self.pipeline: deque[Exchange] = deque()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the client, and of what it has not been answered."""
        super().connection_lost(exc)
        del self.parser  # it holds us

    def end_soon(self) -> None:
        """Close after the answer that is under way, or now."""
        if self.current is None:
            self.transport.close()
        else:
            self.current.is_last = True

    async def begin_stream(self) -> None:
        """Count the connection among the streams from now on; the last thing it asks for.

        Raises:
            LedgerBusy: There were too many for a second.
            InvalidArgument: Another request has come behind it.
        """
        self.due.never()
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
            # Its deadline would end the stream, and its answer has no place behind it.
            self.stream.leave()
            raise InvalidArgument(
                "a request came behind one whose answer is the last on its connection",
                hint="send it on another connection",
            )
        if self.place is not None:
            self.place.leave()
        self.resume_reading()  # else nobody hears that the client has left

    @property
    def is_stream(self) -> bool:
        """Tell whether it counts as a stream, so that no other request may follow."""
        return self.stream is not None and self.stream.held

    def respond(self, exchange: Exchange, response: Response) -> None:
        """Write the answer to the present *exchange*, and go on to what comes behind it."""
        exchange.is_answered = True
        if self.transport.is_closing():
            response.drop()
            return
        request, last = exchange.request, exchange.is_last or self.is_stream
        head = head_of(response, request.id, last=last)
        data = head if request.method == "HEAD" else head + response.body
        if response.files:
            self.hand_over(data, response.files)
        else:
            self.transport.write(data)
        self.current = None
        if last:
            self.transport.close()
            self.due.within(self.idle_deadline_s, self.transport.abort)
        elif self.writable.is_set():
            self._go_on()
        else:
            self.due.never()  # it has to read; see `pause_writing`

    def resume_writing(self) -> None:
        """Go on: the client has read its answer."""
        super().resume_writing()
        if self.current is None and not self.transport.is_closing():
            self._go_on()

    def _go_on(self) -> None:
        """Answer what waits, and take more of what the client sends."""
        if self.pipeline:
            self._take_turn(self.pipeline.popleft())
        elif self.receiving:  # it stood still while we did
            self._is_timed = True
            self.due.within(self.request_deadline_s, self.transport.abort)
            self._let_continue()
        else:
            self.due.within(self.idle_deadline_s, self.transport.abort)
        self._parse_on()

    def _take_turn(self, exchange: Exchange) -> None:
        self.current = exchange
        self.due.within(self.answer_deadline_s, self._give_up)
        if exchange.error is None:
            self.answer(self, exchange)
        else:
            response = self.error_view(exchange.error, exchange.request.id)
            self.loop.call_soon(self.respond, exchange, response)

    def _give_up(self) -> None:
        if self.current is not None:
            self.give_up(self, self.current)

    def data_received(self, data: bytes) -> None:
        """Parse *data* as far as it is its turn; what comes during a stream is not taken in."""
        if self.is_stream:
            self.pause_reading()
            return
        if self.unparsed or self.pipeline or len(data) > _SLICE_BYTES:
            self.unparsed += data
        elif not self.transport.is_closing():
            self._parse(data)
        self._parse_on()

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
            return
        if self.receiving and self.current is None and not self._is_timed:
            self._is_timed = True  # for all of the request, not for each read
            self.due.within(self.request_deadline_s, self.transport.abort)
        if self.unparsed or self.pipeline:
            self.pause_reading()
        else:
            self.resume_reading()

    def _parse(self, data: bytes) -> None:
        """Parse *data*, unless the head has grown past its bound."""
        received = self.requests_received
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(InvalidArgument("there is no other protocol to upgrade to"))
        except httptools.HttpParserError as error:
            self.refuse(InvalidArgument(f"this is not HTTP/1.1: {error}"))
        if self.receiving and not self.head_complete and received == self.requests_received:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_LIMIT_BYTES:
                self.refuse(InvalidArgument(f"headers exceed {HEAD_LIMIT_BYTES} bytes"))

    def on_message_begin(self) -> None:
        """Begin with a request; its deadline is set if it is not whole with what has come."""
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self._wants_continue = self._is_timed = False
        self.receiving, self.head_bytes, self.head_complete = True, 0, False

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Refuse a head that is too large, or that leaves the length of the request in doubt."""
        self.head_complete = True
        named = dict(self.headers)
        if len(self.headers) > HEADER_COUNT_LIMIT or self._head_is_large():
            self.refuse(
                InvalidArgument(
                    f"{len(self.headers)} headers of {self._head_size()} bytes; at most "
                    f"{HEADER_COUNT_LIMIT} of {HEAD_LIMIT_BYTES} bytes are accepted"
                )
            )
        elif b"transfer-encoding" in named:
            self.refuse(InvalidArgument("a request needs a content-length, no transfer-encoding"))
        elif self.parser.should_upgrade():
            self.refuse(InvalidArgument("there is no other protocol to upgrade to"))
        elif int(named.get(b"content-length", b"0")[:20]) > BODY_LIMIT_BYTES:
            # The parser has refused what is no single number.
            self.refuse(InvalidArgument(f"the body exceeds {BODY_LIMIT_BYTES} bytes"))
        elif named.get(b"expect", b"").lower() == b"100-continue":
            self._wants_continue = True
            if self.current is None:
                self._let_continue()

    def _head_is_large(self) -> bool:
        """Tell whether the head is beyond its bound; one that few slices have brought is not."""
        is_long = self.head_bytes > HEAD_LIMIT_BYTES - 2 * _SLICE_BYTES
        return is_long and self._head_size() > HEAD_LIMIT_BYTES

    def _head_size(self) -> int:
        return sum([len(name) + len(value) for name, value in self.headers]) + len(self.url)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, unless the request was answered already."""
        if not self.transport.is_closing():
            self.body += body

    def on_message_complete(self) -> None:
        """Let the request be answered, or wait for those before it; the rest is our time."""
        if self.transport.is_closing():
            return
        self.receiving = False
        self.requests_received += 1
        exchange = self._exchange()
        if self.current is None and self.writable.is_set():
            self._take_turn(exchange)
        else:
            self.pipeline.append(exchange)

    def _exchange(self) -> Exchange:
        """Return the request that has just become whole."""
        query: dict[str, str] = {}
        error = None
        if _PLAIN_TARGET.fullmatch(self.url):
            path = self.url.decode("ascii")
        else:
            target = httptools.parse_url(self.url)
            path = target.path.decode("ascii")
            path = unquote(path) if "%" in path else path
            try:
                query = _query(target.query.decode("latin-1")) if target.query else {}
            except InvalidArgument as refused:
                error = refused
        request = Request(
            chance.request_id(),
            self.parser.get_method().decode("ascii"),
            path,
            query,
            Headers(self.headers),
            bytes(self.body),
            self.peer,
        )
        keeps_on = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        return Exchange(request, is_last=not keeps_on, error=error)

    def _let_continue(self) -> None:
        if self._wants_continue:
            self._wants_continue = False
            self.transport.write(CONTINUE)

    def refuse(self, error: AxernError) -> None:
        """Answer *error* and close without asking the daemon.

        While a request before this one has no answer yet, the client would take this for it: then
        the connection is closed without a word.
        """
        if self.transport.is_closing():
            return
        if self.current is None and not self.pipeline:
            response = self.error_view(error, "")
            self.transport.write(head_of(response, "", last=True) + response.body)
        self.transport.close()
        self.due.within(self.idle_deadline_s, self.transport.abort)


def _query(text: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=QUERY_LIMIT)
    except ValueError:
        raise InvalidArgument(f"a query may have at most {QUERY_LIMIT} parameters") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise InvalidArgument("a query parameter stands twice", hint="give each of them once")
    return query
