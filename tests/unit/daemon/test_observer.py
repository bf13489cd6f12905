"""Readings of the host: one that can't be taken is told, and is nobody's end."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from axern.daemon.observer import Observer
from axern.errors import HostError
from axern.host import inventory
from axern.host.capabilities import Snapshot
from axern.runtime.configured import layout_of
from axern.settings import Settings


def test_a_host_that_can_not_be_read_is_an_error_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while no descriptor is left: whoever asks goes on with what was seen last."""
    settings = Settings.model_validate(
        {
            "state_dir": str(tmp_path),
            "run_dir": str(tmp_path / "run"),
            "cgroup_enforcement": "disabled_dev",
        }
    )
    observer = Observer(settings, layout_of(settings), lambda: Snapshot(1, ()))
    (tmp_path / "filestore").mkdir()
    facts, _ = observer.observe()

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc/meminfo")

    monkeypatch.setattr(inventory, "observe_capacity", refuse)
    with pytest.raises(HostError, match="the host can't be read: Too many open files") as caught:
        observer.observe()
    assert caught.value.path == "/proc/meminfo"
    assert observer.facts is facts
