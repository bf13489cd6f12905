"""Group commit: who shares a flush, who gets which answer, and what is done beside it."""

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from ledger import checkpoint, reader, transitions
from ledger.codec import Checkpoint
from ledger.committer import Committer
from ledger.errors import AdmissionRefused, CommitFailed, InvariantViolation, LedgerBusy, NotFound
from ledger.files import Folder
from ledger.staging import Operation
from ledger.state import Change, State
from ledger.store import Ledger
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


def ids(ledger: Ledger) -> list[int]:
    return [int(row.id, 16) for row in ledger.state.reservations()]


def left_by_a_crash(directory: Path) -> list[int]:
    """Return which leases the next opener would find if the process died now, all being quiet."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    found = Ledger.open(copy, CLOCK(), segment_bytes=16_384)
    found.close(checkpoint=False)
    shutil.rmtree(copy)
    return ids(found)


def is_quiet(committer: Committer) -> bool:
    return committer._upkeep._work is None and not committer._upkeep.urgent


def fail(*args: object, **kwargs: object) -> None:
    """Stand in for a call to a disk that is broken."""
    raise OSError(errno.EIO, "Input/output error")


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that happens in the background."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.002)


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
    ledger: Ledger, directory: Path, monkeypatch: pytest.MonkeyPatch, slow_flush_s: float
) -> None:
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
        assert reader.read(directory).state.entry_count() == 1  # resealed before anyone was told
        await until(lambda: is_quiet(committer))
        assert ledger.checkpoint_generation == ledger.generation
        assert left_by_a_crash(directory) == [1]
        await committer.submit(reserve(5))
        assert left_by_a_crash(directory) == ids(ledger) == [1, 5]

    run(ledger, work, slow_flush_s=slow_flush_s)


@pytest.mark.parametrize("journal_bytes", [0, 10**9])
@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_a_checkpoint_that_ends_after_a_reseal_takes_nothing_away(
    ledger: Ledger,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow_flush_s: float,
    journal_bytes: int,
) -> None:
    """The first one is held in its thread; with 0 bytes it starts a new segment, too."""
    writing, go = threading.Event(), threading.Event()
    real = checkpoint.write

    def held(folder: Folder, content: Checkpoint) -> int:
        writing.set()
        assert go.wait(10)
        return real(folder, content)

    async def work(committer: Committer) -> None:
        monkeypatch.setattr("ledger.store.CHECKPOINT_BYTES", journal_bytes)
        monkeypatch.setattr(checkpoint, "write", held)
        ledger._checkpoint_size = 0
        ledger.prepare_segment()
        await committer.submit(reserve(1))
        assert await asyncio.to_thread(writing.wait, 10)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(CommitFailed):
                await committer.submit(reserve(2))
        await committer.reseal()
        await committer.submit(reserve(3))
        assert left_by_a_crash(directory) == [1, 3]
        monkeypatch.setattr(checkpoint, "write", real)
        born = ledger.checkpoint_generation
        go.set()
        await until(lambda: ledger.checkpoint_generation != born)
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        await until(lambda: is_quiet(committer))
        assert left_by_a_crash(directory) == [1, 3]

    run(ledger, work, slow_flush_s=slow_flush_s, idle_s=0.01)


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_a_disk_that_comes_back_is_used_again(
    ledger: Ledger, directory: Path, monkeypatch: pytest.MonkeyPatch, slow_flush_s: float
) -> None:
    async def work(committer: Committer) -> None:
        await committer.submit(reserve(1))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr(os, "fsync", fail)
            for number in range(2, 5):
                with pytest.raises(CommitFailed):
                    await committer.submit(reserve(number))
            with pytest.raises(CommitFailed, match="still refuses"):
                await committer.reseal()
            with pytest.raises(NotFound):
                await committer.submit(releasing(7))  # what writes nothing is answered
            committer._reseal_after_s = 1e12
            patch.setattr(os, "pwrite", fail)
            with pytest.raises(CommitFailed, match="nothing more"):
                await committer.submit(reserve(5))
        committer._reseal_after_s = 0.0
        await committer.submit(reserve(6))
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        await until(lambda: is_quiet(committer))
        assert left_by_a_crash(directory) == ids(ledger) == [1, 6]

    run(ledger, work, slow_flush_s=slow_flush_s)


def test_pauses_grow_while_the_disk_refuses(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def count(name: str, size: int) -> None:
        tries.append(name)
        fail()

    async def work(committer: Committer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            patch.setattr("ledger.journal.make_blank", count)
            pauses = []
            for _ in range(20):
                committer._reseal_after_s = 0.0
                pauses.append(committer._reseal_pause_s)
                with pytest.raises(CommitFailed):
                    await committer.submit(reserve(1))
            assert pauses == sorted(pauses)
            assert pauses[0] == 0.1
            assert pauses[-1] == 10.0
            before = len(tries)
            for _ in range(20):
                with pytest.raises(CommitFailed):
                    await committer.submit(reserve(1))
            assert len(tries) == before
        committer._reseal_after_s = 0.0
        await committer.reseal()
        assert committer._reseal_pause_s == 0.1

    run(ledger, work)


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
def test_who_comes_during_a_reseal_waits_and_the_queue_stays_bounded(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, slow_flush_s: float
) -> None:
    resealing, go = threading.Event(), threading.Event()
    real = Ledger.reseal

    def held(which: Ledger) -> None:
        assert threading.current_thread() is not threading.main_thread()
        resealing.set()
        assert go.wait(10)
        real(which)

    async def work(committer: Committer) -> None:
        monkeypatch.setattr(Ledger, "reseal", held)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            first = asyncio.create_task(committer.submit(reserve(1)))
            assert await asyncio.to_thread(resealing.wait, 10)
        assert not first.done()
        waiting = [
            asyncio.ensure_future(wanted)
            for wanted in (
                committer.submit(reserve(2)),
                committer.reseal(),
                committer.submit(reserve(3)),
            )
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(LedgerBusy, match="3 operations waiting"):
            await committer.submit(reserve(4))
        with pytest.raises(LedgerBusy, match="3 operations waiting"):
            await committer.reseal()
        go.set()
        with pytest.raises(CommitFailed):
            await first
        await asyncio.gather(*waiting)
        assert ids(ledger) == [2, 3]

    run(ledger, work, queue_limit=3, slow_flush_s=slow_flush_s)


def test_a_reseal_waits_for_the_flush_in_flight(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing, go = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        flushing.set()
        assert go.wait(10)
        fail()

    async def work(committer: Committer) -> None:
        before = ledger._journal.position
        await committer.reseal()  # nothing has failed, nothing is done
        assert ledger._journal.position == before
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", slow)
            first = asyncio.create_task(committer.submit(reserve(1)))
            assert await asyncio.to_thread(flushing.wait, 10)
            second = asyncio.create_task(committer.reseal())
            await asyncio.sleep(0.01)
            assert not second.done()
            go.set()
            with pytest.raises(CommitFailed):
                await first
            await second
        await committer.submit(reserve(2))
        assert ids(ledger) == [2]

    run(ledger, work, slow_flush_s=IN_A_THREAD)


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
        with pytest.raises(LedgerBusy, match="3 operations waiting"):
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
    rename = os.rename

    def full(old: str, new: str, **kwargs: int) -> None:
        if new == "ledger.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(old, new, **kwargs)

    async def work(committer: Committer) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", full)
            await committer.submit(reserve(1))
            await until(lambda: committer.checkpoint_error is not None)
            await committer.submit(reserve(2))
        await until(lambda: ledger.checkpoint_generation == ledger.generation)
        assert committer.checkpoint_error is None

    run(ledger, work, idle_s=0.01)
