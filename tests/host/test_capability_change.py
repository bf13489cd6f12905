"""A runtime's program that is replaced while a daemon runs and a sandbox of it lives."""

from __future__ import annotations

import os
import shutil

import pytest

from axern.runtime.configured import layout_of
from axern.settings import Settings
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
RUN = ("run", "--runtime-class", "runc", "--request-memory", "16MiB", "--", "true")
LIMIT_S = 30.0
"""A sweep every 5 s and what a busy machine adds."""


def standing(lab: DaemonLab) -> tuple[str, str]:
    found = lab.request("GET", "/v2/node")["node"]["capabilities"]
    (runc,) = (item for item in found if item["key"] == "runtime/runc")
    return runc["status"], runc["message"]


def replace(path: str, source: str) -> None:
    shutil.copy(source, f"{path}.new")
    os.chmod(f"{path}.new", 0o755)  # noqa: S103 - a program
    os.rename(f"{path}.new", path)


def test_a_replaced_program_is_proved_anew_and_ends_nothing() -> None:
    runc = layout_of(Settings.model_validate({})).runc
    with daemon_lab() as lab:
        mine = f"{lab.base}/runc"
        replace(mine, runc)
        with open(lab.config_path, "a", encoding="utf-8") as file:
            file.write(f'runc = "{mine}"\n')
        daemon = lab.start()
        run_id = lab.detach("runc", "sleep", "1000")
        lab.wait_status(run_id, "running")
        before = standing(lab)
        assert before[0] == "present"

        os.rename(mine, f"{mine}.away")
        wait_until(lambda: standing(lab)[0] == "absent", LIMIT_S)
        assert "is not there, or can't be executed" in standing(lab)[1]
        done = lab.axern(*RUN)
        assert b"capability runtime/runc is absent: " in done.stderr
        assert lab.run(run_id)["status"] == "running"

        replace(mine, f"{mine}.away")
        wait_until(lambda: standing(lab)[0] == "present", LIMIT_S)
        done = lab.axern(*RUN)
        assert done.returncode == 0, done.stderr
        assert lab.run(run_id)["status"] == "running"
        lab.stop(daemon)


def test_what_a_self_test_left_in_a_crash_is_buried_by_the_next_daemon() -> None:
    with daemon_lab() as lab:
        lab.stop(lab.start())
        paths = lab.layout.sandbox("probe-memory-runc-0123abcd")
        paths.workload.create()
        paths.monitor.create()
        for folder in (paths.folder, paths.store, paths.run_folder):
            os.makedirs(folder)
        lab.start()
        assert "buried what was left of 1 self-tests" in lab.log()
        assert not paths.wall.exists()
        assert not any(map(os.path.lexists, (paths.folder, paths.store, paths.run_folder)))
