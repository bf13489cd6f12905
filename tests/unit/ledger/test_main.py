"""`python -m ledger`: what it prints, what it finds, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledger import checkpoint, codec
from ledger.__main__ import main
from ledger.files import Folder
from ledger.state import Change
from ledger.store import Ledger
from ledger.testing import (
    ManualClock,
    observing,
    releasing,
    reserving,
    small_node,
    small_proposal,
)

CLOCK = ManualClock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A ledger with an archive, a checkpoint and commits behind it."""
    directory = tmp_path / "ledger"
    ledger = Ledger.open(directory, CLOCK(), node_id="node-a", segment_bytes=8192)
    ledger.commit(observing(small_node()), CLOCK())
    for number in range(12):
        ledger.commit(reserving(small_proposal(number), CLOCK()), CLOCK())
        if number == 6:
            ledger.checkpoint()
    ledger.commit(releasing(2), CLOCK())
    ledger.close(checkpoint=False)
    return directory


def test_a_sound_ledger_is_in_order(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(directory)]) == 0
    assert capsys.readouterr().out == "in order: generation 14, 11 reservations\n"


def test_a_dump_is_the_present_state(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", str(directory)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["generation"] == 14
    assert document["node_id"] == "node-a"
    assert document["balances"]["committed:default"]["cpu_milli"] == 1100
    assert len(document["tables"]["reservations"]) == 11
    assert document["tables"]["reservations"][f"{5:032x}"]["owner"]["name"] == "lease-5"


@pytest.mark.parametrize("command", ["dump", "check"])
def test_a_reader_that_leaves_is_no_damage(directory: Path, command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    argv = [sys.executable, "-m", "ledger", command, str(directory)]
    done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_no_reader_that_left(directory: Path) -> None:
    argv = [sys.executable, "-m", "ledger", "dump", str(directory)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"ledger: the output could not be written: No space left on device\n"


def test_one_reservation_is_not_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(tmp_path / "ledger", CLOCK()) as ledger:
        ledger.commit(observing(small_node()), CLOCK())
        ledger.commit(reserving(small_proposal(1), CLOCK()), CLOCK())
    assert main(["check", str(tmp_path / "ledger")]) == 0
    assert capsys.readouterr().out.endswith(", 1 reservation\n")


def test_it_runs_alone_without_axern_and_without_writing(directory: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    code = (
        "import runpy, sys; sys.modules['axern'] = None; sys.modules['filelock'] = None; "
        f"sys.argv = ['ledger', 'check', {str(directory)!r}]; "
        "runpy.run_module('ledger', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_damage_is_named_with_its_place(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = max(directory.glob("journal-*"))
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)
    for command in ("check", "dump"):
        assert main([command, str(directory)]) == 7
        captured = capsys.readouterr()
        assert captured.out == ""
        assert f"{path}, offset 0: " in captured.err
        hinted = "hint: look at it with: python -m ledger check" in captured.err
        assert hinted == (command == "dump")  # nothing hints at itself


def test_no_ledger_and_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "no")]) == 2
    assert "there is no ledger" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main(["check"])
    assert usage.value.code == 2


def test_a_damaged_archive_is_a_finding(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min((directory / "archive").glob("journal-*"))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"lease-1", b"lease-9"))
    assert main(["check", str(directory)]) == 1
    assert f"{path}, offset" in capsys.readouterr().out


def test_a_broken_chain_below_the_checkpoint_is_a_finding(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    *_, before, last = sorted((directory / "archive").glob("journal-*"))
    lines = [*before.read_bytes().splitlines(True), *last.read_bytes().splitlines(True)]
    chain = codec.decode_commit(lines[-2], None).chain
    commit = codec.decode_commit(lines[-1], chain)
    forged = tuple(Change(c.operation, c.puts, c.postings, "uid:0") for c in commit.changes)
    line, _ = codec.encode_commit(commit.generation, commit.clock, forged, chain)
    last.write_bytes(last.read_bytes().replace(lines[-1], line))
    assert main(["check", str(directory)]) == 1
    assert "does not stand on the chain" in capsys.readouterr().out


def test_a_torn_line_and_a_missing_marker_are_findings(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "node-id").unlink()
    path = max(directory.glob("journal-*"))
    data = path.read_bytes()
    end = len(data[:-21].rstrip(b"\0"))
    path.write_bytes(data[:end] + b'{"generation":15,"b' + data[end + 19 :])
    assert main(["check", str(directory)]) == 1
    out = capsys.readouterr().out
    assert f"{path.name}, offset {end}: a torn line" in out
    assert "node-id is missing" in out


def test_the_marker_of_another_node_is_a_finding(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "node-id").write_text("node-b\n", encoding="utf-8")
    assert main(["check", str(directory)]) == 1
    assert "another node than node-a" in capsys.readouterr().out


def test_postings_that_do_not_balance_are_found_without_the_state(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Folder(str(directory))
    base = checkpoint.read(folder)
    path = directory / base.position.segment
    change = Change("theft", (), (("committed:default", "cpu_milli", 7),))
    line, _ = codec.encode_commit(base.generation + 1, base.clock, [change], base.position.chain)
    data = path.read_bytes()
    blank = bytes(len(data) - 21 - len(line))
    path.write_bytes(line + blank + data[-21:].replace(b"and", b"end"))
    for later in sorted(directory.glob("journal-*")):
        if later > path:
            later.unlink()
    folder.close()
    assert main(["check", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "generation 9: theft is off by 7 in cpu_milli" in out
    assert "trial balance: the accounts of cpu_milli sum to 7 instead of 0" in out
    assert "committed:default holds 707 cpu_milli, its entries say 700" in out
