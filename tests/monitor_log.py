"""conmon's way of writing a log, step by step as its source has it, for tests without conmon."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

STEP_NS = 3
"""Between two reads from a pipe, far less than the writing of a whole file takes."""
_BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def stamp(ns: int) -> bytes:
    """Return a time as conmon writes it, *ns* after the first."""
    seconds, rest = divmod(ns, 1_000_000_000)
    moment = _BEGAN + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}+00:00".encode()


def records(stream: str, data: bytes, time: bytes) -> list[bytes]:
    """Return what is logged for one read from a pipe."""
    *lines, last = data.split(b"\n")
    found = [b" ".join((time, stream.encode(), b"F", line)) + b"\n" for line in lines]
    if last:
        found.append(b" ".join((time, stream.encode(), b"P", last)) + b"\n")
    return found


@dataclass(slots=True)
class MonitorLog:
    """A monitor that writes *log*; `written` is all that it ever wrote, whatever became of it.

    Source: conmon v2.1.12, src/ctr_logging.c, write_k8s_log and reopen_k8s_file.
    """

    log: str
    size_max: int
    written: bytearray = field(default_factory=bytearray)
    now_ns: int = 0
    reopened: int = 0
    _fd: int = -1
    _size: int = 0

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self.log, flags, 0o600)

    def write(self, stream: str, data: bytes, after_ns: int = STEP_NS) -> None:
        """Log one read from a pipe."""
        self.now_ns += after_ns
        for record in records(stream, data, stamp(self.now_ns)):
            if self._size + len(record) > self.size_max:
                self._reopen()
            os.write(self._fd, record)
            self._size += len(record)
            self.written += record

    def _reopen(self) -> None:
        os.close(self._fd)
        flags = os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(f"{self.log}.tmp", flags, 0o600)
        os.rename(f"{self.log}.tmp", self.log)
        self._size = 0
        self.reopened += 1

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1
