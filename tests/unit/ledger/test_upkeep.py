"""What is done beside commits gets well by itself: nobody may be there to commit any more."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledger.committer import Committer
from ledger.errors import CommitFailed
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, reserving, small_node, small_proposal

CLOCK = ManualClock()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger", CLOCK(), segment_bytes=16_384) as ledger:
        ledger.commit(observing(small_node(cpu_milli=10**6, memory_bytes=2**42)), CLOCK())
        yield ledger


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nobody would set an event
            await asyncio.sleep(0.002)


def test_an_idle_ledger_gets_well_by_itself(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody commits any more, so that only time brings another look at the disk."""

    def refuse(*_: object, **__: object) -> None:
        raise CommitFailed("the disk refuses")

    async def scenario() -> None:
        committer = Committer(ledger, CLOCK, idle_s=0.01)
        with monkeypatch.context() as broken:
            broken.setattr(Ledger, "prepare_segment", refuse)
            broken.setattr(Ledger, "wants_room", property(lambda _: True))
            await committer.submit(reserving(small_proposal(1), CLOCK()))
            await until(lambda: committer._upkeep.room_error is not None)
            await until(
                lambda: committer._upkeep._timer is None and committer._upkeep._work is None
            )
        await until(lambda: committer.upkeep_error is None)
        with monkeypatch.context() as broken:
            broken.setattr(Ledger, "begin_checkpoint", refuse)
            committer._upkeep._changed_at_s = 0.0
            committer._upkeep._idle()
            assert committer.upkeep_error is not None
        await until(lambda: committer.upkeep_error is None)
        await committer.close()

    asyncio.run(scenario())
