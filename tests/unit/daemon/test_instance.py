"""What a crash has left of self-tests and of limits keeps no daemon from serving."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from axern.daemon import instance
from axern.errors import CapabilityMissing, HostError, NotProvedGone, QuotaError
from axern.host import project_quota
from axern.host.cgroup import Hierarchies
from axern.runtime import teardown
from axern.runtime.layout import Layout
from tests.unit.daemon.rig import Rig, play


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CapabilityMissing("none here", syscall="quotactl_fd"), False),
        (QuotaError("Input/output error", syscall="quotactl_fd"), True),
    ],
)
def test_limits_that_cannot_be_cleared_are_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: HostError,
    *,
    told: bool,
) -> None:
    def refuse(_: str) -> None:
        raise error

    async def story(rig: Rig) -> None:
        assert instance.clear_quotas(rig.ledger.state, rig.parts.layout) == 0
        assert ("Input/output error" in caplog.text) is told

    monkeypatch.setattr(project_quota, "require_enforced", refuse)
    play(tmp_path, story)


def test_a_self_test_that_resists_is_told_and_the_next_is_buried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = str(tmp_path)
    layout = Layout(place, place, f"{place}/filestore", place, "axern", Hierarchies(place, ()))
    for name in ("probe-memory-runc-01234567", "probe-storage-runc", "ab" * 16, "probe"):
        (tmp_path / "filestore" / name).mkdir(parents=True)

    def bury(_: str, layout: Layout, name: str) -> None:
        if "storage" not in name:
            raise NotProvedGone(name, ["process 7"])
        shutil.rmtree(layout.sandbox(name).store, ignore_errors=True)

    monkeypatch.setattr(teardown, "bury", bury)
    assert instance.bury_probes(layout) == 1
    assert "probe-memory-runc-01234567 is not proved gone: process 7" in caplog.text
    assert sorted(os.listdir(layout.filestore)) == [
        "ab" * 16,
        "probe",
        "probe-memory-runc-01234567",
    ]
