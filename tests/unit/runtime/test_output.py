"""A log in segments is read exactly: every byte from any record on, and every gap is told."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from axern import failpoint
from axern.runtime import output, segments
from axern.runtime.output import BEGINNING, Position, locate, read, since, tail
from ledger.errors import InvalidArgument
from tests.monitor_log import MonitorLog, stamp

MAX_BYTES = 8 * 300


class Crash(BaseException):
    """The daemon dies at a failpoint."""


@dataclass(slots=True)
class Reader:
    """Reads from the beginning on and holds every piece against what was written."""

    log: str
    position: Position = BEGINNING
    exact: bytearray = field(default_factory=bytearray)
    dropped: list[tuple[int, int | None]] = field(default_factory=list)

    def read(self, written: bytes, limit_bytes: int) -> bool:
        piece = read(self.log, self.position, limit_bytes)
        before, self.position = self.position, piece.after
        if piece.dropped is not None:
            assert not piece.text
            self.dropped.append((piece.dropped.size_bytes, piece.dropped.records))
            if piece.dropped.records is not None:
                gone = written[before.offset : piece.after.offset]
                assert piece.dropped.size_bytes == len(gone)
                assert piece.dropped.records == gone.count(b"\n")
        elif self.position.records is not None:
            assert piece.text == written[before.offset : piece.after.offset]
            assert self.position.records == written[: piece.after.offset].count(b"\n")
        self.exact += piece.text
        return piece.after != before


class Lab:
    """A monitor that writes, a daemon that settles and may die on the way, and a reader."""

    def __init__(self, folder: Path) -> None:
        self.log = str(folder / "output.log")
        segments.begin(self.log)
        self.monitor = MonitorLog(self.log, segments.segment_bytes(MAX_BYTES))
        self.monitor.open()
        self.reader = Reader(self.log)
        self.settled_at = 0

    def settle(self, crash_at: str = "", *, is_live: bool = True) -> None:
        def fail(name: str) -> None:
            if name == crash_at:
                raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segments, "failpoint", fail)
            try:
                segments.settle(self.log, MAX_BYTES, is_live=is_live)
            except Crash:
                return
        self.settled_at = self.monitor.reopened

    def end(self) -> None:
        """End the run; the reader must come to the end of what is kept."""
        self.monitor.close()
        while not segments.settle(self.log, MAX_BYTES, is_live=False):
            pass
        while self.reader.read(bytes(self.monitor.written), 1000):
            pass
        found = segments.survey(self.log)
        assert self.reader.position.offset == found[-1].end
        kept = sum(segment.size for segment in found)
        assert kept <= MAX_BYTES
        names = set(os.listdir(os.path.dirname(self.log)))
        assert len(names) == len(found) + 1
        assert segments.extent(found).kept_bytes == kept


@contextlib.contextmanager
def lab(one_read_bytes: int = 0) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_ONE_READ_BYTES", one_read_bytes)
        yield Lab(Path(folder))


streams = st.sampled_from(("stdout", "stderr"))
small = st.binary(min_size=1, max_size=70).map(
    lambda data: data[:40].replace(b"\n", b"", 5) + b"\n"
)
settling = st.tuples(st.just("settle"), st.sampled_from(("", *failpoint.LOG)), st.just(b""))
reading = st.tuples(st.just("read"), st.sampled_from(("1", "100", "5000")), st.just(b""))
writing = st.tuples(st.just("write"), streams, small | st.sampled_from((b"a\nb", b"c", b"\n")))
steps = st.lists(
    st.one_of(st.lists(writing, min_size=3, max_size=8), st.tuples(settling), st.tuples(reading)),
    min_size=8,
    max_size=30,
).map(lambda rows: [step for row in rows for step in row])


@given(steps=steps)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_is_lost_whatever_dies_as_long_as_somebody_looks_in_time(
    steps: list[tuple[str, str, bytes]],
) -> None:
    with lab() as here:
        play(here, steps, reopened_at_most=2)
        here.end()
        assert all(records is not None for _, records in here.reader.dropped)
        lost = sum(size for size, _ in here.reader.dropped)
        assert len(here.reader.exact) + lost == len(here.monitor.written)


@given(steps=steps)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_lost_when_nobody_looks_is_told(steps: list[tuple[str, str, bytes]]) -> None:
    with lab(one_read_bytes=150) as here:
        play(here, steps, reopened_at_most=1000)
        here.end()
        kept, written = here.reader.exact.split(b"\n"), bytes(here.monitor.written).split(b"\n")
        rest = iter(written)
        assert all(any(record == other for other in rest) for record in kept)
        if not here.reader.dropped:
            assert here.reader.exact == here.monitor.written


def play(here: Lab, steps: list[tuple[str, str, bytes]], *, reopened_at_most: int) -> None:
    for name, word, data in steps:
        if name == "write":
            # Bytes take their time, as they do in the world.
            here.monitor.write(word, data, after_ns=1 + (len(data) + 100) // 8)
            if here.monitor.reopened - here.settled_at >= reopened_at_most:
                here.settle()
        elif name == "settle":
            here.settle(word)
        else:
            here.reader.read(bytes(here.monitor.written), int(word))


def test_to_lay_out_a_file_in_use_would_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without one check the monitor empties a file, and the tests above see it."""
    steps = [("write", "stdout", b"%040d\n" % number) for number in range(20)]
    for is_broken in (False, True):
        with lab() as here:
            if is_broken:
                monkeypatch.setattr(segments, "_is_used", lambda *_: False)
            for step in steps:
                play(here, [step, ("settle", "", b"")], reopened_at_most=2)
            if is_broken:
                with pytest.raises(AssertionError):
                    here.end()
            else:
                here.end()


def test_what_was_laid_out_too_late_does_not_follow_what_it_took_the_place_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The monitor makes a file of its own while the next is laid out, and fills that one too."""
    with lab(one_read_bytes=150) as here:
        link, number = os.link, 0

        def write_a_file(*_: object) -> None:
            nonlocal number
            before = here.monitor.reopened
            while here.monitor.reopened == before:
                here.monitor.write("stdout", b"%040d\n" % number, after_ns=1000)
                number += 1

        def link_late(source: str, target: str) -> None:
            monkeypatch.undo()
            write_a_file()
            link(source, target)

        write_a_file()
        monkeypatch.setattr(os, "link", link_late)
        here.settle()
        write_a_file()
        here.end()
        assert here.reader.dropped, "a whole file is gone"
        assert len(here.reader.exact) < len(here.monitor.written)


def test_who_comes_late_by_one_file_loses_nothing(tmp_path: Path) -> None:
    with lab() as here:
        for number in range(12):
            here.monitor.write("stdout", b"%040d\n" % number)
            if here.monitor.reopened == 2:
                break
        assert not os.path.exists(f"{here.log}.tmp")
        here.settle()
        found = segments.survey(here.log)
        assert [segment.start for segment in found] == [0, found[0].end, found[1].end]
        assert read(here.log, BEGINNING).dropped is None
        here.end()
        assert here.reader.exact == here.monitor.written


def test_who_comes_late_by_two_is_told_that_something_is_missing(tmp_path: Path) -> None:
    with lab(one_read_bytes=150) as here:
        while here.monitor.reopened < 3:
            here.monitor.write("stdout", b"%040d\n" % here.monitor.reopened, after_ns=20)
        here.settle()
        here.end()
        assert here.reader.dropped == [(1, None)]
        assert segments.extent(segments.survey(here.log)).dropped_records is None
        assert here.monitor.written.startswith(here.reader.exact[:400])
        assert here.monitor.written.endswith(here.reader.exact[-60:])


def test_the_names_say_what_came_before(tmp_path: Path) -> None:
    here = Lab(tmp_path)
    for number in range(100):
        here.monitor.write("stdout", b"%060d\n" % number)
        here.settle()
    found = segments.survey(here.log)
    written = bytes(here.monitor.written)
    assert len(found) > 4
    assert found[0].start > 0
    for number, segment in enumerate(found):
        assert segments.records_before(found, number) == written[: segment.start].count(b"\n")
        assert Path(segment.path).read_bytes() == written[segment.start : segment.end]
    extent = segments.extent(found)
    assert extent.dropped_bytes == found[0].start
    assert extent.dropped_records == found[0].records
    piece = read(here.log, BEGINNING)
    assert piece.dropped is not None
    assert (piece.dropped.size_bytes, piece.dropped.records) == (found[0].start, found[0].records)
    assert piece.after == Position(found[0].start, found[0].records)


def test_who_looks_while_names_change_sees_no_gap(tmp_path: Path) -> None:
    """A file gets its count by another name, and the one before it goes."""
    here = Lab(tmp_path)
    over = threading.Event()
    looks: list[bool] = []

    def look() -> None:
        while not over.is_set():
            found = segments.survey(here.log)
            looks.append(all(one.end == other.start for one, other in pairwise(found)))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(1_500):
        here.monitor.write("stdout", b"%060d\n" % number)
        here.settle()
    over.set()
    looking.join()
    assert len(looks) > 50
    assert all(looks)
    assert segments.survey(here.log)[0].start > 0


def test_a_file_that_is_counted_while_it_is_looked_for_is_no_gap(
    filled: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name of a moment ago is gone, but nothing of it is."""
    survey, written = segments.survey, bytes(filled.monitor.written)
    found = [segment for segment in survey(filled.log) if not segment.is_counted]
    assert len(found) > 3

    def survey_late(log: str) -> list[segments.Segment]:
        """Return what was there before one more was counted."""
        names = survey(log)
        if found:
            counted = found.pop(0)
            records = written.count(b"\n", 0, counted.start)
            os.rename(counted.path, f"{log}.{counted.start:016d}.{records}")
        return names

    monkeypatch.setattr(output, "survey", survey_late)
    place, before = found[0].start, written.count(b"\n", 0, found[0].start)
    piece = read(filled.log, Position(place, before), 10**6)
    assert piece.dropped is None
    assert written[place:].startswith(piece.text)
    assert piece.text
    assert tail(filled.log, 3).records == 27
    assert locate(filled.log, piece.after.offset) == piece.after


def test_a_file_that_is_dropped_while_it_is_looked_for_is_counted_as_missing(
    filled: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, following = segments.survey(filled.log)[:2]
    survey, late = segments.survey, [filled]

    def survey_late(log: str) -> list[segments.Segment]:
        names = survey(log)
        if late:
            segments._counted(log, following, oldest)
            os.unlink(oldest.path)
            late.pop()
        return names

    monkeypatch.setattr(output, "survey", survey_late)
    gap = read(filled.log, Position(oldest.start, oldest.records)).dropped
    assert gap is not None
    assert oldest.records is not None
    assert gap.size_bytes == oldest.size
    assert gap.records == filled.monitor.written.count(b"\n", oldest.start, oldest.end)


def test_what_was_read_before_it_had_a_name_is_not_taken_for_what_has_that_place_now(
    tmp_path: Path,
) -> None:
    """A file's inode is soon another's: where the name is one's own only then it proves nothing."""
    here = Lab(tmp_path)
    while here.monitor.reopened < 1:
        here.monitor.write("stdout", b"%040d\n" % 1)
    first = read(here.log, BEGINNING)
    piece = read(here.log, first.after)
    assert piece.segment is not None
    assert piece.segment.path == f"{here.log}.next"
    assert piece.text
    os.rename(f"{here.log}.next", segments._name(here.log, piece.segment.start, "n"))
    with open(here.log, "rb") as same, open(f"{here.log}.next", "wb") as other:
        other.write(same.read().replace(b"0", b"9") * 2)
        forged = replace(piece.segment, inode=os.fstat(other.fileno()).st_ino)
    assert read(here.log, piece.after, known=forged).text == b""


def test_a_log_from_before_there_were_segments_is_one(tmp_path: Path) -> None:
    log = str(tmp_path / "output.log")
    assert segments.survey(log) == []
    assert segments.settle(log, MAX_BYTES, is_live=True)
    monitor = MonitorLog(log, 10**6)
    monitor.open()
    monitor.write("stdout", b"one\ntwo\n")
    assert read(log, BEGINNING).text == monitor.written
    assert segments.settle(log, MAX_BYTES, is_live=True)
    assert read(log, BEGINNING).text == monitor.written
    assert segments.survey(log)[0].records == 0
    monitor.close()


def test_a_record_that_is_still_being_written_waits(tmp_path: Path) -> None:
    here = Lab(tmp_path)
    here.monitor.write("stdout", b"one\n")
    whole = bytes(here.monitor.written)
    for length in range(len(whole)):
        Path(here.log).write_bytes(whole + whole[:length])
        piece = read(here.log, BEGINNING)
        assert piece.text == whole
        assert read(here.log, piece.after).text == b""
    Path(here.log).write_bytes(whole + whole)
    assert read(here.log, piece.after).text == whole


def test_what_a_full_disk_cut_short_is_told_once_the_next_file_is_there(tmp_path: Path) -> None:
    here = Lab(tmp_path)
    here.monitor.write("stdout", b"one\n")
    os.write(here.monitor._fd, b"torn")
    here.monitor._reopen()
    here.settle()
    here.monitor.write("stdout", b"two\n")
    first = read(here.log, BEGINNING)
    torn = read(here.log, first.after)
    assert torn.dropped is not None
    assert torn.dropped.size_bytes == 4
    assert read(here.log, torn.after).text.endswith(b" stdout F two\n")


@pytest.fixture
def filled(tmp_path: Path) -> Lab:
    here = Lab(tmp_path)
    for number in range(30):
        here.monitor.write("stdout", b"%040d\n" % number, after_ns=1_000_000)
        here.settle()
    return here


def test_a_place_is_found_again(filled: Lab) -> None:
    written = bytes(filled.monitor.written)
    oldest = segments.survey(filled.log)[0].start
    for offset in range(oldest, len(written) + 1):
        if offset == 0 or written[offset - 1 : offset] == b"\n":
            assert locate(filled.log, offset) == Position(offset, written.count(b"\n", 0, offset))
        else:
            with pytest.raises(InvalidArgument, match=f"no record ends at {offset}"):
                locate(filled.log, offset)
    assert locate(filled.log, 1) == Position(1, None)
    with pytest.raises(InvalidArgument, match="behind the log's end"):
        locate(filled.log, len(written) + 1)
    assert locate(filled.log, 0) == BEGINNING


def test_the_last_lines_are_found(filled: Lab) -> None:
    written = bytes(filled.monitor.written)
    first = segments.survey(filled.log)[0]
    assert first.records
    kept = 30 - first.records
    lines = written.splitlines(keepends=True)
    for count in range(kept + 1):
        place = sum(map(len, lines[: 30 - count]))
        assert tail(filled.log, count) == Position(place, 30 - count)
    assert tail(filled.log, 1000) == Position(first.start, first.records)
    filled.monitor.write("stdout", b"un")
    filled.monitor.write("stdout", b"finished")
    assert tail(filled.log, 1).records == 30
    assert tail(filled.log, 2).records == 29


def test_a_time_is_found(filled: Lab) -> None:
    first = segments.survey(filled.log)[0]
    assert first.records
    began_ns = 1_769_860_800_000_000_000
    for number in range(30):
        exactly = since(filled.log, began_ns + (number + 1) * 1_000_000)
        assert exactly.records == max(number, first.records)
        later = since(filled.log, began_ns + (number + 1) * 1_000_000 + 1)
        assert later.records == max(number + 1, first.records)
    assert since(filled.log, 0) == Position(first.start, first.records)
    assert stamp(0).startswith(b"2026-01-31T12:00:00.000000000")


def test_where_nothing_was_written_everything_is_the_beginning(tmp_path: Path) -> None:
    log = str(tmp_path / "output.log")
    assert read(log, BEGINNING).after == BEGINNING
    assert tail(log, 5) == since(log, 5) == locate(log, 0) == BEGINNING
    segments.begin(log)
    assert tail(log, 5) == since(log, 5) == locate(log, 0) == BEGINNING
