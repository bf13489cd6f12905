"""The client's decoders: chunked content and events of both forms, cut anywhere, from anybody."""

from __future__ import annotations

from collections.abc import Callable

from axern.api import frames
from axern.errors import ProtocolError
from ledger.frozen import frozen

LINE_LIMIT_BYTES = 64 * 1024
"""Of a head, or of a line between chunks."""
EVENT_LIMIT_BYTES = 16 * 1024**2
"""Far more than any daemon puts into one event."""
LONGEST_NUMBER = 16
"""Digits of a length."""


RECORDS = "records"
_LINE_BYTES = 128
"""Looked at in one go for the end of a line, which is short where chunks are long."""


@frozen
class Event:
    """One event of a stream; `id` is the last one seen so far, or empty.

    Events named `RECORDS` hold records of a log (`axern.records`).
    """

    name: str
    data: bytes
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
        self._data: list[bytes] = []
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
        found = (self._line(line.removesuffix(b"\r")) for line in lines)
        return [event for event in found if event is not None]

    def _line(self, line: bytes) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id":
            self._id = value.decode("utf-8", "replace")
        return None

    def _dispatch(self) -> Event | None:
        event = Event(self._name or "message", b"\n".join(self._data), self._id)
        complete = bool(self._data)
        self._name, self._data, self._size = "", [], 0
        return event if complete else None


class FramedEvents:
    """Turn the frames of the fast form into the same events."""

    def __init__(self) -> None:
        self._parser = frames.FrameParser()

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that *data* completes, in their order.

        Raises:
            ProtocolError: They are no frames.
        """
        return [
            _event_of(frame) for frame in self._parser.feed(data) if frame.kind != frames.KEEP_ALIVE
        ]


def _event_of(frame: frames.Frame) -> Event:
    if frame.kind == frames.RECORDS:
        return Event(RECORDS, frame.content, str(frame.offset))
    name, _, data = frame.content.partition(b"\n")
    return Event(name.decode("utf-8", "replace"), data, str(frame.offset))


class ChunkedDecoder:
    """Undo `Transfer-Encoding: chunked`, cut anywhere; `done` once the last chunk was seen.

    Source: RFC 9112, section 7.1.
    """

    def __init__(self) -> None:
        self.done = False
        self._left = 0
        self._line = b""
        self._step: Callable[[memoryview, list[memoryview]], int] = self._size

    def feed(self, data: bytes) -> bytes:
        """Return the content that *data* completes.

        Raises:
            ProtocolError: It is not chunked encoding.
        """
        content: list[memoryview] = []
        rest = memoryview(data)
        while rest and not self.done:
            rest = rest[self._step(rest, content) :]
        return b"".join(content)

    def _size(self, data: memoryview, _content: list[memoryview]) -> int:
        used, line = self._take_line(data)
        if line is not None:
            digits = line.partition(b";")[0].strip()
            is_number = not digits.strip(b"0123456789abcdefABCDEF")
            if not 0 < len(digits) <= LONGEST_NUMBER or not is_number:
                raise ProtocolError(f"the daemon's answer has no chunk size but {line[:32]!r}")
            self._left = int(digits, 16)
            self._step = self._content if self._left else self._trailer
        return used

    def _content(self, data: memoryview, content: list[memoryview]) -> int:
        part = data[: self._left]
        content.append(part)
        self._left -= len(part)
        if not self._left:
            self._step = self._end_of_chunk
        return len(part)

    def _end_of_chunk(self, data: memoryview, _content: list[memoryview]) -> int:
        used, line = self._take_line(data)
        if line:
            raise ProtocolError("the daemon's answer has a chunk that is longer than its size")
        if line is not None:
            self._step = self._size
        return used

    def _trailer(self, data: memoryview, _content: list[memoryview]) -> int:
        used, line = self._take_line(data)
        self.done = line == b""
        return used

    def _take_line(self, data: memoryview) -> tuple[int, bytes | None]:
        """Return how much of *data* belongs to the line, and the line once it is complete."""
        text = bytes(data[:_LINE_BYTES])
        end = text.find(b"\n") + 1
        self._line += text[:end] if end else text
        if not end and len(self._line) > LINE_LIMIT_BYTES:
            raise ProtocolError("the daemon's answer has a line without an end")
        if not end:
            return len(text), None
        line, self._line = self._line, b""
        return end, line.removesuffix(b"\n").removesuffix(b"\r")
