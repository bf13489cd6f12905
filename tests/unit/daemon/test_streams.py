"""A run's log as events: every byte, from any event on, and with room for everybody else."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from axern.api.decoding import RECORDS, Event, EventParser, FramedEvents
from axern.api.messages import FilePart
from axern.daemon import streams
from axern.daemon.life import Life
from axern.daemon.streams import Source, follow
from axern.daemon.watcher import FolderWatcher
from axern.host.cgroup import Hierarchies
from axern.runtime import segments
from axern.runtime.layout import Layout, SandboxPaths
from axern.runtime.output import locate
from ledger.reservation import RETIRING, RUNNING

ID = "ab" * 16
STAMP = "2026-01-31T12:00:00.000000000+00:00"


@pytest.fixture
def paths(tmp_path: Path) -> SandboxPaths:
    folder = str(tmp_path)
    made = Layout(folder, folder, folder, folder, "axern", Hierarchies("/nowhere", ())).sandbox(ID)
    Path(made.run_folder).mkdir(parents=True)
    return made


class Stage:
    """One run to follow, alive or over."""

    def __init__(self, paths: SandboxPaths, *, alive: bool) -> None:
        self.paths = paths
        self.phase: str | None = RUNNING if alive else None
        self.life = Life(ID) if alive else None
        self.watcher = FolderWatcher(asyncio.get_running_loop())
        self.closing = asyncio.Event()
        self.form: streams.Form = streams.ServerSentEvents()
        self.settled = 0

    def follow(self, offset: int = 0) -> AsyncGenerator[bytes | FilePart, None]:
        async def settle() -> bool:
            self.settled += 1
            return True

        source = Source(self.paths, self.life, lambda: self.phase, lambda: {"id": ID}, settle)
        parts = follow(
            source,
            self.watcher,
            self.closing,
            position=locate(self.paths.log, offset),
            form=self.form,
            wait=True,
        )
        return cast("AsyncGenerator[bytes | FilePart, None]", parts)

    async def parts(self, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the parts of a form that has none of files."""
        async for part in self.follow(offset):
            assert isinstance(part, bytes)
            yield part


async def read(paths: SandboxPaths, offset: int = 0) -> list[Event]:
    """Return all events of a run that is over, from *offset* on."""
    stage, parser = Stage(paths, alive=False), EventParser()
    try:
        return [event async for part in stage.parts(offset) for event in parser.feed(part)]
    finally:
        stage.watcher.close()


async def read_frames(paths: SandboxPaths, offset: int = 0) -> list[Event]:
    """Return the same in the fast form, its parts of files read."""
    stage, parser = Stage(paths, alive=False), FramedEvents()
    stage.form = streams.Frames()
    found: list[Event] = []
    try:
        async for part in stage.follow(offset):
            if isinstance(part, bytes):
                found += parser.feed(part)
            else:
                found += parser.feed(part.head)
                found += parser.feed(os.pread(part.file.fileno(), part.size_bytes, part.begin))
                part.file.close()
    finally:
        stage.watcher.close()
    return found


def write(paths: SandboxPaths, *records: tuple[str, str, str]) -> None:
    with open(paths.log, "a", encoding="utf-8") as file:
        file.writelines(f"{STAMP} {stream} {tag} {text}\n" for stream, tag, text in records)


def outputs(events: list[Event]) -> Iterator[tuple[str, bytes]]:
    for event in events:
        if event.name in ("stdout", "stderr"):
            yield event.name, base64.b64decode(event.data)


def test_lines_of_one_output_that_follow_each_other_are_one_event(paths: SandboxPaths) -> None:
    write(paths, ("stdout", "F", "one"), ("stdout", "P", "two"), ("stderr", "F", "three"))
    write(paths, ("stdout", "F", ""), ("stdout", "F", "four"))
    events = asyncio.run(read(paths))
    assert [event.name for event in events] == ["start", "stdout", "stderr", "stdout", "exit"]
    expected = [("stdout", b"one\ntwo"), ("stderr", b"three\n"), ("stdout", b"\nfour\n")]
    assert list(outputs(events)) == expected
    for number in range(1, 4):
        again = asyncio.run(read(paths, int(events[number].id)))
        assert list(outputs(again)) == expected[number:]


def test_a_long_log_comes_byte_for_byte(paths: SandboxPaths) -> None:
    write(paths, *(("stdout", "F", f"{number:x}" * (number % 700)) for number in range(2_000)))
    events = asyncio.run(read(paths))
    whole = b"".join(data for _, data in outputs(events))
    assert whole.decode() == "".join(f"{f'{n:x}' * (n % 700)}\n" for n in range(2_000))
    assert len(events) < 200
    middle = len(events) // 2
    rest = asyncio.run(read(paths, int(events[middle].id)))
    assert list(outputs(rest)) == list(outputs(events[middle + 1 :]))


def test_the_fast_form_is_the_log_itself_from_any_event_on(paths: SandboxPaths) -> None:
    write(paths, *(("stdout", "F", f"{number:x}" * (number % 700)) for number in range(9_000)))
    with open(paths.log, "rb") as file:
        log = file.read()
    events = asyncio.run(read_frames(paths))
    assert [event.name for event in (events[0], events[-1])] == ["start", "exit"]
    assert {event.name for event in events[1:-1]} == {RECORDS}
    assert b"".join(event.data for event in events[1:-1]) == log
    assert len(events) > 4
    for number in range(1, len(events) - 1):
        offset = int(events[number].id)
        assert log[:offset].endswith(b"\n")
        again = asyncio.run(read_frames(paths, offset))
        assert b"".join(event.data for event in again[1:-1]) == log[offset:]
        assert json.loads(again[0].data)["records"] == log.count(b"\n", 0, offset)


def test_the_fast_form_says_how_many_records_came_before_the_end_of_a_gap(
    paths: SandboxPaths,
) -> None:
    write(paths, ("stdout", "F", "one"))
    os.rename(paths.log, f"{paths.log}.{1000:016d}.20")
    write(paths, ("stdout", "F", "two"))
    os.rename(paths.log, f"{paths.log}.{2000:016d}.x")
    start, gap, first, other, second, end = asyncio.run(read_frames(paths))
    assert (start.name, end.name) == ("start", "exit")
    assert json.loads(gap.data) == {"bytes": 1000, "records_before": 20}
    assert json.loads(other.data) == {"bytes": 2000 - int(first.id), "records_before": None}
    assert (first.data[-4:], second.data[-4:]) == (b"one\n", b"two\n")


def test_a_client_that_reads_at_once_leaves_room_for_others(paths: SandboxPaths) -> None:
    write(paths, *[("stdout", "F", "x" * 1_000)] * 3_000)

    async def scene() -> tuple[int, int]:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        events = await read(paths)
        beside.cancel()
        return turns, len(events)

    turns, count = asyncio.run(scene())
    assert count > 10
    assert turns >= count - 2


def test_what_is_written_later_comes_later_and_the_exit_last(paths: SandboxPaths) -> None:
    write(paths, ("stdout", "F", "one"))

    async def scene() -> list[Event]:
        stage, parser, events = Stage(paths, alive=True), EventParser(), cast("list[Event]", [])
        assert stage.life is not None
        async for part in stage.parts():
            events += parser.feed(part)
            if events[-1].name == "stdout":
                write(paths, ("stderr", "F", "two"))
            elif events[-1].name == "stderr":
                stage.phase = None
                stage.life.moved.notify()
        stage.watcher.close()
        return events

    events = asyncio.run(asyncio.wait_for(scene(), 20))
    assert [event.name for event in events] == ["start", "stdout", "stderr", "exit"]


def test_an_end_that_a_full_disk_cut_short_is_told(paths: SandboxPaths) -> None:
    """Else half of an output would pass for the whole, with the workload's own exit code."""
    write(paths, ("stdout", "F", "one"))
    with open(paths.log, "ab") as log:
        log.write(f"{STAMP} stdout F tw".encode())
    events = asyncio.run(read(paths))
    assert [event.name for event in events] == ["start", "stdout", "dropped", "exit"]
    assert json.loads(events[2].data) == {"bytes": 47, "records": None}
    assert asyncio.run(read(paths, int(events[2].id)))[1:] == events[3:]


def test_a_disk_that_was_full_leaves_a_doubt(
    paths: SandboxPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor may lose whole records, of which nothing is to be seen."""
    write(paths, ("stdout", "F", "one"))
    segments.doubt_if_full(paths.log)
    assert [event.name for event in asyncio.run(read(paths))] == ["start", "stdout", "exit"]
    disk = SimpleNamespace(f_bavail=3, f_bfree=4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    segments.doubt_if_full(paths.log)
    segments.doubt_if_full(paths.log)
    events = asyncio.run(read(paths))
    assert [event.name for event in events] == ["start", "stdout", "dropped", "exit"]


def test_who_leaves_is_forgotten(paths: SandboxPaths) -> None:
    async def scene() -> None:
        stage = Stage(paths, alive=True)
        assert stage.life is not None
        parts = stage.follow()
        await anext(parts)
        assert stage.life.moved._events
        waiting = asyncio.create_task(asyncio.wait_for(anext(parts), 20))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not stage.life.moved._events
        assert not stage.watcher._callbacks
        stage.watcher.close()

    asyncio.run(asyncio.wait_for(scene(), 20))


def test_a_burial_that_drags_on_holds_up_the_exit_for_so_long_only(
    paths: SandboxPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_WAIT_FOR_BURIAL_S", 0.3)

    async def scenario() -> list[str]:
        stage, parser = Stage(paths, alive=True), EventParser()
        stage.phase = RETIRING
        life = stage.life
        assert life is not None

        async def wake_all_the_time() -> None:
            while True:
                life.moved.notify()
                await asyncio.sleep(0.02)

        waking = asyncio.create_task(wake_all_the_time())
        try:
            async with asyncio.timeout(20):
                parts = [part async for part in stage.parts()]
        finally:
            waking.cancel()
            stage.watcher.close()
        return [event.name for part in parts for event in parser.feed(part)]

    assert asyncio.run(scenario()) == ["start", "exit"]
