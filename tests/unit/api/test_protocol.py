"""Whatever bytes arrive: a 4xx problem or a clean close, and the server answers the next one."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from axern.api.messages import Peer, Request, Response, StreamResponse
from axern.api.protocol import BODY_LIMIT_BYTES, LimitedProtocol
from ledger.errors import NotFound
from tests.unit.api.served import (
    LIMIT_S,
    Served,
    answers,
    read_all,
    read_answer,
    request,
    serving,
)

KIB = 1024


class Hasty(LimitedProtocol):
    """Deadlines for tests that wait for one."""

    request_deadline_s = 0.2
    idle_deadline_s = 0.3


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("s") / "s") as found:
        yield found


@pytest.fixture
def hasty(short_root: Path) -> Iterator[Served]:
    with serving(short_root / "s", protocol=Hasty) as found:
        yield found


def head(*lines: bytes, first: bytes = b"POST /ok HTTP/1.1") -> bytes:
    return b"\r\n".join((first, *lines, b"", b""))


CHUNKED = b"transfer-encoding: chunked"
BAD = {
    "65 headers": head(*(b"x-%d: 1" % number for number in range(65))),
    "a header of 17 KiB": head(b"x: " + b"a" * 17 * KIB),
    "many headers of 17 KiB": head(*(b"x: " + b"a" * KIB for _ in range(17))),
    "a target of 17 KiB": head(first=b"GET /" + b"a" * 17 * KIB + b" HTTP/1.1"),
    "a header name without end": head()[:-2] + b"a" * 20 * KIB,
    "a target without end": b"GET /" + b"a" * 20 * KIB,
    "a megabyte of header": head(b"x: " + b"a" * KIB * KIB),
    "a length below zero": head(b"content-length: -1"),
    "a length of words": head(b"content-length: abc"),
    "a length with a sign": head(b"content-length: +1") + b"x",
    "a length in hexadecimal": head(b"content-length: 0x10") + b"x" * 16,
    "a length of 40 digits": head(b"content-length: " + b"9" * 40),
    "two lengths": head(b"content-length: 1", b"content-length: 2") + b"ab",
    "two equal lengths": head(b"content-length: 1", b"content-length: 1") + b"a",
    "a list of lengths": head(b"content-length: 1, 1") + b"a",
    "an empty length": head(b"content-length: "),
    "chunks": head(CHUNKED) + b"2\r\n{}\r\n0\r\n\r\n",
    "chunks without end": head(CHUNKED) + b"5\r\nab",
    "chunks and a length": head(CHUNKED, b"content-length: 2") + b"2\r\n{}\r\n0\r\n\r\n",
    "an encoding nobody knows": head(b"transfer-encoding: gzip"),
    "an encoding in disguise": head(b"Transfer-Encoding: \tchunked") + b"0\r\n\r\n",
    "trailers": head(CHUNKED) + b"0\r\n" + b"x: y\r\n" * 100 + b"\r\n",
    "a space before the colon": head(b"content-length : 2") + b"{}",
    "a folded header": head(b"x: a", b" b", b"content-length: 0"),
    "a bare line feed": b"GET /ok HTTP/1.1\ncontent-length: 0\n\n",
    "a NUL in a header": head(b"x: a\x00b"),
    "an unknown method": head(first=b"BREW /ok HTTP/1.1"),
    "a method in small letters": head(first=b"get /ok HTTP/1.1"),
    "no method": b"/ok HTTP/1.1\r\n\r\n",
    "a target of raw bytes": head(first=b"GET /\xff\xfe HTTP/1.1"),
    "CONNECT": head(first=b"CONNECT host:80 HTTP/1.1"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3": head(first=b"GET /ok HTTP/3.0"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)),
    "zeros": bytes(4096),
    "a websocket": head(
        b"connection: upgrade",
        b"upgrade: websocket",
        b"sec-websocket-key: dGhlIHNhbXBsZQ==",
        b"sec-websocket-version: 13",
        first=b"GET /ok HTTP/1.1",
    ),
    "an upgrade with a body": head(
        b"connection: upgrade", b"upgrade: h2c", b"content-length: 2"
    ) + b"{}",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_good_request_is_refused_or_closed(served: Served, name: str) -> None:
    before = len(served.requests)
    found = served.send(BAD[name], half_close=True)
    assert len(found) <= 1
    for answer in found:
        assert answer.problem()["code"] == "invalid_argument"
        assert answer.status == 400
        assert answer.headers["connection"] == "close"
    assert len(served.requests) == before
    assert served.still_answers()


@pytest.mark.parametrize("name", ["65 headers", "chunks", "a websocket", "two lengths", "zeros"])
def test_the_refusal_says_so(served: Served, name: str) -> None:
    assert served.send(BAD[name])[0].problem()["message"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=2000), st.booleans())
def test_any_bytes_are_refused_or_closed(served: Served, noise: bytes, start: bool) -> None:
    prefix = b"POST /ok HTTP/1.1\r\nconnection: close\r\n" if start else b""
    for answer in served.send(prefix + noise, half_close=True):
        assert answer.status in (200, 400)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300), st.lists(st.integers(1, 200), max_size=8))
def test_a_request_may_be_cut_anywhere(served: Served, body: bytes, cuts: list[int]) -> None:
    wire = request(body=body, x_name="value")
    places = sorted({0, len(wire), *(cut % len(wire) for cut in cuts)})
    parts = [wire[a:b] for a, b in itertools.pairwise(places)]
    (answer,) = served.send(*parts)
    assert answer.body == b'{"bytes": %d}' % len(body)
    assert served.requests[-1].body == body


def test_64_headers_of_16_kib_are_taken(served: Served) -> None:
    many: dict[str, Any] = {f"x-{number}": "1" for number in range(62)}
    few = request(**many)
    large = request(x="a" * (16 * KIB - 120))
    assert [answer.status for wire in (few, large) for answer in served.send(wire)] == [200, 200]


def test_a_body_of_a_mebibyte_is_taken_and_a_byte_more_is_not(served: Served) -> None:
    (most,) = served.send(request(body=b"x" * BODY_LIMIT_BYTES))
    assert most.body == b'{"bytes": 1048576}'
    (more,) = served.send(request(body=b"x" * (BODY_LIMIT_BYTES + 1)))
    assert more.status == 400
    assert "1048576" in more.problem()["message"]


def test_an_announced_terabyte_is_refused_before_it_has_come(served: Served) -> None:
    wire = request(body=b"x" * (BODY_LIMIT_BYTES + KIB), content_length=10**12)
    assert served.send(wire)[0].status == 400
    assert served.still_answers()


def test_a_body_without_a_length_is_no_body(served: Served) -> None:
    wire = b"POST /ok HTTP/1.1\r\nconnection: close\r\n\r\n" + b"x" * 2 * BODY_LIMIT_BYTES
    assert [answer.body for answer in served.send(wire)] == [b'{"bytes": 0}']


def test_pipelined_requests_are_answered_in_their_order(served: Served) -> None:
    bodies = [b"x" * (number * 600) for number in range(60)]
    wires = [request(body=body, connection="keep-alive") for body in bodies]
    found = served.send(b"".join(wires) + request())
    assert [answer.body for answer in found[:-1]] == [b'{"bytes": %d}' % len(b) for b in bodies]


def test_a_connection_is_used_again(served: Served) -> None:
    with served.connected() as connection:
        for number in range(5):
            connection.sendall(request(body=b"x" * number, connection="keep-alive"))
            assert read_answer(connection).body == b'{"bytes": %d}' % number
    ids = {found.id for found in served.requests}
    assert len(ids) == len(served.requests)


def test_after_a_refused_body_the_next_request_is_read_right(served: Served) -> None:
    large = request(body=b"x" * (BODY_LIMIT_BYTES + 5), connection="keep-alive")
    statuses = [answer.status for answer in served.send(large, request())]
    assert statuses in ([400], [400, 200])


def test_garbage_is_never_the_answer_to_the_request_before_it(short_root: Path) -> None:
    release = threading.Event()

    async def slow(_: Request) -> Response:
        await asyncio.to_thread(release.wait, 10)
        return Response(200, b"{}")

    with serving(short_root / "s", slow) as found, found.connected() as connection:
        connection.sendall(request(connection="keep-alive") + b"garbage\r\n\r\n")
        received = read_all(connection)
        release.set()
    assert received == b""


def test_the_kernel_names_the_peer_and_headers_do_not(served: Served) -> None:
    served.send(request(x_uid="12345", x_forwarded_for="root", x_remote_user="root"))
    assert served.requests[-1].peer == Peer(os.getpid(), os.getuid(), os.getgid())


def test_a_client_named_like_a_credential_is_nobody_else(served: Served, short_root: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.bind(f"{short_root}/c;uid=12345;")
        connection.connect(served.path)
        connection.sendall(request())
        assert answers(read_all(connection))[0].status == 200
    assert served.requests[-1].peer.uid == os.getuid()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n\r\n",
        b"GET /ok HT",
        b"POST /ok HTTP/1.1\r\nx: y",
        b"POST /ok HTTP/1.1\r\ncontent-length: 9\r\n\r\n{",
    ],
)
def test_a_half_sent_request_is_closed_in_time(hasty: Served, sent: bytes) -> None:
    with hasty.connected() as connection:
        connection.sendall(sent)
        assert read_all(connection) == b""
    assert hasty.requests == []
    assert hasty.still_answers()


def test_the_deadline_is_for_the_whole_request_and_not_for_each_byte(hasty: Served) -> None:
    pause = threading.Event()
    with hasty.connected() as connection:
        connection.sendall(b"GET /ok HTTP/1.1\r\n")
        sent = 0
        try:
            while sent < 200:
                connection.sendall(b"x: y\r\n" if sent % 2 else b"z: y\r\n")
                sent += 1
                pause.wait(0.02)
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert sent < 60


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_an_idle_connection_is_closed_in_time(hasty: Served, sent: bytes) -> None:
    with hasty.connected() as connection:
        connection.sendall(request(connection="keep-alive"))
        assert read_answer(connection).status == 200
        connection.sendall(sent)
        assert read_all(connection) == b""


def test_a_client_that_left_early_is_nobody(hasty: Served) -> None:
    for wire in (b"POST /ok HTTP/1.1\r\ncontent-length: 9\r\n\r\n{", request(), b"GET"):
        with hasty.connected() as connection:
            connection.sendall(wire)
    assert hasty.still_answers()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("connection_header", ["keep-alive", "close"])
def test_an_answer_that_nobody_reads_is_dropped(
    short_root: Path, times: int, connection_header: str
) -> None:
    async def large(_: Request) -> Response:
        return Response(200, bytes(4 * KIB * KIB))

    with serving(short_root / "s", large, Hasty) as found:
        with found.connected() as connection:
            connection.sendall(request(connection="keep-alive") * (times - 1))
            connection.sendall(request(connection=connection_header))
            poller = select.poll()
            poller.register(connection, 0)
            assert poller.poll(LIMIT_S * 1000), "the server never hung up"
            # What the server had handed to the kernel comes; the rest of the 4 MiB never does.
            assert len(read_all(connection)) < 4 * KIB * KIB
        assert found.send(request())[0].status == 200


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_stream_ends_when_its_client_leaves(short_root: Path, *, goes_on: bool) -> None:
    ended = threading.Event()

    async def parts() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            while True:
                await asyncio.sleep(0 if goes_on else LIMIT_S * 10)
                yield b"more"
        finally:
            ended.set()

    async def stream(_: Request) -> StreamResponse:
        return StreamResponse(parts())

    with serving(short_root / "s", stream) as found:
        with found.connected() as connection:
            connection.sendall(request())
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
            assert not ended.wait(0.05)
        assert ended.wait(LIMIT_S)


def test_a_stream_that_cannot_go_on_ends_without_a_traceback(
    short_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first"
        raise NotFound("it was pruned")

    async def stream(_: Request) -> StreamResponse:
        return StreamResponse(parts())

    with (
        caplog.at_level("INFO"),
        serving(short_root / "s", stream) as found,
        found.connected() as connection,
    ):
        connection.sendall(request())
        assert read_all(connection).endswith(b"first\r\n0\r\n\r\n")
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert "it was pruned" in caplog.text


def test_half_open_clients_keep_nobody_waiting(served: Served) -> None:
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(200)]
    try:
        for client in clients:
            client.connect(served.path)
            client.sendall(b"POST /ok HTTP/1.1\r\ncontent-length: 5\r\n\r\n{")
        assert served.still_answers()
    finally:
        for client in clients:
            client.close()


def test_the_socket_never_has_wider_rights(short_root: Path) -> None:
    with serving(short_root / "deep" / "s"):
        status = os.stat(short_root / "deep" / "s")
        assert stat.S_IMODE(status.st_mode) == 0o660
        assert os.listdir(short_root / "deep") == ["s"]
    assert stat.S_IMODE(os.stat(short_root / "deep").st_mode) & 0o022 == 0
