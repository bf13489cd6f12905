"""Power cuts below ext4 and XFS at each entry of the disk's log: every answer outlives them."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ledger import store
from ledger.__main__ import main
from ledger.committer import Committer
from ledger.errors import AdmissionRefused, LedgerError
from ledger.files import Folder
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.conftest import LONG
from tests.faults import block_log

HOSTS = 10 if LONG else 1
LIVES = 5
POINTS = 52
"""Power cuts in a life."""
OPERATIONS = 12
"""Of each caller in half a life."""
CALLERS = 4
CPU_MILLI = 100
ROOM = 14
"""How many leases the node holds; the callers ask for more."""
KEPT = 4
"""How many of those that are there stay for another half of a life."""
SEGMENT_BYTES = 16_384
JOURNAL_BYTES = 30_000  # so that a checkpoint begins a new segment, and the archive gets one

pytestmark = pytest.mark.host


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    with block_log.private_mounts():
        yield


@dataclass
class Known:
    """What the outside knows: who is there, and of whom it has no answer yet."""

    present: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)

    def after(self, words: list[str]) -> Known:
        """Return what is known after *words*, too.

        `?7` is asked for or being released, `+7` there, `-7` not; `=1,2` all that an opener found.
        """
        known = Known(set(self.present), set(self.unknown))
        for word in words:
            if word[0] == "=":
                known = Known({int(number) for number in word[1:].split(",") if number})
                continue
            number = int(word[1:])
            if word[0] == "?":
                known.unknown.add(number)
                continue
            known.unknown.discard(number)
            (known.present.add if word[0] == "+" else known.present.discard)(number)
        return known


Tell = Callable[[str], None]


async def call(committer: Committer, clock: ManualClock, numbers: range, tell: Tell) -> None:
    """Reserve one after the other, and release most of them; tell each answer."""
    for number in numbers:
        tell(f"?{number}")
        try:
            await committer.submit(reserving(small_proposal(number, CPU_MILLI), clock()))
        except AdmissionRefused:
            tell(f"-{number}")
            continue
        tell(f"+{number}")
        if number % 4:
            await release(committer, number, tell)


async def release(committer: Committer, number: int, tell: Tell) -> None:
    tell(f"?{number}")
    await committer.submit(releasing(number))
    tell(f"-{number}")


async def work(ledger: Ledger, clock: ManualClock, life: int, tell: Tell) -> None:
    """Say what is there and go on with it; checkpoints and new segments are in the middle of it."""
    tell("=" + ",".join(map(str, present(ledger))))
    ledger.commit(observing(small_node(ROOM * CPU_MILLI)), clock())
    committer = Committer(ledger, clock, idle_s=0.01, slow_flush_s=float(life % 2))
    for first in (life * 1000, life * 1000 + 500):
        checkpoint, segment = ledger.checkpoint_generation, ledger._journal.position.segment
        for number in present(ledger)[KEPT:]:
            await release(committer, number, tell)
        firsts = range(first, first + CALLERS * OPERATIONS, OPERATIONS)
        callers = (call(committer, clock, range(n, n + OPERATIONS), tell) for n in firsts)
        await asyncio.gather(*callers)
        assert ledger._journal.position.segment > segment
        while ledger.checkpoint_generation == checkpoint:  # noqa: ASYNC110 - it comes by itself
            await asyncio.sleep(0.001)


def present(ledger: Ledger) -> list[int]:
    return [int(row.id, 16) for row in ledger.state.reservations()]


def clock_of(boot: int) -> ManualClock:
    clock = ManualClock()
    for _ in range(boot):
        clock.reboot()
    return clock


@dataclass(frozen=True)
class Life:
    """What a disk was asked for, and each word that was told with the log's length at that time."""

    entries: list[block_log.Entry]
    words: list[tuple[str, int]]

    def heard(self, count: int) -> list[str]:
        """Return what had been told when the disk had done *count* entries."""
        end = bisect_right([size for _, size in self.words], self.entries[count - 1].end)
        return [word for word, _ in self.words[:end]]


@dataclass
class Host:
    """Hosts with one kind of file system that lose power again and again."""

    kind: str
    folder: str
    spoil: Callable[[], None] = lambda: None
    points: int = 0
    wrong: list[str] = field(default_factory=list)

    def lose_power(self, lives: int, seed: int) -> None:
        """Live, cut the power at many points, look at each, go on from one of them, *lives* times.

        So the recovery, with which the next life begins, is cut as well.
        """
        chance = random.Random(seed)
        image, known = block_log.make_image(self.kind), Known()
        for number in range(1, lives + 1):
            with closing(block_log.Cutter(image, self.kind)) as cutter:
                life = self._live(image, number)
                cutter.entries = life.entries
                kept = chance.randrange(POINTS)
                counts = sorted(chance.choices(range(1, len(life.entries) + 1), k=POINTS))
                for point, count in enumerate(counts):
                    left = cutter.cut(count, chance)
                    told = known.after(life.heard(count))
                    if point == kept:
                        following = block_log.copy(left), told
                    self._look(left, number, told, f"seed {seed}, life {number}, entry {count}")
                    os.close(left)
                cutter.require_whole(image)
            os.close(image)
            image, known = following
        os.close(image)

    def _live(self, image: int, number: int) -> Life:
        """Let a daemon work on *image* and die."""
        log = os.memfd_create("log")
        try:
            with block_log.recorded(image, log, self.kind, self.folder):
                words = self._child(log, number)
            return Life(block_log.read(log), words)
        finally:
            os.close(log)

    def _child(self, log: int, number: int) -> list[tuple[str, int]]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(reading)
                self._work(number, lambda word: _write(writing, word, os.fstat(log).st_size))
                os._exit(0)
            except BaseException:  # noqa: BLE001 - it is told to whoever reads the test's output
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(1)
        os.close(writing)
        with open(reading, encoding="ascii") as pipe:
            lines = [line.split() for line in pipe]
        _, status = os.waitpid(child, 0)
        assert status == 0, "it did not come to its end"
        return [(word, int(size)) for word, size in lines]

    def _work(self, number: int, tell: Tell) -> None:
        self.spoil()
        store.CHECKPOINT_BYTES = JOURNAL_BYTES
        clock = clock_of(2 * number)
        ledger = Ledger.open(f"{self.folder}/ledger", clock(), segment_bytes=SEGMENT_BYTES)
        asyncio.run(work(ledger, clock, number, tell))

    def _look(self, image: int, number: int, told: Known, where: str) -> None:
        self.points += 1
        try:
            with block_log.mounted(image, self.kind, self.folder):
                verify(f"{self.folder}/ledger", clock_of(2 * number + 1), told)
        except (AssertionError, LedgerError, OSError) as err:
            self.wrong.append(f"{where}: {err!r}"[:400])


def _write(fd: int, word: str, size: int) -> None:
    os.write(fd, f"{word} {size}\n".encode())


def verify(directory: str, clock: ManualClock, told: Known) -> None:
    """Open what was left: all that was answered is there, nothing else, and it goes on."""
    with Ledger.open(directory, clock(), segment_bytes=SEGMENT_BYTES) as ledger:
        rows, there = ledger.state.reservations(), set(present(ledger))
        assert there - told.unknown == told.present - told.unknown
        assert sum(row.requests.cpu_milli for row in rows) <= ROOM * CPU_MILLI
        ledger.commit(observing(small_node(2 * ROOM * CPU_MILLI)), clock())
        ledger.commit(reserving(small_proposal(999_999, CPU_MILLI), clock()), clock())
    assert main(["check", directory]) == 0
    assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]


@pytest.mark.parametrize("kind", block_log.FILE_SYSTEMS)
def test_every_answer_outlives_a_power_cut(kind: str, tmp_path: Path) -> None:
    host = Host(kind, str(tmp_path))
    for seed in range(HOSTS):
        host.lose_power(LIVES, random.randrange(10**9) if LONG else seed)
    assert host.wrong == []
    assert host.points == HOSTS * LIVES * POINTS


def never_flush() -> None:
    os.fsync = os.fdatasync = lambda fd: None


def never_flush_folders() -> None:
    pytest.MonkeyPatch().setattr(Folder, "sync", lambda folder: None)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (never_flush, "ext4"),
        (never_flush, "xfs"),
        # XFS makes a new name durable with the first flush of the file that has it.
        (never_flush_folders, "ext4"),
    ],
)
def test_control_a_writer_that_does_not_flush_is_caught(
    spoil: Callable[[], None], kind: str, tmp_path: Path
) -> None:
    host = Host(kind, str(tmp_path), spoil)
    host.lose_power(1, seed=1)
    assert host.wrong


def test_control_a_log_that_lost_an_entry_is_noticed(tmp_path: Path) -> None:
    image = block_log.make_image("ext4")
    host = Host("ext4", str(tmp_path))
    with closing(block_log.Cutter(image, "ext4")) as cutter:
        life = host._live(image, 1)
        last = max(at for at, entry in enumerate(life.entries) if entry.data)
        cutter.entries = life.entries[:last] + life.entries[last + 1 :]
        with pytest.raises(AssertionError, match="not all"):
            cutter.require_whole(image)
    os.close(image)
