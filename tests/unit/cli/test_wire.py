"""The client's decoders give the same for every way of cutting their input."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api.decoding import ChunkedDecoder, Event, EventParser
from axern.errors import ProtocolError


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return *data* cut at *places*, taken modulo its length."""
    marks = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(marks)]


places = st.lists(st.integers(min_value=0, max_value=10_000), max_size=20)
text = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]))
# A value's first space is the format's own.
names = st.text("abcdefgh-", min_size=1)


@given(st.lists(st.binary(min_size=1)), places, st.sampled_from(["", ";name=value"]))
def test_chunks_are_joined(parts: list[bytes], places: list[int], extension: str) -> None:
    wire = b"".join(f"{len(p):X}{extension}\r\n".encode() + p + b"\r\n" for p in parts)
    wire += b"0\r\nX-Trailer: 1\r\n\r\n"
    decoder = ChunkedDecoder()
    content = b"".join(decoder.feed(piece) for piece in cut(wire, places))
    assert content == b"".join(parts)
    assert decoder.done


@given(st.lists(st.binary(min_size=1), min_size=1), st.integers(min_value=1))
def test_what_is_cut_off_is_never_done(parts: list[bytes], missing: int) -> None:
    wire = b"".join(f"{len(p):x}\r\n".encode() + p + b"\r\n" for p in parts) + b"0\r\n\r\n"
    decoder = ChunkedDecoder()
    decoder.feed(wire[: -(missing % len(wire)) or -1])
    assert not decoder.done


@pytest.mark.parametrize(
    "wire", [b"x\r\n", b"\r\n", b"-1\r\n", b"1_0\r\n", b"1\r\nab\r\n", b"1" * 70_000]
)
def test_what_is_not_chunked_is_refused(wire: bytes) -> None:
    with pytest.raises(ProtocolError):
        ChunkedDecoder().feed(wire)


@given(st.lists(st.tuples(names, text, names)), places, st.sampled_from(["\n", "\r\n"]))
def test_events_are_found(events: list[tuple[str, str, str]], places: list[int], end: str) -> None:
    wire = end.join(
        f": waiting{end}id: {number}{end}event: {name}{end}data: {data}{end}"
        for name, data, number in events
    )
    parser = EventParser()
    found = [event for piece in cut((wire + end).encode(), places) for event in parser.feed(piece)]
    assert found == [Event(name, data.encode(), number) for name, data, number in events]


def test_rules_of_the_format() -> None:
    wire = (
        b"data:no space\n\n"  # the space after the colon is optional
        b"data: two\ndata: lines\n\n"
        b"event: empty\n\n"  # no data, no event
        b"retry: 5\nunknown: x\nid: 7\ndata: a: b\n\n"
        b"data\n\n"
        b"data: unfinished\n"
    )
    assert EventParser().feed(wire) == [
        Event("message", b"no space", ""),
        Event("message", b"two\nlines", ""),
        Event("message", b"a: b", "7"),
        Event("message", b"", "7"),
    ]
