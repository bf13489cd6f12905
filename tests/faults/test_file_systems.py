"""Real file systems fail: what was answered is on the medium, and commits go on where they can."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from ledger import reader
from ledger.__main__ import main
from ledger.errors import CommitFailed, LedgerError
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.conftest import LONG
from tests.faults.block_log import private_mounts
from tests.faults.file_systems import EXT4, XFS, FileSystem, made, medium

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")

SHUTDOWNS = 100 if LONG else 3
MOST_WORDS = 300
"""What a process has told at most when its file system is shut down."""
LOST = r"what was answered is not there|offset \d+: "
"""How it is told that answers are lost: by the book, or by a journal that has a gap."""
SEGMENT_BYTES = 65_536


class Book:
    """What a caller knows: the leases that it has, and the one that it has no answer about."""

    def __init__(self, words: list[str]) -> None:
        self.kept: set[int] = set()
        for word in words:
            if word[0] == "+":
                self.kept.add(int(word[1:]))
            elif word[0] == "-":
                self.kept.discard(int(word[1:]))
        self.unknown = {int(words[-1][1:])} if words and words[-1][0] == "?" else set[int]()

    def require(self, ledger: Ledger) -> None:
        there = {int(row.id, 16) for row in ledger.state.reservations()}
        assert there - self.unknown == self.kept - self.unknown, "what was answered is not there"


def open_ledger(system: FileSystem, clock: ManualClock) -> Ledger:
    path = system.point / "ledger"
    ledger = Ledger.open(path, clock(), segment_bytes=SEGMENT_BYTES, node_id="node-a")
    if ledger.state.node() is None:
        ledger.commit(observing(small_node(10**6, 2**50, slots=10**6)), clock())
    return ledger


def ask(ledger: Ledger, clock: ManualClock, number: int, tell: Callable[[str], object]) -> None:
    """Reserve, and release every second lease."""
    tell(f"?{number}")
    ledger.commit(reserving(small_proposal(number, cpu_milli=1), clock()), clock())
    tell(f"+{number}")
    if number % 2:
        tell(f"?{number}")
        ledger.commit(releasing(number), clock())
        tell(f"-{number}")


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Mount where nobody sees it: who copies the host's mounts would keep a file system alive."""
    with private_mounts():
        yield


@pytest.fixture(params=[EXT4, XFS])
def system(alone: None, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileSystem]:
    with made(tmp_path, request.param) as system:
        yield system


def work(system: FileSystem, first: int, telling: int) -> NoReturn:
    """Commit, rotate and write checkpoints until the disk says no."""
    clock = ManualClock()
    code = 1
    try:
        ledger = open_ledger(system, clock)
        for number in range(first, first + 100_000):
            ask(ledger, clock, number, lambda word: os.write(telling, f"{word}\n".encode()))
            if number % 20 == 0:
                ledger.prepare_segment()
                ledger.checkpoint(rotate=number % 40 == 0)
    except CommitFailed:
        code = 0
    finally:
        os._exit(code)


def shut_down_under_work(system: FileSystem, first: int, least: int) -> list[str]:
    """Let a process tell *least* words, shut the file system down, and return all it told."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        work(system, first, telling)
    os.close(telling)
    words = b""
    while words.count(b"\n") < least:
        chunk = os.read(told, 65_536)
        assert chunk, "it ended before its disk did"
        words += chunk
    system.shut_down()
    while chunk := os.read(told, 65_536):
        words += chunk
    os.close(told)
    assert os.waitpid(child, 0)[1] == 0, "it ended otherwise than by its disk"
    return words.decode().splitlines()


def shut_down_often(system: FileSystem, often: int) -> int:
    """Shut down and mount again; return how many answers there were."""
    chance = random.Random(4)
    clock = ManualClock()
    answers = 0
    for turn in range(often):
        words = shut_down_under_work(system, turn * 1_000_000, chance.randrange(4, MOST_WORDS))
        answers += sum(word[0] != "?" for word in words)
        system.again()
        with open_ledger(system, clock) as ledger:
            Book(words).require(ledger)
            for row in list(ledger.state.reservations()):
                ledger.commit(releasing(int(row.id, 16)), clock())
    return answers


def test_what_was_answered_outlives_a_shutdown_of_its_file_system(system: FileSystem) -> None:
    assert shut_down_often(system, SHUTDOWNS) > 2 * SHUTDOWNS
    assert main(["check", str(system.point / "ledger")]) == 0


def test_control_what_was_not_flushed_does_not(
    system: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    with pytest.raises((AssertionError, LedgerError), match=LOST):
        shut_down_often(system, 3)


def test_a_file_system_that_turns_read_only_says_no_and_is_read(tmp_path: Path) -> None:
    clock, words = ManualClock(), list[str]()
    with made(tmp_path, EXT4, "-e", "remount-ro") as system:
        with suppress(CommitFailed), open_ledger(system, clock) as ledger:
            ask(ledger, clock, 2, words.append)
            system.become_read_only()
            for number in (4, 6):
                with pytest.raises(CommitFailed):
                    ask(ledger, clock, number, words.append)
            with pytest.raises(CommitFailed):
                ledger.reseal()
            assert reader.read(system.point / "ledger").generation == ledger.generation
            with pytest.raises(CommitFailed):
                ledger.close()
        with pytest.raises(CommitFailed, match="can't be written"):
            open_ledger(system, clock)
        system.again()
        with open_ledger(system, clock) as ledger:
            Book(["+2", "?4"]).require(ledger)
            ask(ledger, clock, 8, words.append)


def test_without_inodes_what_gives_back_is_done_and_the_rest_comes_back(tmp_path: Path) -> None:
    clock, words = ManualClock(), list[str]()
    with made(tmp_path, EXT4, "-N", "64") as system:
        with open_ledger(system, clock) as ledger:
            ledger.prepare_segment()
            fillers = list(take_every_inode(system))
            with pytest.raises(CommitFailed, match="No space left"):
                ledger.checkpoint(rotate=False)
            with suppress(CommitFailed):
                for number in range(2, 2000, 2):
                    ask(ledger, clock, number, words.append)
            assert ledger.is_short
            assert not ledger.failed
            for number in Book(words).kept:
                ledger.commit(releasing(number), clock())
            for filler in fillers:
                filler.unlink()
            ask(ledger, clock, 2000, words.append)
        system.again()
        with open_ledger(system, clock) as ledger:
            Book(["+2000"]).require(ledger)


def take_every_inode(system: FileSystem) -> Iterator[Path]:
    for number in range(10_000):
        filler = system.point / f"filler-{number}"
        try:
            filler.touch()
        except OSError as err:
            assert err.errno == errno.ENOSPC  # noqa: PT017 - it is no assertion about the ledger
            return
        yield filler


def write_back_fails(folder: Path, kind: str) -> int:
    """Lose the blocks that the next lines are written to for a while; return how many failed.

    Raises:
        AssertionError, LedgerError: Something that was answered is not on the medium.
    """
    clock, words = ManualClock(), list[str]()
    with medium(folder / "medium") as memory, made(folder / "medium", kind) as system:
        with open_ledger(system, clock) as ledger:
            ask(ledger, clock, 2, words.append)
            # A new segment: a loop device takes a write of which it could do the first part.
            ledger.checkpoint(rotate=True)
            segment = system.point / "ledger" / ledger._journal.position.segment
            system.lose(segment, 0, SEGMENT_BYTES - 4096)
            memory.run_out()
            failures = 0
            for number in range(4, 60, 2):
                try:
                    ask(ledger, clock, number, words.append)
                except CommitFailed:
                    words.append(f"-{number}")
                    failures += 1
            with suppress(CommitFailed):
                ledger.reseal()  # one that is made of room which there was before may work
            memory.come_back()
            ledger.reseal()
            ask(ledger, clock, 60, words.append)
            ledger.close(checkpoint=False)
        system.again()
        with open_ledger(system, clock) as ledger:
            Book(words).require(ledger)
        assert main(["check", str(system.point / "ledger")]) == 0
        return failures


@pytest.mark.parametrize("kind", [EXT4, XFS])
def test_a_write_back_that_fails_is_answered_as_not_done(tmp_path: Path, kind: str) -> None:
    assert write_back_fails(tmp_path, kind) > 10


@pytest.mark.parametrize("kind", [EXT4, XFS])
def test_control_whoever_flushes_a_second_time_answers_what_is_lost(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fdatasync

    def flush_twice(fd: int) -> None:
        try:
            flush(fd)
        except OSError:
            flush(fd)

    monkeypatch.setattr(os, "fdatasync", flush_twice)
    with pytest.raises((AssertionError, LedgerError), match=LOST):
        write_back_fails(tmp_path, kind)
