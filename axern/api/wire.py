"""What client and daemon say to each other, from the client's end: requests, heads, answers; pure.

Whoever owns a socket, whether it blocks or not, reads and writes with this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from axern.api import frames
from axern.api.decoding import LONGEST_NUMBER, EventParser, FramedEvents
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import AxernError, InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


class ConnectionLost(DaemonUnreachable):
    """The connection broke after a request was sent, so that it may have been carried out."""


class ApiError(AxernError):
    """The daemon said no; `error` is its structure, whose `code` and `hint` this error has too."""

    def __init__(self, status: int, error: Json) -> None:
        super().__init__(str(error["message"]), hint=error.get("hint"))
        self.status = status
        self.error = error
        self.code = str(error["code"])


def request(method: str, target: str, body: Json | bytes | None, accept: str = "") -> bytes:
    """Return the request as it is sent; a *body* of bytes goes as it is.

    Raises:
        InvalidArgument: Something of it is no UTF-8.
    """
    content = body if isinstance(body, bytes) else b"" if body is None else _json(body)
    head = f"{method} {target} HTTP/1.1\r\nHost: axern\r\n"
    if accept:
        head += f"Accept: {accept}\r\n"
    if body is not None:
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    return _utf8(head) + b"\r\n" + content


def head(data: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the headers, by names in lower case, of the head *data*.

    Raises:
        ProtocolError: It is none.
    """
    status, *lines = data.decode("latin-1").split("\r\n")
    words = status.split(" ", 2)
    if not words[0].startswith("HTTP/1.") or not words[1:] or not _is_number(words[1]):
        raise ProtocolError(f"the daemon's answer is not HTTP/1.1: {status[:64]!r}")
    headers = (line.partition(":") for line in lines)
    return int(words[1]), {name.lower(): value.strip() for name, _, value in headers}


def is_chunked(headers: Mapping[str, str]) -> bool:
    """Tell whether the content comes in chunks; else it has a `length`."""
    return headers.get("transfer-encoding", "").lower() == "chunked"


def length(headers: Mapping[str, str]) -> int:
    """Return the length of the content; raises ProtocolError where there is none."""
    text = headers.get("content-length", "")
    if not _is_number(text):
        raise ProtocolError("the daemon's answer has no length")
    return int(text)


def is_stream(headers: Mapping[str, str]) -> bool:
    """Tell whether the content is a stream of events, for which `parser` is."""
    kind = headers.get("content-type", "")
    return kind == frames.CONTENT_TYPE or kind.startswith("text/event-stream")


def parser(headers: Mapping[str, str]) -> EventParser | FramedEvents:
    """Return what reads the events of the content."""
    return FramedEvents() if headers["content-type"] == frames.CONTENT_TYPE else EventParser()


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


def decoded(status: int, content: bytes) -> Json:
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
