"""A life of a ledger that goes on through errors as a daemon does, step by step.

What is not done is asked for again, and what can't be opened is opened again. So the ledger is at
any moment, to the bit, what it was at the same step of a life without errors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from ledger import contents
from ledger.__main__ import main
from ledger.checkpoint import CHECKPOINT
from ledger.clock import Now
from ledger.errors import AdmissionRefused, AxernError, CommitFailed
from ledger.files import Folder
from ledger.staging import Operation
from ledger.store import Ledger
from ledger.testing import observing, releasing, reserving, small_node, small_proposal
from tests.faults.lives import SEGMENT_BYTES, Tell, silent

TRIES = 4
CPU_MILLI = 4_000
"""What the host has, and what is reserved in the end."""
TTL_MS = 3_600_000
States = list[str | None]
"""The digest of the ledger before each step, and behind the last; None before its birth."""


class Life:
    """The ledger at *path*; where *states* are given, what was told as not done is looked up."""

    def __init__(self, path: Path, states: States | None = None) -> None:
        self.path = path
        self.now = Now("", 0, 0, 0)
        self._states = states
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    def open(self, boot: int) -> None:
        """Open it in the given boot of the host."""
        self.now = Now(f"boot-{boot}", 1000 * boot, 2000 * boot, 1_700_000_000_000)
        self._ledger = Ledger.open(
            self.path,
            self.now,
            node_id="node-a",
            lock_timeout_s=1,
            segment_bytes=SEGMENT_BYTES,
            remember_in=str(self.path.parent),
        )

    def close(self) -> None:
        """Close it if it is open: it is closed, whatever is said."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def play(self, first: int, tell: Tell) -> None:
        """Take each step from *first* on; tell when it begins, and when it is done."""
        if first not in OPENINGS:
            self.open(1 if first < max(OPENINGS) else 2)
        for number in range(first, len(STEPS)):
            tell(f"begin {number}")
            self._take(number)
            tell(f"done {number}")
        self.close()

    def _take(self, number: int) -> None:
        for _ in range(TRIES):
            try:
                STEPS[number](self)
                return
            except AxernError as err:
                if number not in OPENINGS and not isinstance(err, CommitFailed):
                    raise
            if self._ledger is not None and self._ledger.failed:
                with contextlib.suppress(CommitFailed):
                    self._ledger.reseal()
            if self._states is not None and number not in OPENINGS:
                assert state_of(self.path) == self._states[number], "it was told as not done"
        raise AssertionError(f"step {number} can't be done")


Step = Callable[[Life], None]


def doing(operation: Callable[[Life], Operation]) -> Step:
    """Return the step that commits *operation*."""

    def do(life: Life) -> None:
        life.ledger.commit(operation(life), life.now)

    return do


def reserve(number: int, cpu_milli: int = 100, ttl_ms: int | None = None) -> Step:
    return doing(lambda life: reserving(small_proposal(number, cpu_milli, ttl_ms), life.now))


def release(number: int) -> Step:
    return doing(lambda _: releasing(number))


def refuse(life: Life) -> None:
    """Ask for more than is left of a host that is full."""
    try:
        reserve(99)(life)
    except AdmissionRefused:
        return
    raise AssertionError("it should not fit")


FIRST_BOOT: tuple[Step, ...] = (
    lambda life: life.open(1),
    doing(lambda _: observing(small_node(CPU_MILLI))),
    *(reserve(number) for number in range(1, 5)),
    reserve(5, ttl_ms=TTL_MS),
    lambda life: life.ledger.prepare_segment(),
    lambda life: life.ledger.checkpoint(rotate=True),
    release(2),
    lambda life: life.ledger.checkpoint(rotate=False),
    *(reserve(number) for number in range(6, 12)),  # more than a segment holds
    release(7),
    Life.close,
)
SECOND_BOOT: tuple[Step, ...] = (
    lambda life: life.open(2),
    reserve(12, CPU_MILLI - 900),
    refuse,
    release(5),
    reserve(13),
    Life.close,
)
STEPS = FIRST_BOOT + SECOND_BOOT
OPENINGS = (0, len(FIRST_BOOT))


def state_of(path: Path) -> str | None:
    """Return the digest of all rows and accounts of the ledger at *path*; None before its birth."""
    if not (path / CHECKPOINT).exists():
        return None
    folder = Folder(str(path))
    try:
        return contents.digest(contents.read(folder).contents)
    finally:
        folder.close()


def reference(path: Path) -> States:
    """Live without an error and return the states."""
    states: States = []

    def look(word: str) -> None:
        if word.startswith("begin"):
            states.append(state_of(path))

    Life(path).play(0, look)
    return [*states, state_of(path)]


def verify(path: Path, words: list[str], states: States) -> None:
    """See that what was left is a state after all that was done, and that life can go on from it.

    Raises:
        AssertionError: It is not so.
        LedgerError: It can't be opened.
    """
    what, _, number = (words or ["begin 0"])[-1].partition(" ")
    places = [int(number) + 1] if what == "done" else [int(number), int(number) + 1]
    state = state_of(path)
    place = next((each for each in places if states[each] == state), None)
    assert place is not None, f"after {words[-2:]} it is none of the states {places}"
    Life(path, states).play(place, silent)
    assert state_of(path) == states[-1]
    assert main(["check", str(path)]) == 0
    assert not [name for name in os.listdir(path) if name.endswith((".tmp", ".holder"))]
