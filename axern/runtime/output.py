r"""Reads a monitor's log from any record boundary: each byte of both outputs, in order.

Each record is one line, `TIME STREAM TAG BYTES\n`. With the tag F the bytes were followed by a
newline, with P they were not, so that no byte is added or lost: BYTES never holds a newline.
Source: kubernetes/design-proposals-archive, node/kubelet-cri-logging.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, cast

from axern.errors import HostError

Stream = Literal["stdout", "stderr"]

_STREAMS = (b"stdout", b"stderr")
_RECORD_LIMIT_BYTES = 64 * 1024
"""conmon reads 8 KiB at a time, so that a longer record is not from it."""
READ_BYTES = 64 * 1024
"""Parsed in a few milliseconds even if every line is short: readers share one event loop."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one output; `next_offset` is where to read on in the log after it.

    `written_at_ns` is wall-clock nanoseconds since the epoch, as the monitor took them.
    """

    next_offset: int
    stream: Stream
    written_at_ns: int
    data: bytes


def parse_record(record: bytes, next_offset: int) -> Chunk:
    """Parse one line of the log, without its newline.

    Raises:
        HostError: It is no record.
    """
    parts = record.split(b" ", 3)
    if len(parts) != 4 or parts[1] not in _STREAMS or parts[2] not in (b"F", b"P"):  # noqa: PLR2004
        raise HostError(f"no log record before byte {next_offset}", syscall="read")
    time, stream, tag, data = parts
    return Chunk(
        next_offset,
        cast("Stream", stream.decode()),
        _nanoseconds(time.decode()),
        data + b"\n" if tag == b"F" else data,
    )


def _nanoseconds(text: str) -> int:
    """Convert RFC 3339 with nine digits of a second, which datetime can't hold."""
    seconds, _, rest = text.partition(".")
    moment = datetime.fromisoformat(seconds + rest[9:])
    return int(moment.astimezone(UTC).timestamp()) * 1_000_000_000 + int(rest[:9])


def read_log(path: str, offset: int, limit_bytes: int = READ_BYTES) -> list[Chunk]:
    """Return the whole records from byte *offset* on, about *limit_bytes* of them.

    Empty when there is nothing new yet, or no log; a record that is still being written is left
    for the next call. *offset* must be 0 or some chunk's `next_offset`.

    Raises:
        HostError: There is no record at *offset*.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            text = os.pread(file.fileno(), limit_bytes + _RECORD_LIMIT_BYTES, offset)
    except FileNotFoundError:
        return []
    return list(_chunks(text, offset, limit_bytes))


def _chunks(text: bytes, offset: int, limit_bytes: int) -> Iterator[Chunk]:
    start = 0
    while start < limit_bytes:
        end = text.find(b"\n", start)
        if end < 0:
            if len(text) - start >= _RECORD_LIMIT_BYTES:
                raise HostError(f"no log record at byte {offset + start}", syscall="read")
            return
        yield parse_record(text[start:end], offset + end + 1)
        start = end + 1
