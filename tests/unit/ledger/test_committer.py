"""Group commit: who shares a flush, who gets which answer, and what is done beside it."""

import asyncio
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ledger import reader, transitions
from ledger.committer import Committer
from ledger.errors import AdmissionRefused, CommitFailed, InvariantViolation, LedgerBusy, NotFound
from ledger.state import Change, State
from ledger.store import Ledger, Operation
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_node,
    small_proposal,
)

CLOCK = ManualClock()
IN_A_THREAD = 0.0
ON_THE_LOOP = 1e9


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


@pytest.fixture
def ledger(directory: Path) -> Iterator[Ledger]:
    with Ledger.open(directory, CLOCK(), segment_bytes=16_384) as ledger:
        ledger.commit(observing(small_node(cpu_milli=10**6, memory_bytes=2**42)), CLOCK())
        yield ledger


def reserve(number: int) -> Operation:
    return reserving(small_proposal(number), CLOCK())


def run(ledger: Ledger, work: Callable[[Committer], Awaitable[None]], **options: float) -> None:
    """Run *work* with a committer, and close that."""

    async def main() -> None:
        committer = Committer(ledger, CLOCK, **options)  # type: ignore[arg-type]
        await work(committer)
        await committer.close()

    asyncio.run(main())


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_who_comes_together_shares_a_flush(
    ledger: Ledger, directory: Path, slow_flush_s: float
) -> None:
    async def work(committer: Committer) -> None:
        before = ledger.generation
        granted = await asyncio.gather(*(committer.submit(reserve(n)) for n in range(20)))
        assert granted == [ledger.state.reservation(f"{n:032x}") for n in range(20)]
        assert ledger.generation - before <= 2
        assert reader.read(directory).generation == ledger.generation

    run(ledger, work, slow_flush_s=slow_flush_s)


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_callers_in_a_closed_loop_stay_together(ledger: Ledger, slow_flush_s: float) -> None:
    async def client(committer: Committer, first: int) -> None:
        for number in range(first, first + 10):
            await committer.submit(reserve(number))
            await committer.submit(releasing(number))

    async def work(committer: Committer) -> None:
        before = ledger.generation
        await asyncio.gather(*(client(committer, 100 * n) for n in range(8)))
        assert ledger.generation - before <= 2 * 20  # and not 160

    run(ledger, work, slow_flush_s=slow_flush_s)
    assert ledger.state.entry_count() == 0


def test_each_gets_its_own_answer(ledger: Ledger) -> None:
    async def work(committer: Committer) -> None:
        too_large = reserving(small_proposal(2, cpu_milli=10**9), CLOCK())
        answers = await asyncio.gather(
            *map(committer.submit, (reserve(1), too_large, releasing(7), reserve(3))),
            return_exceptions=True,
        )
        assert answers[0] == ledger.state.reservation(f"{1:032x}")
        assert isinstance(answers[1], AdmissionRefused)
        assert isinstance(answers[2], NotFound)
        assert answers[3] == ledger.state.reservation(f"{3:032x}")

    run(ledger, work)


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_a_failed_flush_is_not_done_for_anyone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, slow_flush_s: float
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def work(committer: Committer) -> None:
        await committer.submit(reserve(1))
        too_large = reserving(small_proposal(2, cpu_milli=10**9), CLOCK())
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            answers = await asyncio.gather(
                *map(committer.submit, (reserve(3), too_large, reserve(4))),
                return_exceptions=True,
            )
        assert [type(answer) for answer in answers] == [CommitFailed] * 3
        assert len({id(answer) for answer in answers}) == 3
        with pytest.raises(CommitFailed):
            await committer.submit(reserve(5))
        ledger.reseal()
        await committer.submit(reserve(6))
        assert [int(row.id, 16) for row in ledger.state.reservations()] == [1, 6]

    run(ledger, work, slow_flush_s=slow_flush_s)


def test_reads_do_not_see_what_is_being_flushed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing, go = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        flushing.set()
        assert go.wait(10)
        real(fd)

    async def work(committer: Committer) -> None:
        monkeypatch.setattr(os, "fdatasync", slow)
        first = asyncio.create_task(committer.submit(reserve(1)))
        assert await asyncio.to_thread(flushing.wait, 10)
        second = asyncio.create_task(committer.submit(reserve(2)))
        third = asyncio.create_task(committer.submit(reserve(3)))
        await asyncio.sleep(0)
        assert ledger.state.entry_count() == 0
        before = ledger.generation
        go.set()
        await asyncio.gather(first, second, third)
        assert ledger.generation - before == 2  # those who came meanwhile share the next one

    run(ledger, work, slow_flush_s=IN_A_THREAD)


def test_a_full_queue_is_busy(ledger: Ledger) -> None:
    async def work(committer: Committer) -> None:
        waiting = [asyncio.create_task(committer.submit(reserve(n))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(LedgerBusy, match="3 callers waiting"):
            await committer.submit(reserve(9))
        await asyncio.gather(*waiting)
        await committer.submit(reserve(9))

    run(ledger, work, queue_limit=3)


def test_a_caller_that_gives_up_disturbs_nobody(ledger: Ledger) -> None:
    async def work(committer: Committer) -> None:
        leaver = asyncio.create_task(committer.submit(reserve(1)))
        stayer = asyncio.create_task(committer.submit(reserve(2)))
        await asyncio.sleep(0)
        leaver.cancel()
        assert await stayer == ledger.state.reservation(f"{2:032x}")
        assert ledger.state.entry_count() == 2

    run(ledger, work)


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_closing_finishes_what_was_submitted(ledger: Ledger, slow_flush_s: float) -> None:
    async def work(committer: Committer) -> None:
        waiting = [asyncio.create_task(committer.submit(reserve(n))) for n in range(5)]
        await asyncio.sleep(0)
        await committer.close()
        assert all(task.done() for task in waiting)
        with pytest.raises(LedgerBusy, match="being closed"):
            await committer.submit(reserve(9))

    run(ledger, work, slow_flush_s=slow_flush_s)
    assert ledger.state.entry_count() == 5


def test_after_a_bug_nothing_is_taken(ledger: Ledger) -> None:
    def bug(view: State) -> Change:
        raise InvariantViolation("a bug")

    async def work(committer: Committer) -> None:
        answers = await asyncio.gather(
            *map(committer.submit, (reserve(1), bug)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [InvariantViolation] * 2
        with pytest.raises(InvariantViolation, match="stopped after a bug"):
            await committer.submit(reserve(2))

    run(ledger, work)
    assert ledger.state.entry_count() == 0


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens in the background."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.002)


def test_an_idle_ledger_writes_its_checkpoint(ledger: Ledger, directory: Path) -> None:
    async def work(committer: Committer) -> None:
        await committer.submit(reserve(1))
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        assert committer.checkpoint_error is None

    run(ledger, work, idle_s=0.02)
    assert len(list(directory.glob("journal-*"))) == 1
    assert not (directory / "archive").exists()


def test_heartbeats_alone_write_no_checkpoint(ledger: Ledger) -> None:
    async def work(committer: Committer) -> None:
        await committer.submit(reserve(1))
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        before = ledger.checkpoint_generation
        beats = {f"{1:032x}": 5}
        await committer.submit(lambda view: transitions.persist_beats(view, beats))
        assert ledger.generation == before + 1
        assert committer._upkeep._timer is None
        assert committer._upkeep._work is None

    run(ledger, work, idle_s=0.02)


def test_a_long_journal_is_rotated_and_archived_beside_commits(
    ledger: Ledger, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.store.CHECKPOINT_BYTES", 20_000)

    async def work(committer: Committer) -> None:
        born = ledger.checkpoint_generation
        for number in range(60):
            await committer.submit(reserve(number))
        await until(lambda: ledger.checkpoint_generation > born)
        await until((directory / "archive").exists)
        assert committer.checkpoint_error is None

    run(ledger, work, idle_s=1000)
    assert reader.read(directory).state.entry_count() == 60


def test_a_checkpoint_that_fails_is_told_and_commits_go_on(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work(committer: Committer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", full)
            await committer.submit(reserve(1))
            await until(lambda: committer.checkpoint_error is not None)
            await committer.submit(reserve(2))
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        assert committer.checkpoint_error is None

    run(ledger, work, idle_s=0.01)
