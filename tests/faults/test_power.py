"""Power cuts on a disk that keeps only what was flushed: every answer outlives all of them."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from tempfile import mkdtemp

import pytest

from ledger.errors import LedgerError
from tests.conftest import LONG
from tests.faults import disk, lives, steps
from tests.faults.lives import Told

TRIES = 25 if LONG else 2


@pytest.fixture
def root() -> Iterator[str]:
    path = mkdtemp(prefix="axern-", dir=lives.MEMORY)
    yield path
    shutil.rmtree(path)


def recorded(root: str, life: Callable[[str, lives.Tell], None]) -> disk.Recorder:
    directory = os.path.join(root, "ledger")
    recorder = disk.Recorder(directory)
    with steps.hooked(recorder.hook()):
        life(directory, recorder.tell)
    return recorder


def cuts(root: str, recorder: disk.Recorder, events: list[disk.Event]) -> tuple[int, list[str]]:
    """Cut the power after each event: (how often, what was wrong)."""
    state, told, wrong, count = disk.Disk(), Told(), [], 0
    chance = random.Random(7)
    for number, event in enumerate(events):
        if event.kind == "told":
            told(event.name)
        state.take(event)
        for _ in range(TRIES):
            target = os.path.join(root, f"after-{count}")
            count += 1
            os.mkdir(target)
            disk.write_out(state.left(chance), recorder.root, target)
            try:
                lives.verify(target, Told([*told.words]))
            except (LedgerError, AssertionError) as err:
                wrong.append(f"cut after event {number} ({event.kind}): {err!r}"[:400])
            shutil.rmtree(target)
    return count, wrong


def test_every_answer_outlives_a_power_cut(root: str) -> None:
    recorder = recorded(root, lives.whole_life)
    count, wrong = cuts(root, recorder, recorder.events)
    assert wrong == []
    assert count >= 200


@pytest.mark.parametrize("missing", ["flush", "flush-folder"])
def test_control_a_writer_that_does_not_flush_is_caught(root: str, missing: str) -> None:
    recorder = recorded(root, lives.whole_life)
    events = [event for event in recorder.events if event.kind != missing]
    assert len(events) < len(recorder.events)
    _, wrong = cuts(root, recorder, events)
    assert wrong
