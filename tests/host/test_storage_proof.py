"""What the proof of a storage limit makes of a filestore without room, and of no limit at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from axern.host import project_quota
from axern.host.capabilities import Denied, Unclear, attempt
from axern.runtime import storage_proof
from tests.host.conftest import Lab
from tests.host.filestores import MIB, xfs_lab

pytestmark = pytest.mark.host
ROOM_BYTES = MIB
"""Too little for a proof, which writes 8 MiB."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with xfs_lab() as lab:
        yield lab


def _fill(path: str) -> None:
    """Take all the room there is; how much that is XFS tells too low while files still go."""
    with open(path, "wb") as file:
        for size_bytes in (16 * MIB, MIB, MIB // 16):
            while _grows(file.fileno(), size_bytes):
                pass


def _grows(fd: int, size_bytes: int) -> bool:
    """Tell whether the file took *size_bytes* more."""
    try:
        os.posix_fallocate(fd, os.fstat(fd).st_size, size_bytes)
    except OSError as err:
        if err.errno != errno.ENOSPC:
            raise
        return False
    return True


def test_a_full_filestore_says_nothing_of_its_limits(lab: Lab) -> None:
    """Else a daemon that starts on a full disk would end whatever has a limit there."""
    folder = lab.layout.filestore
    ballast = f"{folder}/ballast"
    try:
        _fill(ballast)
        os.truncate(ballast, os.path.getsize(ballast) - ROOM_BYTES)
        outcome = attempt(lambda: storage_proof.prove_quota(lab.layout))
    finally:
        os.unlink(ballast)
    assert isinstance(outcome, Unclear), outcome
    assert "no room on the filestore" in outcome.message
    assert os.listdir(folder) == []


def test_control_a_write_that_nothing_stops_is_a_definite_no(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_quota, "set_limits", lambda *_: None)
    monkeypatch.setattr(project_quota, "read", lambda *_: None)
    outcome = attempt(lambda: storage_proof.prove_quota(lab.layout))
    assert isinstance(outcome, Denied), outcome
    assert "was not stopped" in outcome.message
    assert os.listdir(lab.layout.filestore) == []
