"""The real server on a unix socket in a thread, and a client that sends exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axern.api import listener, server
from axern.api.messages import Answer as Reply
from axern.api.messages import Request, Response
from axern.api.protocol import LimitedProtocol
from axern.api.server import Handler, Shortly
from axern.daemon.handlers import error_response

LIMIT_S = 20.0
"""Generous: the machine may be busy with other tests."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One parsed answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        """Return the error inside the problem document, which must be a whole one."""
        assert self.headers["content-type"] == "application/problem+json"
        document = json.loads(self.body)
        assert document["status"] == self.status
        assert document["type"] == f"urn:axern:error:{document['error']['code']}"
        error: dict[str, Any] = document["error"]
        return error


@dataclass(slots=True)
class Served:
    """One server and what it has seen."""

    path: str
    requests: list[Request] = field(default_factory=list)

    @contextlib.contextmanager
    def connected(self) -> Iterator[socket.socket]:
        """Yield a connection."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(LIMIT_S)
            connection.connect(self.path)
            yield connection

    def send(self, *parts: bytes, half_close: bool = False) -> list[Answer]:
        """Send *parts* on a connection of their own and return all answers up to its end."""
        with self.connected() as connection:
            # A server that refuses does not read to the end.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for part in parts:
                    connection.sendall(part)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
            return answers(read_all(connection))

    def still_answers(self) -> bool:
        """Tell whether an ordinary request gets its answer."""
        return self.send(b"GET /ok HTTP/1.1\r\nconnection: close\r\n\r\n")[0].status == 200


def read_all(connection: socket.socket) -> bytes:
    """Return everything up to the end of the connection."""
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    return bytes(received)


def read_answer(connection: socket.socket) -> Answer:
    """Return the one answer that comes next; nothing may follow it."""
    received = bytearray()
    while True:
        data = connection.recv(65536)
        assert data, "the connection ended before the answer did"
        received += data
        head, _, body = bytes(received).partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length and len(body) >= int(length[1]):
            (answer,) = answers(bytes(received))
            return answer


def answers(wire: bytes) -> list[Answer]:
    """Parse answers that follow each other, each with its length."""
    found = []
    while wire:
        head, end, rest = wire.partition(b"\r\n\r\n")
        assert end, wire
        status, *lines = head.decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        length = int(headers["content-length"])
        assert len(rest) >= length, (head, rest)
        found.append(Answer(int(status.split()[1]), headers, rest[:length]))
        wire = rest[length:]
    return found


def request(path: str = "/ok", body: bytes = b"", **headers: object) -> bytes:
    """Return a POST that asks for the end of the connection; *headers* may override its own."""
    given = {"connection": "close", "content-length": len(body), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


@contextlib.contextmanager
def serving(
    path: Path,
    handler: Handler | None = None,
    protocol: type[LimitedProtocol] = LimitedProtocol,
    **ways: Shortly,
) -> Iterator[Served]:
    """Run a server at *path*; the usual handler answers 200 with the size of the body."""
    served = Served(str(path))

    async def note(request: Request) -> Reply:
        served.requests.append(request)
        if handler is not None:
            return await handler(request)
        return Response(200, json.dumps({"bytes": len(request.body)}).encode())

    running = server.build(note, error_response, protocol, **ways)
    listening = listener.listen(served.path, None)
    thread = threading.Thread(
        target=lambda: asyncio.run(running.serve(sockets=[listening])), name="server"
    )
    thread.start()
    try:
        yield served
    finally:
        running.stop()
        thread.join(LIMIT_S)
        listening.close()
        assert not thread.is_alive()
