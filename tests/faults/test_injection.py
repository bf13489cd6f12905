"""Each system call on the ledger's files fails or is the last one: what was answered stays.

An injection by strace, so that the kernel says no and not a stand-in for it. The cases are one for
each call and fault; the CI form takes each so many of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest

from axern.cli.dispatch import answer
from axern.runtime import ledger_repair
from axern.runtime.offline import now
from ledger.__main__ import main
from ledger.clock import Now
from tests.conftest import LONG
from tests.faults import enduring, injection, lives
from tests.faults.injection import FAULTS, Call, Fault, Traced, traced
from tests.faults.lives import Tell
from tests.unit.ledger.test_check import flip, live

EVERY_OF_A_LIFE = 1 if LONG else 31
EVERY_OF_A_REPAIR = 1 if LONG else 97
"""Each so manieth case; has no factor in common with the number of faults, so that all occur."""
DAMAGED = Path(__file__).parents[1] / "unit" / "ledger" / "golden" / "schema-3"
NAMES = frozenset("openat read newfstatat getdents64 pwrite64 fsync fchmod close flock".split())
Play = Callable[[Path, Fault | None], Traced]


@pytest.fixture
def root() -> Iterator[Path]:
    path = Path(mkdtemp(prefix="axern-", dir=lives.MEMORY))
    yield path
    shutil.rmtree(path)


def struck_everywhere(
    root: Path, play: Play, verify: Callable[[Path, Traced, str], None], every: int
) -> tuple[int, list[str]]:
    """Let a fault strike *every*th call of *play* in turn: (how many cases, what was wrong).

    That are the calls on what *play* does below the folder `state` of the place that it is given.
    """
    place = root / "case"
    below = str(place / "state")
    place.mkdir()
    unharmed = play(place, None)
    assert unharmed.status == 0, unharmed.printed
    calls = list(unharmed.calls(below))
    assert {call.name for call, _ in calls} >= NAMES
    faults = [Fault(call, kind) for call, _ in calls for kind in FAULTS][::every]
    wrong = []
    for fault in faults:
        shutil.rmtree(place)
        place.mkdir()
        left = play(place, fault)
        try:
            left.require(fault, below)
            verify(place, left, fault.kind)
        except Exception as err:  # noqa: BLE001 - all that is wrong is shown at once
            wrong.append(f"{fault}: {err!r}"[:1000])
    return len(faults), wrong


def enduring_play(root: Path) -> tuple[enduring.States, Play]:
    """Return the states of a life, and how to play it."""
    (root / "reference").mkdir()
    path = root / "reference" / "ledger"
    states = enduring.reference(path)
    enduring.verify(path, [f"done {len(states) - 2}"], states)  # what it imports is loaded now

    def play(place: Path, fault: Fault | None) -> Traced:
        (place / "state").mkdir()
        life = enduring.Life(place / "state" / "ledger", states)
        return traced(lambda tell: life.play(0, tell), root / "trace", fault)

    return states, play


def test_a_life_with_one_fault_anywhere(root: Path) -> None:
    states, play = enduring_play(root)
    assert len(set(states)) >= 18

    def verify(place: Path, left: Traced, _: str) -> None:
        enduring.verify(place / "state" / "ledger", left.words, states)

    count, wrong = struck_everywhere(root, play, verify, EVERY_OF_A_LIFE)
    assert wrong == []
    assert count >= 480 * len(FAULTS) // EVERY_OF_A_LIFE


def test_control_a_writer_that_answers_first_is_caught(root: Path) -> None:
    states, play = enduring_play(root)
    place = root / "case"
    path = place / "state" / "ledger"
    place.mkdir()
    lines = [
        call
        for call, line in play(place, None).calls(str(path))
        if call.name == "pwrite64" and f"{path}/journal-0" in line
    ]

    def boast(tell: Tell) -> None:
        enduring.Life(path).play(0, lambda word: tell(word.replace("begin", "done")))

    for line in lines[:3]:
        shutil.rmtree(place)
        path.parent.mkdir(parents=True)
        fault = Fault(line, injection.KILL)
        left = traced(boast, root / "trace", fault)
        left.require(fault, str(path))
        with pytest.raises(AssertionError, match="none of the states"):
            enduring.verify(path, left.words, states)


@pytest.mark.parametrize("kind", [injection.KILL, "error=EIO"])
def test_control_a_fault_that_strikes_nothing_of_the_ledger_is_caught(
    root: Path, kind: str
) -> None:
    _, play = enduring_play(root)
    place = root / "case"
    place.mkdir()
    never = Fault(Call("fdatasync", 10_000), kind)
    with pytest.raises(AssertionError, match="not reached"):
        play(place, never).require(never, str(place))
    other = Fault(Call("openat", 1), kind)

    def elsewhere(_: Tell) -> None:
        with suppress(OSError), open(root / "other", "wb"):
            pass

    with pytest.raises(AssertionError, match="not reached"):
        traced(elsewhere, root / "trace", other).require(other, str(place))


def repairing(root: Path) -> Play:
    """Return how to let `axern ledger repair --apply` mend a damaged ledger."""

    def play(place: Path, fault: Fault | None) -> Traced:
        words = prepare(place)
        return traced(lambda tell: tell(f"exit {answer(words)}"), root / "trace", fault)

    return play


def prepare(place: Path) -> list[str]:
    """Put a damaged ledger to *place*, and return the words that repair it."""
    (place / "state").mkdir()
    path = shutil.copytree(DAMAGED, place / "state" / "ledger")
    flip(live(path), b'"retire"')
    text = f'state_dir = "{place}/state"\nrun_dir = "{place}/run"\n'
    (place / "axern.toml").write_text(text, encoding="utf-8")
    return words_for(place)


def words_for(place: Path) -> list[str]:
    """Return the words behind `axern` that repair the ledger at *place*."""
    return ["--config", f"{place}/axern.toml", "ledger", "repair", "--apply", "--reason", "x"]


def files_of(path: Path) -> dict[str, bytes]:
    """Return what is in the files below *path*, but for who holds it."""
    files = (each for each in path.rglob("*") if each.is_file())
    found = {str(each.relative_to(path)): each.read_bytes() for each in files}
    return {name: data for name, data in found.items() if not name.startswith("ledger.holder")}


def a_second_later() -> Now:
    """Read the clocks; a copy has the second in its name."""
    return replace(now(), wall_ms=now().wall_ms + 1000)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may repair")
def test_a_repair_with_one_fault_anywhere(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "reference").mkdir()
    words = prepare(root / "reference")
    before = files_of(root / "reference" / "state" / "ledger")
    assert answer(words) == 0
    repaired = enduring.state_of(root / "reference" / "state" / "ledger")
    play = repairing(root)

    def verify(place: Path, left: Traced, kind: str) -> None:
        state, path = place / "state", place / "state" / "ledger"
        code = left.words[-1] if left.words else "killed"
        is_damaged = files_of(path).items() >= before.items()
        assert is_damaged or enduring.state_of(path) == repaired, "neither of both"
        if code != "killed":
            told = code == "exit 0" or f"{path} is repaired, but" in left.printed
            assert told is not is_damaged, left.printed
        assert "unexpected" not in left.printed, left.printed
        if kind != injection.KILL and is_damaged:
            copies = [each for each in state.iterdir() if each != path]
            assert {enduring.state_of(each) for each in copies} <= {repaired}, "a part of a copy"
            assert bool(copies) is ("the copy is whole" in left.printed)
        with monkeypatch.context() as patch:
            patch.setattr(ledger_repair, "now", a_second_later)
            assert answer(words_for(place)) == 0
        assert enduring.state_of(path) == repaired
        assert any(files_of(each).items() >= before.items() for each in state.iterdir())
        assert main(["check", str(path)]) == 0

    count, wrong = struck_everywhere(root, play, verify, EVERY_OF_A_REPAIR)
    assert wrong == []
    assert count >= 450 * len(FAULTS) // EVERY_OF_A_REPAIR
