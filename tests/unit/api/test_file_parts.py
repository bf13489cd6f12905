"""A streamed answer may hold parts of files: the same bytes, as slowly as the client reads them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

import pytest

from axern.api.connection import _UNKEPT_AFTER_S
from axern.api.decoding import ChunkedDecoder
from axern.api.messages import FilePart, Request, Response, StreamResponse
from axern.api.protocol import LimitedProtocol
from axern.api.server import Handler
from tests.unit.api.served import LIMIT_S, read_all, request, serving

MIB = 1024**2


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    made = random.randbytes(3 * MIB)
    (tmp_path / "file").write_bytes(made)
    return made


def streamed(
    tmp_path: Path, parts: list[bytes | tuple[bytes, int, int]], opened: list[FileIO]
) -> StreamResponse:
    async def made() -> AsyncIterator[bytes | FilePart]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            else:
                opened.append(FileIO(tmp_path / "file"))
                yield FilePart(part[0], opened[-1], *part[1:])

    return StreamResponse(made())


def test_every_byte_comes_in_its_order(tmp_path: Path, short_root: Path, content: bytes) -> None:
    opened: list[FileIO] = []
    parts: list[bytes | tuple[bytes, int, int]] = [
        b"begin",
        (b"head", 0, MIB),
        (b"", 5, 1),
        b"between",
        (b"more", MIB - 1, 2 * MIB),
        b"end",
    ]

    async def stream(_: Request) -> StreamResponse:
        return streamed(tmp_path, parts, opened)

    with serving(short_root / "s", stream) as found, found.connected() as connection:
        connection.sendall(request())
        _, _, chunked = read_all(connection).partition(b"\r\n\r\n")
    decoder = ChunkedDecoder()
    expected = b"begin" + b"head" + content[:MIB] + content[5:6] + b"between"
    assert decoder.feed(chunked) == expected + b"more" + content[MIB - 1 : 3 * MIB - 1] + b"end"
    assert decoder.done
    assert all(file.closed for file in opened)


def test_who_stalls_within_a_file_keeps_nobody_waiting_and_may_leave(
    tmp_path: Path, short_root: Path, content: bytes
) -> None:
    opened: list[FileIO] = []
    ended = threading.Event()

    async def parts() -> AsyncIterator[FilePart]:
        try:
            while True:
                opened.append(FileIO(tmp_path / "file"))
                yield FilePart(b"", opened[-1], 0, len(content))
        finally:
            ended.set()

    async def stream(request: Request) -> StreamResponse:
        if request.path == "/file":
            return StreamResponse(parts())
        return streamed(tmp_path, [b"here"], [])

    with serving(short_root / "s", stream) as found:
        with found.connected() as stalled, found.connected() as other:
            stalled.sendall(request("/file"))
            assert stalled.recv(64).startswith(b"HTTP/1.1 200")
            other.sendall(request("/other"))
            assert b"here" in read_all(other)
            assert len(opened) == 1
            assert not ended.is_set()
        assert ended.wait(LIMIT_S)
    assert all(file.closed for file in opened)


def test_a_file_that_has_become_shorter_ends_the_answer_without_its_end(
    tmp_path: Path, short_root: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    os.truncate(tmp_path / "file", MIB)

    async def stream(_: Request) -> StreamResponse:
        return streamed(tmp_path, [(b"", 0, len(content))], [])

    with (
        caplog.at_level("INFO"),
        serving(short_root / "s", stream) as found,
        found.connected() as connection,
    ):
        connection.sendall(request())
        assert not read_all(connection).endswith(b"0\r\n\r\n")
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert f"only {MIB} of {len(content)} bytes were there" in caplog.text


async def endless(folder: Path, opened: list[FileIO], size_bytes: int) -> AsyncIterator[FilePart]:
    while True:
        opened.append(FileIO(folder / "file"))
        yield FilePart(b"head", opened[-1], 0, size_bytes)


def endless_or_ok(folder: Path, opened: list[FileIO], size_bytes: int = 3 * MIB) -> Handler:
    async def answer(request: Request) -> Response | StreamResponse:
        if request.path == "/file":
            return StreamResponse(endless(folder, opened, size_bytes))
        return Response(200, b"{}")

    return answer


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize("behind", [b"GET /ok HTTP/1.1\r\n", request(), request() + b"POST"])
def test_what_comes_behind_the_request_of_a_stream_ends_nobody_s_connection(
    tmp_path: Path, short_root: Path, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A deadline closed it within a file, and the loop watched a descriptor that was another's."""

    class Hurried(LimitedProtocol):
        request_deadline_s = idle_deadline_s = 0.2

    asked = request("/file", connection="keep-alive")
    with contextlib.ExitStack() as stack, caplog.at_level("WARNING", "asyncio"):
        found = stack.enter_context(serving(short_root / "s", endless_or_ok(tmp_path, []), Hurried))
        # The descriptors of clients come first, so that the server takes its own again.
        first, late, *others = (
            stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(6)
        )
        for client in (first, late, *others):
            client.settimeout(LIMIT_S)
        first.connect(found.path)
        first.sendall(asked + behind)
        assert first.recv(13).startswith(b"HTTP/1.1 400 ")
        late.connect(found.path)
        late.sendall(asked)
        assert late.recv(13).startswith(b"HTTP/1.1 200 ")
        late.sendall(behind)
        time.sleep(0.5)
        for client in others:
            client.connect(found.path)
            client.sendall(request())
            assert read_all(client).startswith(b"HTTP/1.1 200 ")
    assert caplog.text == ""


@pytest.mark.usefixtures("content")
def test_who_leaves_at_any_moment_leaves_no_trace(
    tmp_path: Path, short_root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[FileIO] = []
    seed = random.Random(3)
    with (
        caplog.at_level("INFO"),
        serving(short_root / "s", endless_or_ok(tmp_path, opened)) as found,
    ):
        for left in (0, 1, 3 * MIB, *(seed.randrange(4 * MIB) for _ in range(16))):
            with found.connected() as connection:
                connection.sendall(request("/file"))
                received = 0
                while received < left:
                    received += len(connection.recv(min(left - received, 200_000)))
        assert found.still_answers()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert all(file.closed for file in opened)


@pytest.mark.usefixtures("content")
@pytest.mark.parametrize("size_bytes", [3 * MIB, 1])
def test_who_stands_still_in_a_file_that_was_dropped_does_not_keep_it(
    tmp_path: Path, short_root: Path, size_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a client with many streams fills the disk beside the bound of its log."""
    opened: list[FileIO] = []
    with (
        caplog.at_level("INFO"),
        serving(short_root / "s", endless_or_ok(tmp_path, opened, size_bytes)) as found,
        found.connected() as still,
    ):
        still.sendall(request("/file"))
        assert still.recv(13).startswith(b"HTTP/1.1 200 ")
        time.sleep(2 * _UNKEPT_AFTER_S)
        assert [file.closed for file in opened[-1:]] == [False]
        os.unlink(tmp_path / "file")
        deadline_s = time.monotonic() + LIMIT_S
        while not opened[-1].closed:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert not read_all(still).endswith(b"0\r\n\r\n")
    assert "no longer kept" in caplog.text
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
