"""The fast form of a run's stream: frames around the log's own records, cut by nobody in between.

A frame is a head of 16 bytes, big-endian, and its content: the kind (1 byte), 3 bytes of zero, the
length of the content (4), and the offset at which to go on after it (8). Kinds: `e`, the name of an
event, a newline and its JSON object; `r`, whole records (`axern.records`); `k`, nothing, said so
that silence can be told from a dead connection.
"""

from __future__ import annotations

import struct

from axern.errors import ProtocolError
from ledger.frozen import frozen

CONTENT_TYPE = "application/vnd.axern.records"
EVENT = b"e"
RECORDS = b"r"
KEEP_ALIVE = b"k"
_HEAD = struct.Struct(">cxxxIQ")
_LIMIT_BYTES = 16 * 1024**2


@frozen
class Frame:
    """One frame; `offset` is where a new stream goes on after it."""

    kind: bytes
    content: bytes
    offset: int


def pack(frame: Frame) -> bytes:
    """Return the bytes of *frame*."""
    return head(frame.kind, len(frame.content), frame.offset) + frame.content


def head(kind: bytes, size_bytes: int, offset: int) -> bytes:
    """Return the head of a frame whose content of *size_bytes* follows."""
    return _HEAD.pack(kind, size_bytes, offset)


class FrameParser:
    """Turn the bytes of a stream, cut anywhere, into frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = _HEAD.size

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that *data* completes.

        Raises:
            ProtocolError: They are none.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        text = b"".join(self._parts)
        frames: list[Frame] = []
        place = 0
        self._wanted = _HEAD.size
        while len(text) - place >= _HEAD.size:
            kind, length, offset = _HEAD.unpack_from(text, place)
            if kind not in {EVENT, RECORDS, KEEP_ALIVE} or length > _LIMIT_BYTES:
                raise ProtocolError(f"the daemon sent no frame but {text[place : place + 16]!r}")
            end = place + _HEAD.size + length
            if end > len(text):
                self._wanted = end - place
                break
            frames.append(Frame(kind, text[place + _HEAD.size : end], offset))
            place = end
        rest = text[place:]
        self._parts, self._size = [rest], len(rest)
        return frames
