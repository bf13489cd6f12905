"""Reading without the lock: the last durable commit, whatever a writer does meanwhile."""

import threading
from pathlib import Path

import pytest

from ledger import checkpoint, reader
from ledger.codec import Checkpoint
from ledger.errors import LedgerBusy, LedgerCorrupt, NotFound
from ledger.files import Folder
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal

CLOCK = ManualClock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def open_ledger(directory: Path) -> Ledger:
    return Ledger.open(directory, CLOCK(), node_id="node-a", segment_bytes=8192)


def test_a_reader_sees_each_commit_at_once(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        assert reader.read(directory).generation == 0
        ledger.commit(observing(small_node()), CLOCK())
        for number in range(20):
            ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
            seen = reader.read(directory)
            assert seen.generation == ledger.generation
            assert seen.node_id == "node-a"
            assert list(seen.state.reservations()) == list(ledger.state.reservations())
            assert seen.state.balances() == ledger.state.balances()


def test_a_closed_ledger_is_complete_in_its_checkpoint(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        ledger.commit(observing(small_node()), CLOCK())
    folder = Folder(str(directory))
    assert checkpoint.read(folder).generation == 1
    folder.close()


def test_a_torn_tail_is_passed_over(directory: Path) -> None:
    ledger = open_ledger(directory)
    ledger.commit(observing(small_node()), CLOCK())
    position = ledger._journal.position
    ledger.close(checkpoint=False)
    before = reader.read(directory)
    with (directory / position.segment).open("r+b") as segment:
        segment.seek(position.offset)
        segment.write(b'{"generation":2,"boot')
    assert reader.read(directory).generation == before.generation == 1
    assert (directory / position.segment).stat().st_size == 8192


def test_nothing_is_written(directory: Path) -> None:
    open_ledger(directory).close()
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    reader.read(directory)
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before


def test_no_ledger_is_told_from_a_broken_one(directory: Path) -> None:
    with pytest.raises(NotFound, match="there is no ledger"):
        reader.read(directory)
    directory.mkdir()
    with pytest.raises(NotFound):
        reader.read(directory)
    (directory / "ledger.json").write_bytes(b"{}")
    with pytest.raises(LedgerCorrupt):
        reader.read(directory)


def test_files_that_change_each_time_make_it_busy(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_ledger(directory) as ledger:
        real = checkpoint.read

        def overtaken(folder: Folder) -> Checkpoint:
            base = real(folder)
            ledger.commit(observing(small_node(slots=ledger.generation + 10)), CLOCK())
            ledger.checkpoint(rotate=True)  # archives the segment that `base` names
            return base

        monkeypatch.setattr(checkpoint, "read", overtaken)
        with pytest.raises(LedgerBusy, match="changed 5 times"):
            reader.read(directory)


def test_a_reader_beside_a_busy_writer_sees_only_whole_generations(directory: Path) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep_reading() -> None:
        last = 0
        try:
            while not stop.is_set():
                seen = reader.read(directory)
                assert seen.generation >= last
                last = seen.generation
                count = sum(1 for _ in seen.state.reservations())
                assert count == (seen.generation - 1) % 2 if seen.generation else not count
        except LedgerBusy:
            return
        except BaseException as err:  # noqa: BLE001 - shown by the test
            failures.append(err)

    with open_ledger(directory) as ledger:
        ledger.commit(observing(small_node()), CLOCK())
        thread = threading.Thread(target=keep_reading)
        thread.start()
        for number in range(300):
            ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
            ledger.commit(releasing(number), CLOCK())
            if number % 60 == 0:
                ledger.checkpoint(rotate=number % 120 == 0)
        stop.set()
        thread.join()
    assert failures == []
