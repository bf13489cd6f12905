"""Who leaves an operation and a function is told by it: later, once, whatever the others do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger.committer import Committer
from ledger.errors import NotFound
from ledger.staging import Operation
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal

CLOCK = ManualClock()


def reserve(number: int) -> Operation:
    return reserving(small_proposal(number), CLOCK())


@pytest.mark.parametrize("slow_flush_s", [0.0, 1e9], ids=["in a thread", "on the loop"])
def test_who_is_told_is_told_later_and_its_bug_is_its_own(
    tmp_path: Path, slow_flush_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(ledger: Ledger) -> None:
        committer = Committer(ledger, CLOCK, slow_flush_s=slow_flush_s)
        await committer.submit(reserve(0))
        heard: list[object] = []

        def fail(_: object) -> None:
            raise ZeroDivisionError

        def again(outcome: object) -> None:
            heard.append(outcome)
            committer.enqueue(releasing(1), heard.append)

        for operation, told in (
            (reserve(1), again),
            (reserve(2), fail),
            (releasing(9), heard.append),
        ):
            committer.enqueue(operation, told)
            assert not heard
        third = await committer.submit(reserve(3))
        assert third == ledger.state.reservation(f"{3:032x}")
        await committer.close()
        assert (len(heard), type(heard[1])) == (3, NotFound)
        assert ledger.state.entry_count() == 3

    with Ledger.open(tmp_path / "ledger", CLOCK()) as ledger:
        ledger.commit(observing(small_node(cpu_milli=10**6, memory_bytes=2**42)), CLOCK())
        asyncio.run(work(ledger))
    assert "could not take its outcome" in caplog.text
