"""What the proof of a storage limit makes of a filestore without room, and of no limit at all."""

from __future__ import annotations

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


def test_a_full_filestore_says_nothing_of_its_limits(lab: Lab) -> None:
    """Else a daemon that starts on a full disk would end whatever has a limit there."""
    folder = lab.layout.filestore
    disk = os.statvfs(folder)
    ballast = f"{folder}/ballast"
    try:
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - ROOM_BYTES)
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
