"""Send generated requests to a server and say whatever it did that no server may do."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.abuse.generate import Generator, Wire

HANG_S = 10.0
PATIENCE_S = 0.03
"""How long an answer to something half may take to begin before we say that no more will come."""
ABUSERS = 8
ADMISSION = 507


@dataclass(slots=True)
class Report:
    """What came of an attack: answers by status, how many were closed, and what was wrong."""

    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest_s: float = 0.0


@dataclass(slots=True)
class Attack:
    """An attack on the server at *path*, with entries that it made itself to aim at."""

    path: str
    ids: list[str] = field(default_factory=list)
    generator: Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = Generator(self.ask("/v2/openapi.json"), lambda: self.ids)

    def ask(self, target: str) -> Any:
        """Ask honestly."""
        wire = f"GET {target} HTTP/1.1\r\nconnection: close\r\n\r\n".encode()
        ((_, body),) = answers(self._exchange(Wire((wire,), honest=True)))
        return json.loads(body)

    def send(self, seed: int, numbers: range) -> Report:
        """Send the requests *numbers* of *seed*, several at a time."""
        report = Report()
        begun = time.monotonic()
        with ThreadPoolExecutor(ABUSERS) as pool:
            list(pool.map(lambda number: self._one(seed, number, report), numbers))
        report.seconds = time.monotonic() - begun
        return report

    def _one(self, seed: int, number: int, report: Report) -> None:
        wire = self.generator.draw(seed, number)
        begun = time.monotonic()
        try:
            found = list(answers(self._exchange(wire)))
        except TimeoutError:
            report.findings.append(f"{seed}/{number}: no end within {HANG_S} s: {_shown(wire)}")
            return
        except ValueError as error:
            report.findings.append(f"{seed}/{number}: {error}: {_shown(wire)}")
            return
        report.slowest_s = max(report.slowest_s, time.monotonic() - begun)
        if not found:
            report.closed += 1
            if wire.honest:
                report.findings.append(f"{seed}/{number}: no answer to {_shown(wire)}")
        for status, body in found:
            report.statuses[status] += 1
            wrong = judged(status, body)
            if wrong:
                report.findings.append(f"{seed}/{number}: {wrong}: {_shown(wire)}")
            elif status == 201:
                self.ids.append(json.loads(body).get("reservation", {}).get("id", "none"))
                del self.ids[:-20]

    def _exchange(self, wire: Wire) -> bytes:
        """Send *wire* and return all that comes back until the server closes."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(HANG_S)
            connection.connect(self.path)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for part in wire.parts:
                    connection.sendall(part)
                if not wire.honest and not select.select([connection], [], [], PATIENCE_S)[0]:
                    connection.shutdown(socket.SHUT_WR)
            received = bytearray()
            with contextlib.suppress(ConnectionResetError):
                while data := connection.recv(65536):
                    received += data
                    if not wire.honest and not select.select([connection], [], [], PATIENCE_S)[0]:
                        connection.shutdown(socket.SHUT_WR)
            return bytes(received)


def answers(received: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield status and body of each whole answer; raises ValueError for what is none.

    The body of the last one may be cut: its client had hung up.
    """
    while received:
        head, end, rest = received.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        if not end or not first.startswith(b"HTTP/1.1 "):
            raise ValueError(f"no HTTP in {received[:80]!r}")
        status = int(first.split()[1])
        received = rest
        if status == 100:
            continue
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        if b"content-length" not in headers:
            yield status, b""  # a stream
            return
        length = int(headers[b"content-length"])
        if rest.startswith(b"HTTP/1.1 ") or not rest:
            length = 0  # HEAD
        yield status, rest[:length]
        received = rest[length:]


def judged(status: int, body: bytes) -> str | None:
    """Return what is wrong with an answer to bad input, or None."""
    if 200 <= status < 300:
        return None
    error: dict[str, Any] = {}
    if body:
        try:
            error = json.loads(body)["error"]
        except (ValueError, KeyError, TypeError):
            return f"{status} without the structure of an error: {body[:80]!r}"
        if not error.get("message") or not error.get("code"):
            return f"{status} that does not say why: {body[:80]!r}"
    if 400 <= status < 500:
        return None
    # An admission that is refused for now is a decision; it has its gates.
    refused = status == ADMISSION and (not body or "exhausted" in error["code"])
    return None if refused else f"answered {status}: {body[:300]!r}"


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is in RAM."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def _shown(wire: Wire) -> str:
    return repr(b"".join(wire.parts)[:300])
