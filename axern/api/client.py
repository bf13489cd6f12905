"""The client's end of the API: HTTP/1.1 over a unix socket with no library behind it.

The standard library's HTTP client costs every command 20 ms of imports, for mail headers and TLS
that a local socket never sees, and `socket` 6 ms more than `_socket`, on which it stands. Decoding
is pure, in `decoding`; `Client` owns the socket and turns whatever goes wrong on it into the errors
of `axern.errors`.
"""

from __future__ import annotations

import _socket
import json
import os
import time
from collections.abc import Iterator

from axern.api import frames
from axern.api.decoding import (
    LINE_LIMIT_BYTES,
    LONGEST_NUMBER,
    ChunkedDecoder,
    Event,
    EventParser,
    FramedEvents,
)
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import AxernError, InvalidArgument, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Json = dict[str, Any]

HEALTH_TIMEOUT_S = 2.0
"""A daemon that says nothing for this long counts as down."""
ANSWER_TIMEOUT_S = 30.0
"""Longer than the daemon's own deadline of a request (10 s), so that its answer comes first."""
STREAM_TIMEOUT_S = 60.0
"""A stream sends a comment every few seconds; this much silence is a dead connection."""

ANSWER_LIMIT_BYTES = 256 * 1024**2
"""Far more than any daemon sends; who sends more is none, and must not fill our memory."""

_READ_BYTES = 256 * 1024
_CONNECT_RETRY_S = 0.01
_LONGEST_PATH = 107
"""Source: unix(7), sun_path less its NUL."""
_SHOWN_LENGTH = 64


class ConnectionLost(DaemonUnreachable):
    """The connection broke after a request was sent, so that it may have been carried out."""


class ApiError(AxernError):
    """The daemon said no; `error` is its structure, whose `code` and `hint` this error has too."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(str(error["message"]), hint=error.get("hint"))
        self.status = status
        self.error = error
        self.code = str(error["code"])


class Client:
    """Talk to the daemon behind *socket_path*; connects on first use and keeps the connection."""

    def __init__(self, socket_path: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._silence_s: float | None = None
        self._deadline_s = 0.0
        self._socket: _socket.socket | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection; the next request makes a new one."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unread = None, b""

    def health(self) -> Json:
        """Return what the daemon says of itself.

        Raises:
            DaemonUnreachable: Nobody listens, or nothing came within `HEALTH_TIMEOUT_S`.
        """
        try:
            return self.request("GET", "/v2/health", timeout_s=HEALTH_TIMEOUT_S)
        except ConnectionLost as error:
            # Nothing was asked for yet that could have been carried out.
            raise DaemonUnreachable(error.message, hint=error.hint) from error

    def request(
        self,
        method: str,
        target: str,
        body: Json | bytes | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Json:
        """Return the JSON object that answers *method* on *target*; bytes are sent as they are.

        Raises:
            ApiError: The daemon said no.
            ConnectionLost: It fell silent after the request; it may have been carried out.
            DaemonUnreachable: Nobody listens.
            ProtocolError: The answer is not what the API promises.
        """
        try:
            status, headers = self._send(method, target, body, timeout_s or self._timeout_s)
            content = self._whole(headers)
        except BaseException:
            self.close()  # what is left of the answer must not be read as the next one
            raise
        if headers.get("connection") == "close":
            self.close()
        return _decoded(status, content)

    def events(
        self, target: str, *, method: str = "GET", body: Json | None = None
    ) -> Iterator[Event]:
        """Open the stream *target* and return its events, until the daemon ends it.

        Raises:
            ApiError, ConnectionLost, DaemonUnreachable, ProtocolError: As for `request`.
        """
        try:
            status, headers = self._send(
                method, target, body, STREAM_TIMEOUT_S, frames.CONTENT_TYPE
            )
            kind = headers.get("content-type", "")
            if kind != frames.CONTENT_TYPE and not kind.startswith("text/event-stream"):
                _decoded(status, self._whole(headers))
                raise ProtocolError(f"the daemon answered {target} with no stream")
        except BaseException:
            self.close()
            raise
        return self._events(headers)

    def _events(self, headers: dict[str, str]) -> Iterator[Event]:
        framed = headers["content-type"] == frames.CONTENT_TYPE
        parser = FramedEvents() if framed else EventParser()
        self._silence_s = STREAM_TIMEOUT_S
        try:
            for part in self._content(headers):
                yield from parser.feed(part)
        finally:
            self.close()

    def _send(
        self,
        method: str,
        target: str,
        body: Json | bytes | None,
        timeout_s: float,
        accept: str = "",
    ) -> tuple[int, dict[str, str]]:
        content = body if isinstance(body, bytes) else b"" if body is None else _json(body)
        head = f"{method} {target} HTTP/1.1\r\nHost: axern\r\n"
        if accept:
            head += f"Accept: {accept}\r\n"
        if body is not None:
            kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            head += f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        connection = self._socket or self._connect()
        self._silence_s, self._deadline_s = None, time.monotonic() + timeout_s
        connection.settimeout(timeout_s)
        try:
            connection.sendall(_utf8(head) + b"\r\n" + content)
        except OSError as error:
            # An answer may be there all the same: a server that refuses does not read to the end.
            if isinstance(error, TimeoutError):
                raise self._lost("took no request") from error
        return self._head()

    def _connect(self) -> _socket.socket:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(HEALTH_TIMEOUT_S)
        deadline = time.monotonic() + HEALTH_TIMEOUT_S
        try:
            while True:
                try:
                    connection.connect(self._path)
                    break
                except BlockingIOError:
                    # The queue of connections is full. Source: unix(7), connect with EAGAIN.
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_CONNECT_RETRY_S)
        except PermissionError as error:
            connection.close()
            raise PermissionDenied(
                f"you may not use {self._path}", hint="members of its group may: see ls -l"
            ) from error
        except OSError as error:
            connection.close()
            if error.errno is None and not isinstance(error, TimeoutError):
                # Longer than an address may be: Python's own check, so without an errno.
                raise InvalidArgument(
                    f"a socket's path has at most {_LONGEST_PATH} bytes; "
                    f"{self._path[:_SHOWN_LENGTH]}… has {len(os.fsencode(self._path))}"
                ) from error
            raise DaemonUnreachable(
                f"no daemon answers at {self._path}: {error.strerror or error}",
                hint="start it: axernd --config PATH",
            ) from error
        self._socket = connection
        return connection

    def _receive(self) -> bytes:
        """Return what comes next; empty when the daemon has closed the connection."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        assert self._socket is not None  # noqa: S101 - `_send` has connected
        left_s = self._silence_s or self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise self._lost("gave no answer in time")
        try:
            self._socket.settimeout(left_s)
            return self._socket.recv(_READ_BYTES)
        except TimeoutError as error:
            raise self._lost("gave no answer in time") from error
        except OSError as error:
            raise self._lost("broke the connection") from error

    def _head(self) -> tuple[int, dict[str, str]]:
        head = b""
        while b"\r\n\r\n" not in head:
            if len(head) > LINE_LIMIT_BYTES:
                raise ProtocolError("the daemon's answer has a head without an end")
            data = self._receive()
            if not data:
                raise self._lost("closed the connection")
            head += data
        head, _, self._unread = head.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        words = status.split(" ", 2)
        if not words[0].startswith("HTTP/1.") or not words[1:] or not _is_number(words[1]):
            raise ProtocolError(f"the daemon's answer is not HTTP/1.1: {status[:64]!r}")
        headers = (line.partition(":") for line in lines)
        return int(words[1]), {name.lower(): value.strip() for name, _, value in headers}

    def _whole(self, headers: dict[str, str]) -> bytes:
        content = bytearray()
        for part in self._content(headers):
            content += part
            if len(content) > ANSWER_LIMIT_BYTES:
                raise ProtocolError(f"the daemon's answer exceeds {ANSWER_LIMIT_BYTES} bytes")
        return bytes(content)

    def _content(self, headers: dict[str, str]) -> Iterator[bytes]:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            decoder = ChunkedDecoder()
            while not decoder.done:
                data = self._receive()
                if not data:
                    raise self._lost("closed the connection")
                yield decoder.feed(data)
            return
        length = headers.get("content-length", "")
        if not _is_number(length):
            raise ProtocolError("the daemon's answer has no length")
        left = int(length)
        while left:
            data = self._receive()
            if not data:
                raise self._lost("closed the connection")
            part, self._unread = data[:left], data[left:]
            left -= len(part)
            yield part

    def _lost(self, what: str) -> ConnectionLost:
        return ConnectionLost(
            f"the daemon at {self._path} {what}", hint="see its log: the standard error of axernd"
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        odd = text[max(0, error.start - 8) : error.start + 8]
        raise InvalidArgument(
            f"{odd!r} is not UTF-8", hint="what a sandbox is given can only be UTF-8"
        ) from None


def _json(body: Json) -> bytes:
    return _utf8(json.dumps(body, ensure_ascii=False))


def _decoded(status: int, content: bytes) -> Json:
    """Return the object in *content*, or raise what the daemon refused with."""
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the daemon answered {status} without JSON") from error
    if not isinstance(answer, dict):
        raise ProtocolError(f"the daemon answered {status} without a JSON object")
    if status < 400:  # noqa: PLR2004 - RFC 9110: from here on it is an error
        return answer
    reason = answer.get("error")
    if not isinstance(reason, dict) or not {"code", "message"} <= reason.keys():
        raise ProtocolError(f"the daemon answered {status} and did not say why")
    raise ApiError(status, reason)
