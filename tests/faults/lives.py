"""Short lives of a ledger for the crash tests: what they do, and what must be left of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from ledger.__main__ import main
from ledger.errors import AdmissionRefused
from ledger.store import Ledger
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_node,
    small_proposal,
)

SEGMENT_BYTES = 8192
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where the files of these tests lie: a killed process loses no page, so a disk adds only time."""
Tell = Callable[[str], None]
"""Takes one word for the outer world: `begin:+3` before a reserve is asked, `+3` when granted."""

TOO_LARGE = 99


@dataclass
class Told:
    """What the outside knows: answered operations, the one that was under way, and refusals."""

    words: list[str] = field(default_factory=list)

    def __call__(self, word: str) -> None:
        self.words.append(word)

    @property
    def present(self) -> set[int]:
        """The leases that must exist."""
        there: set[int] = set()
        for word in self.words:
            if word.startswith("+"):
                there.add(int(word[1:]))
            elif word.startswith("-"):
                there.discard(int(word[1:]))
        return there

    @property
    def open(self) -> set[int]:
        """The leases that may exist or not: asked for, or being released, and not answered."""
        last = self.words[-1] if self.words else ""
        return {int(last.split(":")[1][1:])} if last.startswith("begin:") else set()


def open_ledger(directory: str, clock: ManualClock, segment_bytes: int = SEGMENT_BYTES) -> Ledger:
    return Ledger.open(
        directory, clock(), node_id="node-a", lock_timeout_s=2, segment_bytes=segment_bytes
    )


def silent(word: str) -> None:
    """Tell nobody."""


def observe(ledger: Ledger, clock: ManualClock) -> None:
    ledger.commit(observing(small_node()), clock())


def reserve(ledger: Ledger, clock: ManualClock, number: int, tell: Tell) -> None:
    tell(f"begin:+{number}")
    ledger.commit(reserving(small_proposal(number), clock()), clock())
    tell(f"+{number}")


def release(ledger: Ledger, clock: ManualClock, number: int, tell: Tell) -> None:
    tell(f"begin:-{number}")
    ledger.commit(releasing(number), clock())
    tell(f"-{number}")


def refuse(ledger: Ledger, clock: ManualClock, tell: Tell) -> None:
    tell("refused")
    try:
        ledger.commit(reserving(small_proposal(TOO_LARGE, cpu_milli=10**6), clock()), clock())
    except AdmissionRefused:
        return
    raise AssertionError("it should not fit")


def whole_life(directory: str, tell: Tell) -> None:
    """Be born, commit, rotate, checkpoint both ways, archive, stop, start after a reboot, stop."""
    clock = ManualClock()
    with open_ledger(directory, clock) as ledger:
        observe(ledger, clock)
        for number in range(1, 6):
            reserve(ledger, clock, number, tell)
        refuse(ledger, clock, tell)
        ledger.prepare_segment()
        ledger.checkpoint(rotate=True)
        release(ledger, clock, 2, tell)
        ledger.checkpoint(rotate=False)
        for number in range(6, 12):  # more than a segment holds
            reserve(ledger, clock, number, tell)
        release(ledger, clock, 7, tell)
        tell("stop")
    clock.reboot()
    with open_ledger(directory, clock) as ledger:
        reserve(ledger, clock, 12, tell)
        tell("stop")


def prepare_torn(directory: str, tell: Tell) -> None:
    """Leave a ledger whose last line was cut in the middle."""
    clock = ManualClock()
    ledger = open_ledger(directory, clock)
    observe(ledger, clock)
    reserve(ledger, clock, 1, tell)
    position = ledger._journal.position
    reserve(ledger, clock, 2, silent)
    ledger.close(checkpoint=False)
    path = os.path.join(directory, position.segment)
    with open(path, "r+b") as segment:
        segment.seek(position.offset + 100)
        segment.write(bytes(4000))


def after_torn(directory: str, tell: Tell) -> None:
    """Open what `prepare_torn` left, and go on."""
    clock = ManualClock()
    with open_ledger(directory, clock) as ledger:
        reserve(ledger, clock, 3, tell)
        tell("stop")


def verify(directory: str, told: Told) -> None:
    """Open what was left of a life: all that was answered is there, and nothing else.

    Raises:
        AssertionError: It is not so.
        LedgerError: It can't be opened.
    """
    clock = ManualClock()
    clock.reboot()
    with open_ledger(directory, clock) as ledger:
        there = {int(reservation.id, 16) for reservation in ledger.state.reservations()}
        assert there - told.open == told.present - told.open, (there, told.words[-3:])
        assert TOO_LARGE not in there
        if ledger.state.node() is None:
            observe(ledger, clock)
        reserve(ledger, clock, 50, told)
    assert main(["check", directory]) == 0
    assert not [name for name in os.listdir(directory) if name.endswith(".tmp")]
