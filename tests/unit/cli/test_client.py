"""The client turns whatever a socket can do to it into one of its errors."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from axern.api import client as client_module
from axern.api.client import ApiError, Client, ConnectionLost
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import AxernError, InvalidArgument

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"


@contextmanager
def answering(path: str, serve: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listen at *path* and give each connection to *serve*, then close it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def path(short_root: Path) -> str:
    return str(short_root / "s")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectionLost),
        (b"HTTP/1.1 200 OK\r\n", ConnectionLost),
        (OK + b'{"a"', ConnectionLost),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", ConnectionLost),
        (b"220 mail.example\r\n\r\n", ProtocolError),
        (b"x" * 100_000, ProtocolError),
        (b"HTTP/1.1 200 OK\r\n\r\n", ProtocolError),
        (OK + b"not JSON!", ProtocolError),
        (OK + b"[1, 2, 3]", ProtocolError),
        (OK.replace(b"200 OK", b"500 X") + b'{"a": 12}', ProtocolError),
        (OK.replace(b"200 OK", b"500 X").replace(b" 9", b" 13") + b'{"error": {}}', ProtocolError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ProtocolError),
    ],
)
def test_answers_that_are_none(path: str, answer: bytes, error: type[AxernError]) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)

    with answering(path, serve), Client(path) as client, pytest.raises(error):
        client.request("GET", "/v2/node")


def test_a_refusal_is_read_although_the_request_was_not(path: str) -> None:
    body = b'{"error": {"code": "busy", "message": "too many connections"}}'

    def serve(connection: socket.socket) -> None:
        head = f"HTTP/1.1 503 \r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.shutdown(socket.SHUT_WR)

    with answering(path, serve), Client(path) as client, pytest.raises(ApiError) as caught:
        client.request("POST", "/v2/runs", {"env": {"A": "x" * 10_000}})
    assert (caught.value.code, caught.value.status) == ("busy", 503)


def test_one_connection_serves_many_requests(path: str) -> None:
    connections = []

    def serve(connection: socket.socket) -> None:
        connections.append(connection)
        while connection.recv(65536):
            connection.sendall(OK + b'{"a": 12}')

    with answering(path, serve):
        with Client(path) as client:
            answers = [client.request("GET", "/v2/node") for _ in range(3)]
        assert answers == [{"a": 12}] * 3
        assert len(connections) == 1


def test_silence_is_unreachable(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "HEALTH_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        with Client(path) as client, pytest.raises(DaemonUnreachable, match="in time"):
            client.health()


def test_a_full_queue_is_waited_for_and_then_unreachable(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "HEALTH_TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with Client(path) as client, pytest.raises(DaemonUnreachable, match="no daemon answers"):
            client.health()


def test_where_nobody_is(path: str) -> None:
    with pytest.raises(DaemonUnreachable):
        Client(path).health()
    Path(path).touch()
    with pytest.raises(DaemonUnreachable):
        Client(path).health()
    with pytest.raises(InvalidArgument):
        Client("/" + "x" * 200).health()
