"""A disk that fails at any step and comes back: what was answered holds, both ways, throughout."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from tempfile import mkdtemp
from typing import Any

import pytest

from ledger import reader
from ledger.committer import Committer
from ledger.errors import CommitFailed
from ledger.store import Ledger, Operation
from ledger.testing import ManualClock, releasing, reserving, small_proposal
from tests.faults import lives, steps
from tests.faults.lives import Told

LEASES = 14
STEPS = 200  # more than a life has
IN_A_THREAD = 0.0
ON_THE_LOOP = 1e9
JOURNAL_BYTES = 6000  # so that checkpoints, segments and the archive are in the middle of it


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Yield a maker of paths for ledgers that do not exist yet."""
    monkeypatch.setattr("ledger.store.CHECKPOINT_BYTES", JOURNAL_BYTES)
    monkeypatch.setattr("ledger.committer.RESEAL_PAUSE_S", 0.0)
    root = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    numbers = iter(range(100_000))
    yield lambda: os.path.join(root, f"ledger-{next(numbers)}")
    shutil.rmtree(root)


def failing(first: int, count: int, moment: str, seen: list[str]) -> steps.Hook:
    """Return a hook that fails *count* steps from *first* on, before or after they are done."""

    def fail(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        seen.append(name)
        if not first <= len(seen) - 1 < first + count:
            return call(*args, **kwargs)
        if moment == steps.AFTER:
            result = call(*args, **kwargs)
            if name == "open":
                os.close(result)
        raise OSError(errno.EIO, "planted")

    return fail


async def live(ledger: Ledger, clock: ManualClock, told: Told, slow_flush_s: float) -> int:
    """Reserve and release one after another; return how often the answer was "not done".

    What was answered so is gone at once, unless the reseal failed, too.
    """
    committer = Committer(ledger, clock, slow_flush_s=slow_flush_s, idle_s=0.001)
    refused, void = 0, ""

    async def ask(operation: Operation, word: str) -> None:
        nonlocal refused, void
        try:
            await committer.submit(operation)
        except CommitFailed:
            refused += 1
            void = (void or f"begin:{word}") if ledger.failed else ""
        else:
            void = ""
            told(word)
        if not ledger.failed:
            read = reader.read(ledger._folder.path).state
            assert {int(row.id, 16) for row in read.reservations()} == told.present, told.words

    for number in range(1, LEASES):
        await ask(reserving(small_proposal(number), clock()), f"+{number}")
        if number % 3 == 0 and number in told.present:
            await ask(releasing(number), f"-{number}")
    await committer.close()
    if void:
        told(void)
    return refused


def play(
    directory: str, slow_flush_s: float, first: int, count: int, moment: str
) -> tuple[int, int]:
    """Let a ledger live on a disk that fails *count* steps, die, and be looked at.

    Return how many steps it took, and how often an answer was "not done".
    """
    clock, told, seen = ManualClock(), Told(), list[str]()
    ledger = lives.open_ledger(directory, clock)
    lives.observe(ledger, clock)
    with steps.hooked(failing(first, count, moment, seen)):
        refused = asyncio.run(live(ledger, clock, told, slow_flush_s))
    ledger.close(checkpoint=False)
    lives.verify(directory, told)
    return len(seen), refused


@pytest.mark.parametrize("slow_flush_s", [IN_A_THREAD, ON_THE_LOOP])
@pytest.mark.parametrize("moment", [steps.BEFORE, steps.AFTER])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_disk_fails_at_any_step_and_comes_back(
    fresh: Callable[[], str], count: int, moment: str, slow_flush_s: float
) -> None:
    total = 0
    for first in range(STEPS):
        try:
            steps_taken, refused = play(fresh(), slow_flush_s, first, count, moment)
        except BaseException as err:
            err.add_note(f"{count} steps failed from {first} on")
            raise
        total += refused
        if steps_taken <= first:
            break
    assert total >= 5


def test_control_a_writer_that_goes_on_in_the_same_segment_is_caught(
    fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(ledger: Ledger) -> None:
        ledger._journal.failed = None

    monkeypatch.setattr(Ledger, "reseal", forget)
    with pytest.raises(AssertionError):
        play(fresh(), ON_THE_LOOP, 0, 1, steps.AFTER)
