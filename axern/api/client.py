"""The client's end of the API: HTTP/1.1 over a unix socket with no library behind it.

The standard library's HTTP client costs every command 20 ms of imports, for mail headers and TLS
that a local socket never sees, and `socket` 6 ms more than `_socket`, on which it stands. What is
said is pure, in `wire` and `decoding`; `Client` owns the socket and turns whatever goes wrong on it
into the errors of `axern.errors`.
"""

from __future__ import annotations

import _socket
import os
import time
from collections.abc import Iterator

from axern.api import frames, wire
from axern.api.decoding import LINE_LIMIT_BYTES, ChunkedDecoder, Event
from axern.api.wire import ApiError, ConnectionLost
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import InvalidArgument, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    Json = dict[str, Any]

__all__ = ["ApiError", "Client", "ConnectionLost"]

HEALTH_TIMEOUT_S = 2.0
"""A daemon that says nothing for this long counts as down."""
ANSWER_TIMEOUT_S = 30.0
"""Longer than the daemon's own deadline of a request (10 s), so that its answer comes first."""
STREAM_TIMEOUT_S = 60.0
"""A stream sends a comment every few seconds; this much silence is a dead connection."""

ANSWER_LIMIT_BYTES = 256 * 1024**2
"""Far more than any daemon sends; who sends more is none, and must not fill our memory."""

_READ_BYTES = 256 * 1024
_FILES_LIMIT = 4
_DESCRIPTOR_BYTES = 4
_CONNECT_RETRY_S = 0.01
_LONGEST_PATH = 107
"""Source: unix(7), sun_path less its NUL."""
_SHOWN_LENGTH = 64


class Client:
    """Talk to the daemon behind *socket_path*; connects on first use and keeps the connection."""

    def __init__(self, socket_path: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._silence_s: float | None = None
        self._deadline_s = 0.0
        self._socket: _socket.socket | None = None
        self._unread = b""
        # Where descriptors are put that come beside an answer; None where none may come.
        self._files: list[int] | None = None

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
        return wire.decoded(status, content)

    def request_files(self, target: str, body: Json) -> tuple[Json, list[int]]:
        """Return the answer to a POST of *body*, and the descriptors that came beside it.

        Whoever calls closes them. It may be long in coming. Raises what `request` raises.
        """
        files: list[int] = []
        self._files = files
        try:
            return self.request("POST", target, body, timeout_s=STREAM_TIMEOUT_S), files
        except BaseException:
            for descriptor in files:
                os.close(descriptor)
            raise
        finally:
            self._files = None

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
            if not wire.is_stream(headers):
                wire.decoded(status, self._whole(headers))
                raise ProtocolError(f"the daemon answered {target} with no stream")
        except BaseException:
            self.close()
            raise
        return self._events(headers)

    def _events(self, headers: dict[str, str]) -> Iterator[Event]:
        parser = wire.parser(headers)
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
        message = wire.request(method, target, body, accept)
        connection = self._socket or self._connect()
        self._silence_s, self._deadline_s = None, time.monotonic() + timeout_s
        connection.settimeout(timeout_s)
        try:
            connection.sendall(message)
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
            if self._files is None:
                return self._socket.recv(_READ_BYTES)
            room = _socket.CMSG_SPACE(_FILES_LIMIT * _DESCRIPTOR_BYTES)
            data, beside, _, _ = self._socket.recvmsg(_READ_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
            self._files += _descriptors(beside)
            return data
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
        return wire.head(head)

    def _whole(self, headers: dict[str, str]) -> bytes:
        content = bytearray()
        for part in self._content(headers):
            content += part
            if len(content) > ANSWER_LIMIT_BYTES:
                raise ProtocolError(f"the daemon's answer exceeds {ANSWER_LIMIT_BYTES} bytes")
        return bytes(content)

    def _content(self, headers: dict[str, str]) -> Iterator[bytes]:
        if wire.is_chunked(headers):
            decoder = ChunkedDecoder()
            while not decoder.done:
                data = self._receive()
                if not data:
                    raise self._lost("closed the connection")
                yield decoder.feed(data)
            return
        left = wire.length(headers)
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


def _descriptors(beside: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors in what came *beside* data. Source: unix(7), SCM_RIGHTS."""
    import sys

    return [
        int.from_bytes(content[place : place + _DESCRIPTOR_BYTES], sys.byteorder)
        for level, kind, content in beside
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for place in range(0, len(content) - _DESCRIPTOR_BYTES + 1, _DESCRIPTOR_BYTES)
    ]
