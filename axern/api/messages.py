"""What a client asks and what it is answered, and how the head of an answer is spelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from io import FileIO
from typing import Any

from axern.api.strict_json import parse_json_object
from ledger.errors import AxernError
from ledger.quick import quick

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@quick
@dataclass(frozen=True, slots=True)
class Peer:
    """Who was at the other end as it connected, as the kernel says; `groups` are supplementary.

    Source: unix(7), SO_PEERCRED; SO_PEERGROUPS of Linux 4.13.
    """

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()


class Headers(Mapping[str, str]):
    """The headers of a request by their names in lower case, decoded when somebody asks for one."""

    __slots__ = ("_named", "_wire")

    def __init__(self, wire: Iterable[tuple[bytes, bytes]]) -> None:
        self._wire = wire
        self._named: dict[str, str] | None = None

    def _decoded(self) -> dict[str, str]:
        if self._named is None:
            pairs = [
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in self._wire
            ]
            self._named = dict(pairs)
        return self._named

    def __getitem__(self, name: str) -> str:
        return self._decoded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded())

    def __len__(self) -> int:
        return len(self._decoded())


@quick
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


@quick
@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer; the client gets a descriptor of each of *files*, which are closed here."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    files: tuple[FileIO, ...] = ()

    def drop(self) -> None:
        """Let go of what nobody is answered with any more."""
        for file in self.files:
            file.close()


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a streamed answer: *head*, then *size_bytes* of an open file from *begin* on."""

    head: bytes
    file: FileIO
    begin: int
    size_bytes: int


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
ErrorView = Callable[[AxernError, str], Response]
"""Turns an error and a request id into an answer."""


def head_of(response: Response, request_id: str, *, last: bool) -> bytes:
    """Return the head of a whole answer; the *last* one on its connection says so."""
    more = b"".join([f"{name}: {value}\r\n".encode() for name, value in response.headers])
    if request_id:
        more = b"x-request-id: %b\r\n%b" % (request_id.encode(), more)
    if last:
        more += b"connection: close\r\n"
    beginning = _beginning(response.status, response.content_type)
    return b"%b%d\r\n%b\r\n" % (beginning, len(response.body), more)


@lru_cache(64)
def _beginning(status: int, content_type: str) -> bytes:
    """Return what all heads of this kind begin with, up to the number of bytes."""
    kind = content_type.encode()
    return b"%bcontent-type: %b\r\ncontent-length: " % (_STATUS_LINES[status], kind)


def stream_head(response: StreamResponse, request_id: str) -> bytes:
    """Return the head of an answer in chunks, which is the last one on its connection."""
    lines = (
        f"content-type: {response.content_type}\r\ncache-control: no-store\r\n"
        f"connection: close\r\nx-request-id: {request_id}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return _STATUS_LINES[200] + lines.encode()


def chunk(data: bytes) -> bytes:
    """Return *data*, of which there is some, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
