"""Frames survive any cut, and what is none is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api.frames import EVENT, KEEP_ALIVE, RECORDS, Frame, FrameParser, pack
from axern.errors import ProtocolError

frames = st.lists(
    st.builds(
        Frame, st.sampled_from((EVENT, RECORDS, KEEP_ALIVE)), st.binary(), st.integers(0, 2**63)
    )
)


@given(frames=frames, places=st.sets(st.integers(0, 300)))
def test_frames_are_found_however_they_are_cut(frames: list[Frame], places: set[int]) -> None:
    wire = b"".join(map(pack, frames))
    cuts = [0, *sorted(place for place in places if place < len(wire)), len(wire)]
    parser = FrameParser()
    found = [frame for begin, end in pairwise(cuts) for frame in parser.feed(wire[begin:end])]
    assert found == frames


@pytest.mark.parametrize("head", [b"x" * 16, b"r\0\0\0\xff\xff\xff\xff" + bytes(8)])
def test_what_is_no_frame_is_refused(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        FrameParser().feed(head)
