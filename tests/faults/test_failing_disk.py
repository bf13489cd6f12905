"""A disk that fails at any step and comes back: what was answered holds, both ways, throughout."""

import asyncio
import contextlib
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
from ledger.staging import Operation
from ledger.store import Ledger
from ledger.testing import ManualClock, releasing, reserving, small_proposal
from tests.conftest import LONG
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


def failing(
    first: int, count: int, moment: str, seen: list[str], number: int = errno.EIO
) -> steps.Hook:
    """Return a hook that fails *count* steps from *first* on, before or after they are done."""

    def fail(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        seen.append(name)
        if not first <= len(seen) - 1 < first + count:
            return call(*args, **kwargs)
        if moment == steps.AFTER:
            result = call(*args, **kwargs)
            if name == "open":
                os.close(result)
        raise OSError(number, "planted")

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
    await come_back(committer, ledger, clock, told)
    await committer.close()
    return refused


async def come_back(committer: Committer, ledger: Ledger, clock: ManualClock, told: Told) -> None:
    """See that nobody has to start anything anew: as in a daemon's loop, something is asked for."""
    numbers = iter(range(100, 10_000))
    async with asyncio.timeout(20):
        while True:
            number = next(numbers)
            with contextlib.suppress(CommitFailed):
                await committer.submit(reserving(small_proposal(number), clock()))
                told(f"+{number}")
                await committer.submit(releasing(number))
                told(f"-{number}")
            if not (ledger.failed or ledger.is_short or committer.checkpoint_error):
                return
            await asyncio.sleep(0.002)


def play(
    directory: str,
    slow_flush_s: float,
    first: int,
    count: int,
    moment: str,
    number: int = errno.EIO,
) -> tuple[int, int]:
    """Let a ledger live on a disk that fails *count* steps, die, and be looked at.

    Return how many steps it took, and how often an answer was "not done".
    """
    clock, told, seen = ManualClock(), Told(), list[str]()
    ledger = lives.open_ledger(directory, clock)
    lives.observe(ledger, clock)
    with steps.hooked(failing(first, count, moment, seen, number)):
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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("count", [1, 9])
def test_a_disk_that_is_full_or_read_only_for_a_while(
    fresh: Callable[[], str], count: int, number: int
) -> None:
    total = 0
    for first in range(0, STEPS, 1 if LONG else 3):
        try:
            steps_taken, refused = play(fresh(), ON_THE_LOOP, first, count, steps.BEFORE, number)
        except BaseException as err:
            err.add_note(f"{count} steps failed with {os.strerror(number)} from {first} on")
            raise
        total += refused
        if steps_taken <= first:
            break
    assert total >= 2


def test_control_a_writer_that_goes_on_in_the_same_segment_is_caught(
    fresh: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(ledger: Ledger) -> None:
        ledger._journal.failed = None

    monkeypatch.setattr(Ledger, "reseal", forget)
    with pytest.raises(AssertionError):
        play(fresh(), ON_THE_LOOP, 0, 1, steps.AFTER)
