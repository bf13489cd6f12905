"""The client's decoders: chunked content and server-sent events, cut anywhere, from anybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from axern.errors import ProtocolError

LINE_LIMIT_BYTES = 64 * 1024
"""Of a head, or of a line between chunks."""
EVENT_LIMIT_BYTES = 16 * 1024**2
"""Far more than any daemon puts into one event."""
LONGEST_NUMBER = 16
"""Digits of a length."""


@dataclass(frozen=True, slots=True)
class Event:
    """One Server-Sent Event; `id` is the last one seen so far, or empty."""

    name: str
    data: str
    id: str


class EventParser:
    """Turn the bytes of a `text/event-stream`, cut anywhere, into events.

    Lines end with LF or CRLF; comments and unknown fields are skipped.
    Source: WHATWG HTML, "Interpreting an event stream".
    """

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._size = 0
        self._name = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes, in their order.

        Raises:
            ProtocolError: An event is larger than any that a daemon sends.
        """
        self._size += len(data)
        if self._size > EVENT_LIMIT_BYTES:
            raise ProtocolError("the daemon's answer has an event without an end")
        first, *others = data.split(b"\n")
        self._partial.append(first)
        if not others:
            return []
        lines = [b"".join(self._partial), *others[:-1]]
        self._partial = [others[-1]]
        found = (self._line(line.removesuffix(b"\r").decode("utf-8", "replace")) for line in lines)
        return [event for event in found if event is not None]

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        elif field == "id":
            self._id = value
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name or "message", "\n".join(self._data), self._id)
        complete = bool(self._data)
        self._name, self._data, self._size = "", [], 0
        return event if complete else None


class ChunkedDecoder:
    """Undo `Transfer-Encoding: chunked`, cut anywhere; `done` once the last chunk was seen.

    Source: RFC 9112, section 7.1.
    """

    def __init__(self) -> None:
        self.done = False
        self._buffer = bytearray()
        self._left = 0
        self._step: Callable[[bytearray], bool] = self._size

    def feed(self, data: bytes) -> bytes:
        """Return the content that *data* completes.

        Raises:
            ProtocolError: It is not chunked encoding.
        """
        self._buffer += data
        content = bytearray()
        while not self.done and self._step(content):
            pass
        return bytes(content)

    def _size(self, _content: bytearray) -> bool:
        line = self._take_line()
        if line is None:
            return False
        digits = line.partition(b";")[0].strip()
        is_number = not digits.strip(b"0123456789abcdefABCDEF")
        if not 0 < len(digits) <= LONGEST_NUMBER or not is_number:
            raise ProtocolError(f"the daemon's answer has no chunk size but {line[:32]!r}")
        self._left = int(digits, 16)
        self._step = self._content if self._left else self._trailer
        return True

    def _content(self, content: bytearray) -> bool:
        part = self._buffer[: self._left]
        del self._buffer[: self._left]
        content += part
        self._left -= len(part)
        if self._left:
            return False
        self._step = self._end_of_chunk
        return True

    def _end_of_chunk(self, _content: bytearray) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if line:
            raise ProtocolError("the daemon's answer has a chunk that is longer than its size")
        self._step = self._size
        return True

    def _trailer(self, _content: bytearray) -> bool:
        line = self._take_line()
        self.done = line == b""
        return line is not None

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end < 0:
            if len(self._buffer) > LINE_LIMIT_BYTES:
                raise ProtocolError("the daemon's answer has a line without an end")
            return None
        line = bytes(self._buffer[:end]).removesuffix(b"\r")
        del self._buffer[: end + 1]
        return line
