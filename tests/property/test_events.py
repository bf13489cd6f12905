"""Who comes back with the last number is told each event once, in order, through crashes too."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any, cast

import pytest

from axern.daemon import event_log
from axern.daemon.event_log import Due, EventLog, Happening
from axern.daemon.event_number import Number, behind, of_commit
from axern.daemon.event_stream import Follower, Owners
from axern.daemon.event_view import Told
from ledger import tail
from ledger.errors import AxernError, CommitFailed
from ledger.rights import ROOT
from ledger.store import Ledger
from ledger.tail import Tail
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

Json = dict[str, Any]

LIVES = 4_000 if LONG else 120
SHARDS = 4
STEPS = 90
SEGMENT_BYTES = 16_384
FLUSH = os.fdatasync
CUT = os.ftruncate


@dataclass(slots=True)
class Disk:
    """Refuses to flush, or even to take back, while it is told to."""

    refuses_flush: bool = False
    refuses_cut: bool = False

    def flush(self, fd: int) -> None:
        if self.refuses_flush:
            raise OSError(5, "refused")
        FLUSH(fd)

    def cut(self, fd: int, size: int) -> None:
        if self.refuses_cut:
            raise OSError(5, "refused")
        CUT(fd, size)


@dataclass(slots=True)
class Reader:
    """One consumer: `last` is all that it keeps, `seen` what it was told in its whole life."""

    last: Number
    begun: Number
    seen: list[Told] = field(default_factory=list)
    follower: Follower | None = None
    journal: Tail | None = None

    def leave(self) -> None:
        if self.journal is not None:
            self.journal.close()
        self.follower = self.journal = None


class Life:
    """A ledger and its notes on real files, and what was acknowledged of them."""

    def __init__(self, base: Path, chance: random.Random, disk: Disk) -> None:
        self.base = base
        self.chance = chance
        self.disk = disk
        self.clock = ManualClock()
        self.path = base / "0"
        self.path.mkdir()
        self.commits: dict[int, int] = {}
        self.notes: dict[str, int] = {}
        self.settled: dict[str, int] = {}
        self.due: Due | None = None
        self.count = self.crashes = 0
        self.held: list[int] = []
        self.readers = [Reader(behind(0), behind(0)) for _ in range(3)]
        self.open()
        node = observing(small_node(10**9, 10**15, 4000))
        while not self.commits:
            self.commit([node])

    def open(self) -> None:
        self.ledger = Ledger.open(
            self.path / "ledger", self.clock(), node_id="n", segment_bytes=SEGMENT_BYTES
        )
        self.log = EventLog(str(self.path / "events.jsonl"), self.ledger.generation)
        self.parts = cast("Any", SimpleNamespace(ledger=self.ledger, events=self.log))
        self.due = None

    def commit(self, operations: list[Any], *, publish: bool = True) -> None:
        batch = self.ledger.stage(operations, self.clock.advance(10))
        self.disk.refuses_flush = publish and self.chance.random() < 0.1
        try:
            self.ledger.flush(batch)
        except CommitFailed:
            self.disk.refuses_flush = False
            self.ledger.reseal()
            return
        finally:
            self.disk.refuses_flush = False
        assert not any(isinstance(outcome, AxernError) for outcome in batch.outcomes)
        self.commits[batch.fork.generation] = len(operations)
        if publish:
            self.ledger.publish(batch)

    def step(self) -> None:
        name = self.chance.choices(*zip(*STEP_WEIGHTS.items(), strict=True))[0]
        getattr(self, f"do_{name}")()

    def operations(self) -> list[Any]:
        made = []
        for _ in range(self.chance.randint(1, 3)):
            if self.held and self.chance.random() < 0.4:
                made.append(releasing(self.held.pop()))
            else:
                self.count += 1
                made.append(reserving(small_proposal(self.count), self.clock()))
        return made

    def do_commit(self) -> None:
        before = self.count
        generation = self.ledger.generation
        self.commit(self.operations())
        if self.ledger.generation > generation:
            self.held += range(before + 1, self.count + 1)

    def do_note(self) -> None:
        self.count += 1
        word = self.chance.choice(("a", "b", str(self.count)))
        self.log.record(Happening(word, word, 0, "", "", str(self.count)), self.clock().wall_ms)
        self.notes[word] = self.notes.get(word, 0) + 1

    def do_minute(self) -> None:
        self.clock.advance(61_000)

    def do_begin(self) -> None:
        if self.due is None:
            due = self.log.take_due(self.ledger.generation, self.clock().wall_ms)
            self.due = due if due.data else None

    def do_end(self) -> None:
        due, self.due = self.due, None
        if due is None:
            return
        self.disk.refuses_flush = self.chance.random() < 0.3
        self.disk.refuses_cut = self.chance.random() < 0.5
        try:
            self.log.write(due)
        except OSError:
            self.log.take_back(due)
        else:
            self.settle(due)
        finally:
            self.disk.refuses_flush = self.disk.refuses_cut = False

    def do_crash(self) -> None:
        """Go on with what a killed process has left: it may have been anywhere in a write."""
        if self.due is not None and not self.due.anew:
            written = self.due.data[: self.chance.randint(0, len(self.due.data))]
            with open(self.path / "events.jsonl", "ab") as file:
                file.write(written)
        if self.chance.random() < 0.3:
            self.commit(self.operations(), publish=False)
        self.crashes += 1
        following = self.base / str(self.crashes)
        shutil.copytree(self.path, following, ignore=shutil.ignore_patterns("*.tmp"))
        self.ledger.close(checkpoint=False)
        self.path = following
        self.restart()

    def do_stop(self) -> None:
        self.do_end()
        if self.chance.random() < 0.5:
            self.flush_all()
        self.ledger.close()
        self.restart()

    def restart(self) -> None:
        for reader in self.readers:
            reader.leave()
        self.open()
        self.held = [int(row.id, 16) for row in self.ledger.state.reservations()]

    def do_rotate(self) -> None:
        self.ledger.checkpoint(rotate=self.chance.random() < 0.8)

    def do_read(self) -> None:
        self.read(self.chance.choice(self.readers))

    def do_leave(self) -> None:
        self.chance.choice(self.readers).leave()

    def read(self, reader: Reader) -> bool:
        """Let *reader* be told one piece; return whether there was something."""
        if reader.follower is None or reader.journal is None:
            reader.journal = Tail(str(self.path / "ledger"), reader.last.after)
            owners = Owners(lambda _: None)
            reader.follower = Follower(self.parts, reader.journal, reader.last, owners)
        horizon = reader.follower.horizon()
        lines = reader.journal.read(horizon)
        batch = reader.follower.take(lines, horizon)
        assert batch.lacking == [], batch.lacking
        reader.seen += batch.told
        if batch.told:
            reader.last = batch.told[-1].number
        return bool(lines or batch.told)

    def flush_all(self) -> None:
        due = self.log.take_due(self.ledger.generation, self.clock().wall_ms, closing=True)
        if due.data:
            self.log.write(due)
            self.settle(due)

    def settle(self, due: Due) -> None:
        self.log.settle(due)
        for sequence in due.told:
            event = self.log._events[sequence]
            word = event.what.kind
            self.settled[word] = self.settled.get(word, 0) + event.count

    def finish(self) -> list[str]:
        """Return what is wrong, at the end of all."""
        self.do_end()
        self.flush_all()
        witness = Reader(behind(0), behind(0))
        for reader in (*self.readers, witness):
            while self.read(reader):
                pass
            reader.leave()
        self.ledger.close()
        wrong = []
        every = [told.number for told in witness.seen]
        if every != sorted(set(every)):
            wrong.append("the witness was told something twice, or out of order")
        commits = [number for number in every if not number.is_note]
        expected = [
            of_commit(generation, place)
            for generation, count in sorted(self.commits.items())
            for place in range(1, count + 1)
        ]
        if commits != expected:
            wrong.append(f"commits: {len(commits)} told of {len(expected)}")
        for word, count in self.notes.items():
            told = sum(t.count for t in witness.seen if t.operation == word)
            if not self.settled.get(word, 0) <= told <= count:
                wrong.append(f"note {word}: {told} told of {count}")
        for number, reader in enumerate(self.readers):
            seen = [told.number for told in reader.seen]
            if seen != every:
                wrong.append(f"reader {number}: {len(seen)} told, {len(every)} are there")
            if list(map(shown, reader.seen)) != list(map(shown, witness.seen)):
                wrong.append(f"reader {number} was told it otherwise")
        return wrong


def shown(told: Told) -> Json:
    """Return what is told, but for whose it was: a line that releases something does not say so."""
    return told.view(ROOT) | {"owner_uid": None}


STEP_WEIGHTS = {
    "commit": 24, "note": 16, "minute": 1, "begin": 8, "end": 10, "crash": 2, "stop": 1,
    "rotate": 2, "read": 30, "leave": 6,
}  # fmt: skip


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "fdatasync", made.flush)
    monkeypatch.setattr(os, "ftruncate", made.cut)
    monkeypatch.setattr(tail, "PIECE_BYTES", 4_096)
    monkeypatch.setattr(event_log, "_SLACK_LINES", 8)
    return made


def live(seeds: range, disk: Disk) -> Iterator[str]:
    """Live through *seeds* and yield what was wrong."""
    for seed in seeds:
        base = Path(mkdtemp(prefix="axern-", dir=lives.MEMORY))
        try:
            life = Life(base, random.Random(seed), disk)
            for _ in range(STEPS):
                life.step()
            yield from (f"life {seed}: {words}" for words in life.finish())
        finally:
            shutil.rmtree(base)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.timeout(3600 if LONG else 300)
def test_each_event_is_told_once_and_in_order(shard: int, disk: Disk) -> None:
    share = LIVES // SHARDS
    assert list(live(range(shard * share, (shard + 1) * share), disk)) == []


def test_control_who_is_told_of_later_commits_while_a_note_is_written_loses_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Follower, "horizon", lambda self: self._parts.ledger.generation)
    assert any("told, " in words for words in live(range(40), disk))


def test_control_numbers_that_begin_anew_after_a_crash_lose_notes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLog, "_load", lambda *_: None)
    assert any("told" in words for words in live(range(40), disk))


def test_control_what_was_not_answered_must_not_be_told(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line in a segment that was given up counts, where nobody looks at the next one."""
    monkeypatch.setattr(Tail, "_look_ahead", lambda _: None)
    assert any("told" in words for words in live(range(40), disk))
