"""Sixteen writers, one lock: its file vanishes, holders stop and die, and no commit is lost."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import NoReturn

import pytest

from ledger import lock
from ledger.__main__ import main
from ledger.errors import LedgerBusy
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal
from tests.conftest import LONG
from tests.faults import lives

WRITERS = 16
TURNS, COMMITS = (125, 16) if LONG else (8, 4)
KEPT = 16
"""Reservations that a writer keeps; the others it releases at once."""
KILLS = 4
"""Writers that die in the middle, half of them with a commit that nobody is told of."""
STOPPED_S = 0.02
LONG_ENOUGH_S = 200.0


@pytest.fixture
def path() -> Iterator[Path]:
    root = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    yield Path(root, "ledger")
    shutil.rmtree(root)


def open_ledger(path: Path, clock: ManualClock, timeout_s: float) -> Ledger:
    return Ledger.open(path, clock(), segment_bytes=16_384, lock_timeout_s=timeout_s)


def work(path: Path, writer: int, telling: int) -> NoReturn:
    """Open the ledger again and again, and commit; tell what is asked for and what is answered."""
    clock = ManualClock()
    last = random.Random(writer).randrange(1, TURNS * COMMITS) if writer < KILLS else 0
    code = 1
    number = 0
    try:
        for _ in range(TURNS):
            with open_ledger(path, clock, LONG_ENOUGH_S) as ledger:
                for _ in range(COMMITS):
                    number += 1
                    word = b"%d\n" % (writer * 1_000_000 + number)
                    os.write(telling, b"?" + word)
                    if number == last and writer % 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                    proposal = small_proposal(int(word), cpu_milli=1)
                    ledger.commit(reserving(proposal, clock()), clock())
                    if number == last:
                        os.kill(os.getpid(), signal.SIGKILL)
                    os.write(telling, b"+" + word)
                    if number % (TURNS * COMMITS // KEPT):
                        os.write(telling, b"?" + word)
                        ledger.commit(releasing(int(word)), clock())
                        os.write(telling, b"-" + word)
        code = 0
    except Exception:  # noqa: BLE001 - it is shown, and the exit code tells
        traceback.print_exc()
    finally:
        os._exit(code)


def contend(path: Path) -> tuple[list[str], list[int]]:
    """Let writers contend for the lock while its file is removed: (what they told, their ends)."""
    clock = ManualClock()
    with open_ledger(path, clock, 0) as ledger:
        ledger.commit(observing(small_node(10**6, 2**50, slots=10**6)), clock())
    told, telling = os.pipe()
    writers = []
    for number in range(WRITERS):
        writers.append(os.fork())
        if writers[-1] == 0:
            work(path, number, telling)
    os.close(telling)
    words = bytearray()
    chance = random.Random(5)
    while True:
        (path / lock.LOCK).unlink(missing_ok=True)
        if select.select([told], [], [], STOPPED_S)[0]:
            chunk = os.read(told, 65_536)
            if not chunk:
                break
            words += chunk
        stopped = chance.choice(writers)  # one that is over is there until it is waited for
        os.kill(stopped, signal.SIGSTOP)
        select.select([told], [], [], STOPPED_S)
        os.kill(stopped, signal.SIGCONT)
    os.close(told)
    ends = [os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) for writer in writers]
    return words.decode().splitlines(), ends


def test_nothing_is_lost_among_sixteen_writers(path: Path) -> None:
    words, ends = contend(path)
    assert ends == [-signal.SIGKILL] * KILLS + [0] * (WRITERS - KILLS)
    last = {int(word[1:]): word[0] for word in words}
    kept = {number for number, sign in last.items() if sign == "+"}
    unknown = {number for number, sign in last.items() if sign == "?"}
    assert len(last) >= (WRITERS - KILLS) * TURNS * COMMITS
    assert len(kept) >= (WRITERS - KILLS) * KEPT
    assert len(unknown) == KILLS
    with open_ledger(path, ManualClock(), 0) as ledger:
        there = {int(row.id, 16) for row in ledger.state.reservations()}
    assert there - unknown == kept
    assert len(there & unknown) == KILLS // 2
    assert main(["check", str(path)]) == 0


def test_a_lock_file_that_is_removed_lets_nobody_in(path: Path) -> None:
    clock = ManualClock()
    with open_ledger(path, clock, 0) as ledger:
        for _ in range(2):
            (path / lock.LOCK).unlink()
            with pytest.raises(LedgerBusy, match=f"axernd \\(pid {os.getpid()},"):
                open_ledger(path, clock, 0.1)
        ledger.commit(observing(small_node()), clock())
    with open_ledger(path, clock, 0) as ledger:
        assert ledger.state.node() is not None


def test_control_with_the_file_alone_writers_spoil_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_lock_folder", lambda _: True)
    _, ends = contend(path)
    assert 1 in ends
