"""The monitor's log gives back exactly the bytes that went in, from any record on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.errors import HostError
from axern.runtime.output import parse_record, read_log

STAMP = b"2026-11-30T16:52:58.704949281+00:00"

writes = st.lists(
    st.tuples(
        st.sampled_from(("stdout", "stderr")),
        st.binary(min_size=1, max_size=40) | st.sampled_from((b"\n", b"\n\n", b"a\n", b" F \n")),
    )
)


def as_conmon(stream: str, data: bytes) -> bytes:
    """Return what the monitor logs for one read from a pipe."""
    lines = []
    for line in data.splitlines(keepends=True) if b"\r" not in data else _split(data):
        tag, text = (b"F", line[:-1]) if line.endswith(b"\n") else (b"P", line)
        lines.append(b" ".join((STAMP, stream.encode(), tag, text)) + b"\n")
    return b"".join(lines)


def _split(data: bytes) -> list[bytes]:
    parts = [part + b"\n" for part in data.split(b"\n")]
    last = parts.pop()[:-1]
    return [*parts, last] if last else parts


def test_records_are_read_apart() -> None:
    chunk = parse_record(STAMP + b" stderr P a b\0", 60)
    assert (chunk.next_offset, chunk.stream, chunk.data) == (60, "stderr", b"a b\0")
    assert chunk.written_at_ns == 1_796_057_578_704_949_281
    assert parse_record(STAMP + b" stdout F ", 1).data == b"\n"
    shifted = parse_record(b"2026-11-30T18:52:58.704949281+02:00 stdout F ", 1)
    assert shifted.written_at_ns == chunk.written_at_ns


@pytest.mark.parametrize(
    "record", [b"", b"x", STAMP + b" stdin F x", STAMP + b" stdout X x", STAMP + b" stdout F"]
)
def test_anything_else_is_refused(record: bytes) -> None:
    with pytest.raises(HostError):
        parse_record(record, 0)


@given(writes=writes, limit_bytes=st.integers(1, 200))
def test_what_was_written_is_read(
    writes: list[tuple[str, bytes]], limit_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.getbasetemp() / "log"
    log.write_bytes(b"".join(as_conmon(stream, data) for stream, data in writes))
    read = {"stdout": b"", "stderr": b""}
    offset = 0
    while chunks := read_log(str(log), offset, limit_bytes):
        for chunk in chunks:
            read[chunk.stream] += chunk.data
        offset = chunks[-1].next_offset
    assert offset == log.stat().st_size
    for stream, data in read.items():
        assert data == b"".join(written for name, written in writes if name == stream)


def test_a_record_that_is_still_being_written_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert read_log(str(log), 0) == []
    whole = as_conmon("stdout", b"one\n")
    for length in range(len(whole)):
        log.write_bytes(whole + whole[:length])
        assert [chunk.data for chunk in read_log(str(log), 0)] == [b"one\n"]
        assert read_log(str(log), len(whole)) == []
    log.write_bytes(whole + whole)
    assert [chunk.data for chunk in read_log(str(log), len(whole))] == [b"one\n"]


def test_a_log_without_records_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 100_000)
    with pytest.raises(HostError):
        read_log(str(log), 0)
