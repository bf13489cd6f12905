"""The history of one entry: every step of it, from live segments and archived ones alike."""

from functools import partial
from pathlib import Path

import pytest

from ledger import history, transitions
from ledger.errors import InvalidArgument, NotFound
from ledger.history import History
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, releasing, reserving, small_node, small_proposal

CLOCK = ManualClock()
FIRST = 0xAAAA << 112
SECOND = 0xAAAB << 112


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def open_ledger(directory: Path) -> Ledger:
    ledger = Ledger.open(directory, CLOCK(), node_id="node-a", segment_bytes=8192)
    ledger.commit(observing(small_node()), CLOCK())
    return ledger


def found(directory: Path, prefix: str, up_to: int | None = None) -> History:
    entry = history.find(directory, prefix, up_to)
    assert entry is not None
    return entry


def operations(entry: History) -> list[tuple[str, str]]:
    return [(step.operation, step.phase) for step in entry.steps]


def churn(ledger: Ledger, count: int, start: int = 0) -> None:
    """Fill segments with other entries, and archive them."""
    for number in range(start, start + count):
        proposal = small_proposal(number)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        ledger.commit(releasing(int(proposal.id, 16)), CLOCK())
    ledger.checkpoint()


def archived(directory: Path) -> list[Path]:
    return sorted((directory / "archive").iterdir())


def test_every_step_is_told_in_order(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST)
        assert history.find(directory, proposal.id) is None
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        churn(ledger, 30)
        steps = (
            partial(transitions.stop, reservation_id=proposal.id, reason="late", by="uid:7"),
            partial(transitions.retire, reservation_id=proposal.id, reason="late"),
        )
        for step in steps:
            ledger.commit(step, CLOCK())
        churn(ledger, 30, start=30)
        ledger.commit(
            partial(transitions.release, reservation_id=proposal.id, evidence="seen"), CLOCK()
        )
        entry = found(directory, proposal.id)
    assert len(archived(directory)) > 2
    assert operations(entry) == [
        ("reserve", "reserved"),
        ("stop", "stopping"),
        ("retire", "retiring"),
        ("release", "released"),
    ]
    assert [step.by for step in entry.steps] == ["uid:1000", "uid:7", "daemon", "daemon"]
    assert entry.released is not None
    assert (entry.released.note, entry.released.reason, entry.omitted) == ("seen", "late", 0)
    assert entry.damage == ()
    assert entry == found(directory, proposal.id[:6])  # closed since: all the same


def test_commits_behind_the_given_generation_do_not_count(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        before = ledger.generation
        ledger.commit(releasing(int(proposal.id, 16)), CLOCK())
    assert operations(found(directory, proposal.id, before)) == [("reserve", "reserved")]
    assert history.find(directory, proposal.id, before - 1) is None


def test_beginnings_must_be_unique(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        for number in (FIRST, SECOND):
            ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
            ledger.commit(releasing(number), CLOCK())
        assert found(directory, "aaaa").reservation_id == small_proposal(FIRST).id
        with pytest.raises(InvalidArgument, match="2 reservations"):
            history.find(directory, "aaa")
        assert history.find(directory, "bbbb") is None
        churn(ledger, 25)
        with pytest.raises(InvalidArgument, match="more than 20"):
            history.find(directory, "0000")


def test_of_many_steps_the_newest_are_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_STEPS", 3)
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST, ttl_ms=1000)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        for number in range(2, 8):
            ledger.commit(
                partial(
                    transitions.renew,
                    reservation_id=proposal.id,
                    ttl_ms=number * 1000,
                    now=CLOCK(),
                ),
                CLOCK(),
            )
        entry = found(directory, proposal.id)
    assert [step.operation for step in entry.steps] == ["renew"] * 3
    assert entry.omitted == 4


def test_a_damaged_line_is_said_and_the_rest_told(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        churn(ledger, 30)
        ledger.commit(releasing(int(proposal.id, 16)), CLOCK())
        oldest = archived(directory)[0]
        data = bytearray(oldest.read_bytes())
        at = data.find(b'"operation":"reserve"', data.find(proposal.id.encode()) - 400)
        data[at + 14] ^= 1
        oldest.write_bytes(data)
        entry = found(directory, proposal.id)
    assert operations(entry) == [("release", "released")]
    assert entry.last is None
    assert any("CRC" in words for words in entry.damage)


def test_missing_and_cut_segments_are_said(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        churn(ledger, 60)
        assert found(directory, proposal.id).damage == ()
        _, second, third, *_ = archived(directory)
        second.unlink()
        data = third.read_bytes()
        third.write_bytes(data[: data.rindex(b"\n", 0, len(data) - 1) + 1])
        damage = found(directory, proposal.id).damage
    assert len(damage) == 2
    assert all("are missing" in words for words in damage)


def test_a_link_in_the_archive_is_not_followed(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal = small_proposal(FIRST)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        churn(ledger, 30)
        oldest = archived(directory)[0]
        oldest.rename(directory / "elsewhere")
        oldest.symlink_to(directory / "elsewhere")
        assert history.find(directory, proposal.id) is None
        ledger.commit(releasing(int(proposal.id, 16)), CLOCK())
        assert any("not a plain file" in words for words in found(directory, proposal.id).damage)


def test_void_lines_of_a_dead_segment_do_not_count(directory: Path) -> None:
    with open_ledger(directory) as ledger:
        proposal, refused = small_proposal(FIRST), small_proposal(SECOND)
        ledger.commit(reserving(proposal, CLOCK()), CLOCK())
        batch = ledger.stage([reserving(refused, CLOCK())], CLOCK())
        position = ledger._journal.position
        with (directory / position.segment).open("r+b") as segment:
            segment.seek(position.offset)
            segment.write(batch.line)
        ledger.reseal()
        ledger.commit(releasing(int(proposal.id, 16)), CLOCK())
        assert history.find(directory, refused.id) is None
        assert len(found(directory, proposal.id).steps) == 2


def test_no_ledger_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        history.find(tmp_path / "none", "aaaa")
