"""Records give back exactly the bytes that went in, whatever they hold."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.errors import HostError
from axern.records import Output, Unpacker, is_whole_line, written_at_ns
from tests.monitor_log import records, stamp

STAMP = stamp(704_949_281)

writes = st.lists(
    st.tuples(
        st.sampled_from(("stdout", "stderr")),
        st.binary(min_size=1, max_size=40)
        | st.sampled_from((b"\n", b"\n\n", b"a\n", b" F \n", STAMP + b" stdout F x\n")),
        st.integers(0, 1),
    )
)


@given(writes=writes, cuts=st.sets(st.integers(0, 200)))
def test_what_was_written_comes_back(writes: list[tuple[str, bytes, int]], cuts: set[int]) -> None:
    found: list[bytes] = []
    now_ns = 704_949_282  # what a workload prints of other logs is older
    for stream, data, later in writes:
        now_ns += later
        found += records(stream, data, stamp(now_ns))
    unpacker = Unpacker()
    outputs: list[Output] = []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
        text = b"".join(found[begin:end])
        part = unpacker.unpack(text)
        assert sum(output.size_bytes for output in part) == len(text)
        assert all(a.stream != b.stream for a, b in pairwise(part))
        outputs += part
    for stream in ("stdout", "stderr"):
        whole = b"".join(data for name, data, _ in writes if name == stream)
        assert b"".join(output.data for output in outputs if output.stream == stream) == whole
    assert unpacker.broken == 0


def test_a_time_stands_at_the_beginning_of_each_line_and_nowhere_else() -> None:
    text = b"".join(
        records("stdout", b"one\ntw", STAMP)
        + records("stderr", b"x\n", STAMP)
        + records("stdout", b"o\nthree", STAMP)
    )
    unpacker = Unpacker(timestamps=True)
    first, second, third = unpacker.unpack(text)
    told = STAMP.removesuffix(b"+00:00") + b"Z"
    assert first.data == told + b" one\n" + told + b" tw"
    assert second.data == told + b" x\n"
    assert third.data == b"o\n" + told + b" three"
    assert sum(output.size_bytes for output in (first, second, third)) == len(text)
    (last,) = unpacker.unpack(b"".join(records("stdout", b"!\n", STAMP)))
    assert last.data == b"!\n"


@pytest.mark.parametrize("record", [b"", b"x", STAMP + b" stdin F x", STAMP + b" stdout X x"])
def test_what_is_no_record_is_left_out_and_counted(record: bytes) -> None:
    good = records("stdout", b"one\ntwo\n", STAMP)
    unpacker = Unpacker()
    (output,) = unpacker.unpack(good[0] + record + b"\n" + good[1])
    assert output.data == b"one\ntwo\n"
    assert unpacker.broken == 1
    assert Unpacker().unpack(record + b"\n") == []


@given(
    content=st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    later=st.integers(0, 3),
    place=st.integers(0, 200),
)
def test_a_record_that_follows_where_one_was_cut_is_no_line(
    content: bytes, later: int, place: int
) -> None:
    """As where a full disk has room again: else its head would come out as the workload's own."""
    (cut,) = records("stdout", b"some output of a certain length\n", STAMP)
    (next_one,) = records("stderr", content + b"\n", stamp(704_949_281 + later))
    good = b"".join(records("stdout", b"one\n", STAMP))
    later_good = b"".join(records("stdout", b"one\n", stamp(704_949_284)))
    unpacker = Unpacker()
    outputs = unpacker.unpack(good + cut[: place % len(cut[:-1]) or 1] + next_one + later_good)
    assert b"".join(output.data for output in outputs) == b"one\none\n"
    assert unpacker.broken == 1


def test_times_and_kinds_are_read() -> None:
    record = STAMP + b" stdout F x"
    assert written_at_ns(record) == 1_769_860_800_704_949_281
    assert written_at_ns(b"2026-01-31T14:00:00.704949281+02:00 x") == written_at_ns(record)
    assert is_whole_line(record)
    assert not is_whole_line(STAMP + b" stdout P x")
    with pytest.raises(HostError):
        written_at_ns(b"yesterday stdout F x")
