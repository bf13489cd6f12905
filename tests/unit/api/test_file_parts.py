"""A streamed answer may hold parts of files: the same bytes, as slowly as the client reads them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import AsyncIterator
from io import FileIO
from pathlib import Path

import pytest

from axern.api.decoding import ChunkedDecoder
from axern.api.protocol import FilePart
from axern.api.server import Request, StreamResponse
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
