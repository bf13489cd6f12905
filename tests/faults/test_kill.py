"""SIGKILL at random moments of a busy committer, with flushes in threads and checkpoints."""

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from tempfile import mkdtemp
from typing import NoReturn

import pytest

from ledger import store, transitions
from ledger.__main__ import main
from ledger.clock import Now
from ledger.committer import Committer
from ledger.staging import Operation
from ledger.store import Ledger
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_node,
    small_proposal,
)
from tests.conftest import LONG
from tests.faults import lives

KILLS = 10_000 if LONG else 200
CALLERS = 8


@pytest.fixture
def directory() -> Iterator[str]:
    root = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    yield os.path.join(root, "ledger")
    shutil.rmtree(root)


def beating(number: int, now: Now) -> Operation:
    """Return the operation that writes a beat of the lease *number*."""
    return lambda view: transitions.persist_beats(view, {f"{number:032x}": now.monotonic_ms})


async def call(committer: Committer, clock: ManualClock, first: int, pipe: int) -> None:
    """Reserve and beat without end and release all but each tenth; tell each answer."""
    for number in range(first, first + 100_000):
        os.write(pipe, b"?%d\n" % number)
        await committer.submit(reserving(small_proposal(number, cpu_milli=1), clock()))
        os.write(pipe, b"+%d\n" % number)
        await committer.submit(beating(number, clock.advance(1)))
        if number % 10:
            os.write(pipe, b"?%d\n" % number)
            await committer.submit(releasing(number))
            os.write(pipe, b"-%d\n" % number)


def live(directory: str, start: int, pipe: int, slow_flush_s: float) -> NoReturn:
    """Be a daemon until somebody kills it."""
    clock = ManualClock()
    store.CHECKPOINT_BYTES = 60_000

    async def work() -> None:
        with Ledger.open(directory, clock(), segment_bytes=16_384) as ledger:
            ledger.commit(observing(small_node(10**6, 2**45, slots=10**6)), clock())
            committer = Committer(ledger, clock, idle_s=0.01, slow_flush_s=slow_flush_s)
            firsts = [start + 100_000 * caller for caller in range(CALLERS)]
            await asyncio.gather(*(call(committer, clock, first, pipe) for first in firsts))

    try:
        asyncio.run(work())
    finally:
        os._exit(1)


def killed(directory: str, start: int, chance: random.Random) -> list[str]:
    """Let a daemon live for a moment, kill it, and return what its callers knew."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        live(directory, start, writing, chance.choice((0.0, 1.0)))
    os.close(writing)
    words = os.read(reading, 16)  # it is up
    time.sleep(chance.random() ** 2 / 20)  # a random moment is the point here
    os.kill(child, signal.SIGKILL)
    while chunk := os.read(reading, 65_536):
        words += chunk
    os.close(reading)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, "it ended by itself"
    return words.decode().splitlines()


def test_what_was_answered_outlives_random_kills(directory: str) -> None:
    chance = random.Random(3)
    present: set[int] = set()
    answers = 0
    for kill in range(KILLS):
        unknown: set[int] = set()
        for word in killed(directory, (kill + 1) * 1_000_000, chance):
            number = int(word[1:])
            if word.startswith("?"):
                unknown.add(number)
                continue
            answers += 1
            unknown.discard(number)
            (present.add if word.startswith("+") else present.discard)(number)
        clock = ManualClock()
        with Ledger.open(directory, clock(), segment_bytes=16_384) as ledger:
            there = {int(row.id, 16) for row in ledger.state.reservations()}
            assert there - unknown == present - unknown, f"kill {kill}"
            batch = ledger.stage([releasing(number) for number in there], clock())
            ledger.flush(batch)  # an empty house for the next one
            ledger.publish(batch)
        present.clear()
        assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]
    assert answers > KILLS * CALLERS
    assert main(["check", directory]) == 0
