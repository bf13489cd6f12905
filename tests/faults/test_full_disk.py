"""A disk without room: what gives resources back is still done, and all the rest when there is."""

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ledger import reader
from ledger.__main__ import main
from ledger.blank import BALLAST, Ballast
from ledger.committer import Committer
from ledger.errors import CommitFailed
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.faults import lives
from tests.faults.lives import SEGMENT_BYTES

LEASES = 24
DISK_BYTES = 2 * 1024**2

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small file system, so that it is really full and says so itself."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(tmp_path)], check=True
    )
    yield tmp_path
    try:
        subprocess.run(["umount", str(tmp_path)], check=True)
    except subprocess.CalledProcessError:  # a test that failed has files open: nobody's rubbish
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
        raise


def fill(disk: Path) -> None:
    """Take all the room that is left."""
    with open(disk / "filler", "ab", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def begin(disk: Path, clock: ManualClock) -> Ledger:
    ledger = Ledger.open(disk / "ledger", clock(), segment_bytes=SEGMENT_BYTES, node_id="node-a")
    ledger.commit(observing(small_node(10**6, 2**45, slots=10**6)), clock())
    return ledger


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.002)


async def reserve(committer: Committer, clock: ManualClock, number: int) -> None:
    await committer.submit(reserving(small_proposal(number), clock()))


async def fill_up(disk: Path, committer: Committer, ledger: Ledger, clock: ManualClock) -> int:
    """Reserve, take the room away, reserve until it is refused; return how many there are."""
    for number in range(LEASES):
        await reserve(committer, clock, number)
    await until(lambda: (disk / "ledger" / BALLAST).exists() and ledger.has_spare)
    fill(disk)
    granted = LEASES
    with suppress(CommitFailed):
        while granted < 10 * LEASES:
            await reserve(committer, clock, granted)
            granted += 1
    assert ledger.is_short
    assert not ledger.failed
    return granted


def test_releases_work_and_the_rest_comes_back_by_itself(disk: Path) -> None:
    clock = ManualClock()

    async def work() -> None:
        committer = Committer(ledger, clock, idle_s=0.01)
        granted = await fill_up(disk, committer, ledger, clock)
        with pytest.raises(CommitFailed, match="only what gives resources back is done") as told:
            await reserve(committer, clock, granted)
        assert told.value.retry_after_s == 10
        for number in range(granted):
            await committer.submit(releasing(number))
        assert reader.read(disk / "ledger").state.entry_count() == 0
        assert not (disk / "ledger" / BALLAST).exists(), "it took more than a segment"
        os.unlink(disk / "filler")
        async with asyncio.timeout(20):
            while ledger.is_short:
                with suppress(CommitFailed):
                    await reserve(committer, clock, 5000)
                await asyncio.sleep(0.01)
        await reserve(committer, clock, 5001)
        assert (disk / "ledger" / BALLAST).stat().st_size == 4 * SEGMENT_BYTES
        await committer.close()

    with begin(disk, clock) as ledger:
        asyncio.run(work())
    assert main(["check", str(disk / "ledger")]) == 0


@pytest.mark.parametrize("torn", [False, True])
def test_one_that_dies_on_a_full_disk_is_opened_on_it_and_gives_back(
    disk: Path, *, torn: bool
) -> None:
    clock = ManualClock()

    async def work() -> int:
        committer = Committer(ledger, clock, idle_s=1000.0)
        granted = await fill_up(disk, committer, ledger, clock)
        await committer.close()
        return granted

    ledger = begin(disk, clock)
    granted = asyncio.run(work())
    segment, offset = ledger._journal.position.segment, ledger._journal.position.offset
    ledger.close(checkpoint=False)
    if torn:
        with open(disk / "ledger" / segment, "r+b") as file:
            file.seek(offset)
            file.write(b'{"generation":')
    fill(disk)
    again = Ledger.open(disk / "ledger", clock(), segment_bytes=SEGMENT_BYTES)
    assert again.state.entry_count() == granted
    for number in range(granted):
        again.commit(releasing(number), clock())
    with pytest.raises(CommitFailed, match="no checkpoint"):
        again.close()
    os.unlink(disk / "filler")
    with lives.open_ledger(str(disk / "ledger"), clock) as last:
        assert last.state.entry_count() == 0
    assert main(["check", str(disk / "ledger")]) == 0


def test_control_without_the_ballast_nothing_can_be_given_back(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(Ballast, "take", lambda *_: None)

    async def work() -> None:
        committer = Committer(ledger, clock, idle_s=0.01)
        granted = await fill_up(disk, committer, ledger, clock)
        wanted = [committer.submit(releasing(number)) for number in range(granted)]
        outcomes = [await asyncio.gather(one, return_exceptions=True) for one in wanted]
        assert any(isinstance(outcome[0], CommitFailed) for outcome in outcomes)
        await committer.close()

    ledger = begin(disk, clock)
    asyncio.run(work())
    ledger.close(checkpoint=False)


def test_a_ballast_that_is_not_blank_is_thrown_away(disk: Path) -> None:
    clock = ManualClock()
    with begin(disk, clock) as ledger:
        ledger.prepare_segment()
        folder = ledger._folder
        with open(disk / "ledger" / BALLAST, "r+b") as file:
            file.write(b"x")
        assert Ballast(folder, SEGMENT_BYTES).take(0) is None
        assert not folder.exists(BALLAST)
        again = Ballast(folder, SEGMENT_BYTES)
        again.lay()
        assert again.take(5 * SEGMENT_BYTES) is None, "too small for the line"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_the_journal_may_hold_while_there_is_no_room(
    disk: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each refused operation leaves no trace, each one that is done is durable."""
    clock = ManualClock()

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with begin(disk, clock) as ledger:
        ledger.commit(reserving(small_proposal(1, ttl_ms=1000), clock()), clock())
        with monkeypatch.context() as patch:
            patch.setattr("ledger.journal.make_blank", full)
            with pytest.raises(CommitFailed):
                ledger.prepare_segment()
            before = ledger.generation
            with pytest.raises(CommitFailed, match=os.strerror(number)):
                ledger.commit(reserving(small_proposal(2), clock()), clock())
            assert ledger.generation == before
            ledger.commit(reserving(small_proposal(1, ttl_ms=1000), clock()), clock())  # a retry
            ledger.commit(observing(small_node(3_999)), clock())
            ledger.commit(releasing(1), clock())
            assert ledger.generation == before + 2
        ledger.commit(reserving(small_proposal(2), clock()), clock())
