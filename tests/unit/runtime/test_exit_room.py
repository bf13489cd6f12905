"""An exit record has its room from the start, so that a run can end on a disk that is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from axern.runtime import record

HOW = record.RunExit("succeeded", 0, 0, finished_wall_ms=1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 16 pages, really full in the end."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(disk: Path) -> None:
    with (
        open(disk / "filler", "ab", buffering=0) as file,
        contextlib.suppress(OSError),
    ):
        while True:
            file.write(bytes(4096))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("kept", [True, False])
def test_a_full_disk_keeps_no_run_from_ending(disk: Path, *, kept: bool) -> None:
    folder = disk / "run"
    folder.mkdir()
    if kept:
        record.keep_room(str(folder))
    fill(disk)
    if not kept:  # control: without it there is none
        with pytest.raises(OSError, match=r"No such file|No space"):
            record.save_exit(str(folder), HOW)
        return
    record.save_exit(str(folder), HOW)
    record.save_exit(str(folder), record.RunExit("failed", 1, 1, finished_wall_ms=2))
    path = record.exit_path(str(folder))
    assert record.decode(path, record.RunExit) == HOW
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(folder) == ["exit.json"]


def test_where_there_is_room_nothing_is_left_of_it(tmp_path: Path) -> None:
    record.keep_room(str(tmp_path))
    record.save_exit(str(tmp_path), HOW)
    assert os.listdir(tmp_path) == ["exit.json"]


def test_a_record_that_is_larger_than_its_room_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.keep_room(str(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        record.save_exit(str(tmp_path), record.RunExit("failed", 1, 1, 1, message="x" * 5000))
