"""The ledger's tools beside a writer that commits, rotates and archives: no false word."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import check, decisions, head
from ledger.admission import AdmissionPolicy
from ledger.log import Log, Wanted
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

LOOKS = 100 if LONG else 4


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield a ledger that a process works on all the time."""
    made = tmp_path / "ledger"
    clock = ManualClock()
    Ledger.open(made, clock(), segment_bytes=8192).close()
    writer = os.fork()
    if writer == 0:
        try:
            work(made, clock)
        finally:
            os._exit(1)
    try:
        deadline_s = time.monotonic() + 30
        while len(list(made.glob("archive/*"))) < 3 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        yield made
        assert os.waitpid(writer, os.WNOHANG) == (0, 0), "the writer ended by itself"
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def work(path: Path, clock: ManualClock) -> None:
    ledger = Ledger.open(path, clock(), segment_bytes=8192)
    ledger.commit(observing(small_node()), clock())
    number = 0
    while True:
        number += 1
        ledger.commit(reserving(small_proposal(number), clock()), clock())
        if number > 5:
            ledger.commit(releasing(number - 5), clock())
        if number % 7 == 0:
            ledger.checkpoint(rotate=number % 2 == 0)
        time.sleep(0.001)


def test_nothing_is_found_that_is_not_there(path: Path) -> None:
    log, told = Log(path, Wanted()), []
    exported = head.of(path)
    for _ in range(LOOKS):
        first = {(each.code, each.id) for each in check.examine(path).findings}
        again = {(each.code, each.id) for each in check.examine(path).findings}
        assert first & again == set()
        outcome = decisions.replay(path, AdmissionPolicy())
        assert (outcome.difference, outcome.capped) == (None, [])
        assert head.verify(path, exported).verdict == head.VERIFIED
        told += [each.generation for each in log.new()]
    assert log.damage == []
    assert told == list(range(1, len(told) + 1))
    assert outcome.state.generation > exported.generation
