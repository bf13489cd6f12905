"""What is missing of a run's output is counted by who reads it, and said once, to the line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from axern.api.decoding import RECORDS, Event
from axern.cli.actions import foreground
from axern.cli.actions.foreground import Pipe
from tests.monitor_log import records, stamp


class Ends:
    """Both ends of a pipe that writes nowhere."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written: list[bytes] = []
        self.said: list[str] = []
        patch.setattr(foreground, "write", lambda _, data: self.written.append(data))
        patch.setattr(foreground, "say", self.said.append)
        self.pipe = Pipe()
        self.offset = 0

    def event(self, name: str, **data: Any) -> None:
        self.pipe.take(Event(name, json.dumps(data).encode(), str(self.offset)))

    def records(self, data: bytes) -> None:
        text = b"".join(records("stdout", data, stamp(self.offset)))
        self.offset += len(text)
        self.pipe.take(Event(RECORDS, text, str(self.offset)))


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    return Ends(monkeypatch)


@pytest.mark.parametrize("begun", [0, 7])
def test_lines_that_were_dropped_are_those_before_the_gap_s_end_less_those_read(
    ends: Ends, begun: int
) -> None:
    ends.event("start", run={}, records=begun)
    ends.records(b"one\ntwo\n")
    ends.event("start", run={}, records=None)  # of a daemon that we came back to
    ends.records(b"three\nfo")
    ends.event("dropped", bytes=5000, records_before=begun + 104)
    ends.records(b"five\n")
    ends.event("dropped", bytes=50, records_before=begun + 106)
    assert b"".join(ends.written) == b"one\ntwo\nthree\nfofive\n"
    assert [text.split(";")[0] for text in ends.said] == [
        "axern: missing here: 100 lines of output (5,000 bytes of log)",
        "axern: missing here: 1 line of output (50 bytes of log)",
    ]
    assert ends.pipe.incomplete


def test_output_before_the_word_that_the_run_has_started_counts_too(ends: Ends) -> None:
    ends.records(b"one\n")
    ends.event("start", run={}, records=0)
    ends.event("dropped", bytes=90, records_before=3)
    assert "2 lines" in ends.said[0]


def test_output_of_a_stream_that_broke_off_before_it_had_started_is_counted_once(
    ends: Ends,
) -> None:
    ends.pipe.connect()
    ends.records(b"one\ntwo\n")
    assert ends.pipe.started, "what was written must not come again"
    ends.pipe.connect()
    ends.records(b"three\n")
    ends.event("start", run={}, records=2)
    ends.event("dropped", bytes=90, records_before=4)
    assert "1 line " in ends.said[0]


@pytest.mark.parametrize("records_before", [None, 9])
@pytest.mark.parametrize("begun", [None, 0])
def test_what_nobody_counted_is_of_unknown_length(
    ends: Ends, begun: int | None, records_before: int | None
) -> None:
    ends.event("start", run={}, records=begun)
    ends.event("dropped", bytes=90, records_before=records_before)
    is_known = begun is not None and records_before is not None
    assert ("output of unknown length (at least 90 bytes" in ends.said[0]) != is_known
