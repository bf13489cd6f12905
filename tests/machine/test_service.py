"""The shipped unit under real sandboxes: no end of the daemon ends one, no reload moves a limit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import LONG
from tests.machine.service import (
    UNIT,
    answers,
    axern,
    detach,
    limit_files,
    reservations,
    run_of,
    shown,
    systemctl,
    wait_for,
)

pytestmark = [pytest.mark.machine, pytest.mark.timeout(3000)]

TIMES = 30 if LONG else 3
SANDBOXES = 20 if LONG else 2


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[list[str]]:
    """Start sandboxes that live as long as this module's tests; they must all be gone after it."""
    ids = [
        detach("runsc" if number % 2 else "runc", "sh", "-c", "exec sleep 100000")
        for number in range(SANDBOXES)
    ]
    wait_for(lambda: all(run_of(run_id)["status"] == "running" for run_id in ids))
    yield ids
    for run_id in ids:
        axern("run", "cancel", run_id)
    wait_for(lambda: not reservations())


def daemon_pid() -> int:
    return int(shown("MainPID"))


def processes() -> set[str]:
    """Return every process of every sandbox, with the time of its start."""
    found = set()
    for folder, _, _ in os.walk(f"/sys/fs/cgroup{shown('ControlGroup')}/sandboxes"):
        with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
            for pid in file.read().split():
                with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                    found.add(f"{pid} {stat.read().rpartition(')')[2].split()[19]}")
    return found


def assert_same(ids: list[str], before: set[str]) -> None:
    """Hold that each sandbox lives on, in the same processes, and is charged."""
    assert {row["id"] for row in reservations()} == set(ids)
    assert [run_of(run_id)["status"] for run_id in ids] == ["running"] * len(ids)
    assert processes() >= before


def test_it_is_the_installed_one_under_its_own_control_group() -> None:
    assert systemctl("is-active", UNIT) == "active"
    pid = daemon_pid()
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:
        assert file.read().strip() == f"0::{shown('ControlGroup')}/daemon"
    assert os.readlink(f"/proc/{pid}/exe").startswith("/usr/")
    with open(f"/proc/{pid}/cmdline", "rb") as words:
        assert b"/usr/local/" in words.read()


def test_restarts_end_no_sandbox(sandboxes: list[str]) -> None:
    before, limits = processes(), limit_files()
    assert len(before) >= SANDBOXES
    for _ in range(TIMES):
        pid = daemon_pid()
        systemctl("restart", UNIT)
        assert daemon_pid() != pid
        assert_same(sandboxes, before)
    assert limit_files() == limits


def test_kills_end_no_sandbox(sandboxes: list[str]) -> None:
    before, limits = processes(), limit_files()
    for _ in range(TIMES):
        pid = daemon_pid()
        systemctl("reset-failed", UNIT)  # its limit of starts is for crashes without a cause
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: daemon_pid() not in {0, pid} and answers())  # type: ignore[misc]
        assert_same(sandboxes, before)
    assert limit_files() == limits


def test_a_reload_of_systemd_changes_no_limit(sandboxes: list[str]) -> None:
    before, limits = processes(), limit_files()
    assert any(path.endswith("memory.max") and text != "max\n" for path, text in limits.items())
    pid = daemon_pid()
    for _ in range(2):
        systemctl("daemon-reload")
    assert limit_files() == limits
    assert daemon_pid() == pid
    assert_same(sandboxes, before)
