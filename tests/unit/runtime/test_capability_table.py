"""What is tried on the host is tried by one process at a time, and waits for no other for long.

A lock belongs to an opened folder, so that one process may play both.
"""

from pathlib import Path

import pytest

from axern.errors import HostError
from axern.host import locks
from axern.host.capabilities import Unclear, attempt
from axern.host.cgroup import Hierarchies
from axern.runtime import capability_table
from axern.runtime.layout import Layout

MAKERS = ("cgroup/memory", "cgroup/pids", "cgroup/cpu", "filestore/overlay-upper")
"""What leaves something on the host while it is tried, under a name that is always the same."""


def layout(folder: Path) -> Layout:
    for name in ("run/exits", "filestore"):
        (folder / name).mkdir(parents=True)
    return Layout(
        state_dir=str(folder),
        run_dir=str(folder / "run"),
        filestore=str(folder / "filestore"),
        templates=str(folder),
        cgroup_root="axern",
        hierarchies=Hierarchies(str(folder / "cgroup"), ()),
    )


def test_while_another_process_tries_it_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capability_table, "_PROBE_TURN_S", 0.0)
    monkeypatch.setattr(capability_table, "_SELF_TEST_TURN_S", 0.0)
    here = layout(tmp_path)
    rows = {row.key: row for row in capability_table.table(here, enforced=True)}
    self_tests = tuple(key for key, row in rows.items() if row.is_self_test)
    assert len(self_tests) == 4
    for folder, keys in (
        (here.run_dir, (*MAKERS, "filestore/project-quota")),
        (here.exits, self_tests),
    ):
        with locks.alone_in(folder, 0):
            for key in keys:
                outcome = attempt(rows[key].probe)
                assert isinstance(outcome, Unclear), key
                assert "another process tries the same" in outcome.message
    with locks.alone_in(here.run_dir, 0), pytest.raises(HostError), locks.alone_in(here.run_dir, 0):
        pass


def test_a_folder_that_is_not_there_keeps_nobody_out(tmp_path: Path) -> None:
    with locks.alone_in(str(tmp_path / "run"), 0), locks.alone_in(str(tmp_path / "run"), 0):
        assert not (tmp_path / "run").exists()
