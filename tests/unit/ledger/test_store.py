"""Commits on disk: staged, flushed, published; checkpoints; what a failed flush means."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import reader, transitions
from ledger.admission import AdmissionPolicy
from ledger.errors import (
    AdmissionRefused,
    CommitFailed,
    InvariantViolation,
    LedgerCorrupt,
    NotFound,
)
from ledger.journal import lines_end
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_facts,
    small_node,
    small_proposal,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def open_ledger(directory: Path, clock: ManualClock) -> Ledger:
    return Ledger.open(directory, clock(), node_id="node-a", segment_bytes=8192)


@pytest.fixture
def ledger(directory: Path, clock: ManualClock) -> Iterator[Ledger]:
    with open_ledger(directory, clock) as ledger:
        ledger.commit(observing(small_node()), clock())
        yield ledger


def crash(ledger: Ledger) -> None:
    """Let go of everything without a last checkpoint."""
    ledger.close(checkpoint=False)


def ids(state: State) -> list[int]:
    return [int(reservation.id, 16) for reservation in state.reservations()]


def no(view: State) -> Change:
    raise NotFound("no")


def test_a_ledger_is_born_with_its_default_namespace(directory: Path, clock: ManualClock) -> None:
    with open_ledger(directory, clock) as ledger:
        assert ledger.generation == 0
        assert ledger.state.namespace("default").created_wall_ms == clock().wall_ms
        assert ledger.node_id == "node-a"
    assert sorted(path.name for path in directory.iterdir()) == [
        "journal-0000000000000001.jsonl",
        "ledger.json",
        "ledger.lock",
        "node-id",
    ]


def test_a_new_folder_is_durable_before_anything_in_it(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def note(fd: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    open_ledger(directory, clock).close()
    assert flushed[0] == str(directory.parent)


def test_a_node_gets_a_random_id(tmp_path: Path, clock: ManualClock) -> None:
    names = set()
    for folder in ("a", "b"):
        with Ledger.open(tmp_path / folder, clock(), segment_bytes=8192) as ledger:
            names.add(ledger.node_id)
        with Ledger.open(tmp_path / folder, clock()) as ledger:
            names.add(ledger.node_id)
    assert len(names) == 2
    assert {len(name) for name in names} == {32}


def test_what_was_committed_outlives_the_process(directory: Path, clock: ManualClock) -> None:
    ledger = open_ledger(directory, clock)
    ledger.commit(observing(small_node()), clock())
    for number in range(12):
        granted = ledger.commit(reserving(small_proposal(number), clock()), clock())
        assert granted == ledger.state.reservation(f"{number:032x}")
    ledger.commit(releasing(3), clock())
    left = ledger.state
    crash(ledger)
    with open_ledger(directory, clock) as again:
        assert again.generation == left.generation == 14
        assert again.state.clock == left.clock
        assert again.state.all_rows() == left.all_rows()
        assert ids(again.state) == ids(left)
        assert again.state.balances() == left.balances()
        assert again.state.entry_count() == 11


def test_the_refused_leaves_no_trace_and_the_others_go_on(
    ledger: Ledger, clock: ManualClock
) -> None:
    batch = ledger.stage(
        [
            reserving(small_proposal(1), clock()),
            reserving(small_proposal(2, cpu_milli=10**6), clock()),
            no,
            reserving(small_proposal(3), clock()),
            reserving(small_proposal(1), clock()),
        ],
        clock(),
    )
    first, refused, missing, third, again = batch.outcomes
    assert isinstance(refused, AdmissionRefused)
    assert refused.refusal.generation == 2  # it was decided on what the first one left
    assert isinstance(missing, NotFound)
    assert again == first != third
    assert ledger.generation == 1
    assert ids(ledger.state) == []
    ledger.flush(batch)
    assert ids(ledger.state) == []
    ledger.publish(batch)
    assert ids(ledger.state) == [1, 3]
    assert ledger.generation == 2


def test_what_changes_nothing_is_not_written(ledger: Ledger, clock: ManualClock) -> None:
    before = ledger._journal.position
    ledger.commit(observing(small_node()), clock())
    with pytest.raises(AdmissionRefused):
        ledger.commit(reserving(small_proposal(2, cpu_milli=10**6), clock()), clock())
    assert ledger._journal.position == before
    assert ledger.generation == 1


def test_a_bug_is_not_a_refusal(ledger: Ledger, clock: ManualClock) -> None:
    def bug(view: State) -> Change:
        raise InvariantViolation("a bug")

    with pytest.raises(InvariantViolation, match="a bug"):
        ledger.stage([reserving(small_proposal(1), clock()), bug], clock())
    assert ids(ledger.state) == []
    ledger.commit(reserving(small_proposal(1), clock()), clock())


def test_batches_never_mix(ledger: Ledger, clock: ManualClock) -> None:
    first = ledger.stage([reserving(small_proposal(1), clock())], clock())
    second = ledger.stage([reserving(small_proposal(2), clock())], clock())
    with pytest.raises(InvariantViolation, match="not flushed"):
        ledger.publish(first)
    ledger.flush(first)
    with pytest.raises(InvariantViolation, match="middle of a batch"):
        ledger.checkpoint()
    ledger.publish(first)
    with pytest.raises(InvariantViolation, match="two batches"):
        ledger.flush(second)
    assert ids(ledger.state) == [1]


def test_a_refusal_names_the_generation_it_was_decided_on(
    ledger: Ledger, clock: ManualClock
) -> None:
    too_large = reserving(small_proposal(9, cpu_milli=10**6), clock())
    (alone,) = ledger.stage([too_large], clock()).outcomes
    assert isinstance(alone, AdmissionRefused)
    assert alone.refusal.generation == ledger.generation


def test_a_checkpoint_with_rotation_archives_the_past(
    ledger: Ledger, directory: Path, clock: ManualClock
) -> None:
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    ledger.checkpoint()
    assert ledger.checkpoint_generation == 2
    assert [path.name for path in directory.glob("journal-*")] == ["journal-0000000000000003.jsonl"]
    assert (directory / "archive" / "journal-0000000000000001.jsonl").exists()
    ledger.checkpoint()
    assert len(list(directory.glob("journal-*"))) == 1


def test_an_idle_checkpoint_stays_in_its_segment(
    ledger: Ledger, directory: Path, clock: ManualClock
) -> None:
    ledger.checkpoint(rotate=False)
    assert ledger.checkpoint_generation == 1
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    crash_copy = reader.read(directory)
    assert crash_copy.generation == 2
    assert not (directory / "archive").exists()


def test_commits_go_on_while_a_checkpoint_is_written(
    ledger: Ledger, directory: Path, clock: ManualClock
) -> None:
    begun = ledger.begin_checkpoint(rotate=True)
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    assert reader.read(directory).generation == 2
    ledger.finish_checkpoint(begun)
    assert ledger.checkpoint_generation == 1
    assert ids(reader.read(directory).state) == [1]


def test_a_reboot_carries_deadlines_over(directory: Path, clock: ManualClock) -> None:
    ledger = open_ledger(directory, clock)
    ledger.commit(observing(small_node()), clock())
    lease = small_proposal(1, ttl_ms=60_000)
    ledger.commit(reserving(lease, clock()), clock())
    ledger.commit(lambda view: transitions.persist_beats(view, {lease.id: 1}), clock())
    left_ms = 60_000
    crash(ledger)
    now = clock.reboot()
    with open_ledger(directory, clock) as ledger:
        deadline = ledger.state.reservation(lease.id).expires_boottime_ms
        assert deadline == now.boottime_ms + left_ms
        assert list(ledger.state.rows("beats")) == []
        assert ledger.state.clock.boot_id == now.boot_id
        generation = ledger.generation
    with open_ledger(directory, clock) as ledger:
        assert ledger.generation == generation


def failing_flush(code: int = errno.EIO) -> object:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def has_failed(ledger: Ledger) -> bool:
    return ledger.failed


def test_after_a_failed_flush_nothing_is_done_until_it_is_resealed(
    ledger: Ledger, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_flush())
        with pytest.raises(CommitFailed, match="Input/output error"):
            ledger.commit(reserving(small_proposal(2), clock()), clock())
    assert has_failed(ledger)
    assert ids(ledger.state) == [1]
    with pytest.raises(CommitFailed, match="nothing more"):
        ledger.commit(reserving(small_proposal(3), clock()), clock())
    ledger.reseal()
    assert not has_failed(ledger)
    ledger.commit(reserving(small_proposal(4), clock()), clock())
    assert ids(ledger.state) == [1, 4]
    assert ids(reader.read(directory).state) == [1, 4]
    crash(ledger)
    again = open_ledger(directory, clock)
    assert ids(again.state) == [1, 4]
    again.close()


@pytest.mark.parametrize("rotate", [False, True])
def test_a_checkpoint_that_comes_late_never_replaces_a_newer_one(
    ledger: Ledger,
    directory: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    rotate: bool,
) -> None:
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    late = ledger.begin_checkpoint(rotate=rotate)
    ledger.commit(reserving(small_proposal(2), clock()), clock())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_flush())
        with pytest.raises(CommitFailed):
            ledger.commit(reserving(small_proposal(3), clock()), clock())
    ledger.reseal()
    ledger.checkpoint(rotate=False)
    assert (directory / "archive" / late[0].position.segment).exists()
    before = (directory / "ledger.json").read_bytes()
    ledger.finish_checkpoint(late)
    assert (directory / "ledger.json").read_bytes() == before
    assert ledger.checkpoint_generation == ledger.generation
    crash(ledger)
    with open_ledger(directory, clock) as again:
        assert ids(again.state) == [1, 2]


def test_of_two_checkpoints_of_one_generation_the_one_in_the_new_segment_stays(
    ledger: Ledger, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ledger.begin_checkpoint(rotate=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_flush())
        with pytest.raises(CommitFailed):
            ledger.commit(reserving(small_proposal(1), clock()), clock())
    ledger.reseal()
    ledger.checkpoint(rotate=False)
    ledger.finish_checkpoint(late)
    crash(ledger)
    with open_ledger(directory, clock) as again:
        assert ids(again.state) == []
        assert again.checkpoint_generation == late[0].generation


def test_a_disk_that_refuses_a_reseal_is_left_as_it_was(
    ledger: Ledger, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commit(reserving(small_proposal(1), clock()), clock())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_flush())
        with pytest.raises(CommitFailed):
            ledger.commit(reserving(small_proposal(2), clock()), clock())
    ledger.prepare_segment()
    for call in ("rename", "fsync", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, failing_flush())
            with pytest.raises(CommitFailed):
                ledger.reseal()
        assert has_failed(ledger)
        assert [path for path in directory.iterdir() if path.suffix == ".tmp"] == []
    with pytest.raises(CommitFailed, match="nothing more"):
        ledger.begin_checkpoint(rotate=True)
    ledger.reseal()
    ledger.commit(reserving(small_proposal(4), clock()), clock())
    crash(ledger)
    with open_ledger(directory, clock) as again:
        assert ids(again.state) == [1, 4]


def test_what_was_not_done_does_not_come_back_after_a_clean_stop(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(directory, clock)
    ledger.commit(observing(small_node()), clock())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing_flush())
        with pytest.raises(CommitFailed):
            ledger.commit(reserving(small_proposal(2), clock()), clock())
    ledger.close()
    with open_ledger(directory, clock) as again:
        assert ids(again.state) == []


def test_a_full_disk_fails_cleanly_and_what_fits_still_goes(
    ledger: Ledger, directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 0
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_flush(errno.ENOSPC))
        while ledger._journal.position.offset < 6500:
            number += 1
            ledger.commit(reserving(small_proposal(number), clock()), clock())
        number += 1
        with pytest.raises(CommitFailed, match="No space left"):
            ledger.commit(reserving(small_proposal(number), clock()), clock())
        assert not ledger.failed
        with pytest.raises(CommitFailed, match="No space left"):
            ledger.checkpoint(rotate=False)
        ledger.commit(releasing(1), clock())  # shorter, so it still fits
        with pytest.raises(CommitFailed, match="No space left"):
            ledger.prepare_segment()
    ledger.commit(reserving(small_proposal(number), clock()), clock())
    assert ids(reader.read(directory).state) == list(range(2, number + 1))
    assert [path for path in directory.iterdir() if path.suffix == ".tmp"] == []


def test_a_failed_last_checkpoint_is_told_and_the_lock_is_free(
    directory: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(directory, clock)
    ledger.commit(observing(small_node()), clock())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_flush(errno.ENOSPC))
        with pytest.raises(CommitFailed, match="no checkpoint"):
            ledger.close()
    with open_ledger(directory, clock) as again:
        assert again.generation == 1


def test_a_segment_made_in_advance_takes_the_next_line(
    ledger: Ledger, directory: Path, clock: ManualClock
) -> None:
    number = 0
    ledger.prepare_segment()
    while ledger.has_spare:
        number += 1
        ledger.commit(reserving(small_proposal(number), clock()), clock())
    assert len(list(directory.glob("journal-*"))) == 2


def test_a_segment_that_is_half_full_asks_for_the_next(
    ledger: Ledger, directory: Path, clock: ManualClock
) -> None:
    ledger.prepare_segment()  # and the ballast
    number = 0
    while ledger.has_spare:
        number += 1
        ledger.commit(reserving(small_proposal(number), clock()), clock())
    wanted_at_once = ledger.wants_room
    live = max(directory.glob("journal-*"))
    while not ledger.wants_room:
        number += 1
        ledger.commit(reserving(small_proposal(number), clock()), clock())
    assert 0.5 < lines_end(live.read_bytes()) / live.stat().st_size < 1
    ledger.prepare_segment()
    assert [wanted_at_once, ledger.wants_room, ledger.has_spare] == [False, False, True]


def test_the_journal_asks_for_a_checkpoint_when_it_has_grown(
    ledger: Ledger, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.store.CHECKPOINT_BYTES", 4000)
    number = 0
    while not ledger.wants_checkpoint:
        number += 1
        ledger.commit(reserving(small_proposal(number), clock()), clock())
    assert 1 <= number <= 5
    ledger.checkpoint()
    assert not ledger.wants_checkpoint


def test_rows_that_no_decider_made_are_refused_on_opening(
    directory: Path, clock: ManualClock
) -> None:
    ledger = open_ledger(directory, clock)
    ledger.commit(observing(small_node()), clock())

    def unbalanced(view: State) -> Change:
        change = transitions.reserve(
            view, small_proposal(1), small_facts(clock()), clock(), AdmissionPolicy()
        )
        return Change("reserve", change.puts, ())

    ledger.commit(unbalanced, clock())
    crash(ledger)
    with pytest.raises(LedgerCorrupt, match="contradicts itself 6 times, first: committed:default"):
        open_ledger(directory, clock)
