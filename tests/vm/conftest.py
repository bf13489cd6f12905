"""Starts the machine job as soon as a session begins that waits for its results."""

from __future__ import annotations

import os
import shutil
import sys
import time

import pytest

from tests.vm.guest import start_detached
from tests.vm.job import LOGS, LONG
from tests.vm.results import Results, read_results

JOB_LIMIT_S = 9000.0 if LONG else 3600.0
LAUNCHED = LOGS.parent / "vm.launched"
"""The session that the job belongs to, and the job's process."""


def session_name(config: pytest.Config) -> str:
    """Return what all workers of this session have in common."""
    given = getattr(config, "workerinput", {})
    return str(given.get("testrunuid", os.getpid()))


def is_first_worker(config: pytest.Config) -> bool:
    """Say whether this process is the one that starts the job."""
    given = getattr(config, "workerinput", {})
    return str(given.get("workerid", "gw0")) == "gw0"


@pytest.hookimpl(trylast=True)  # after the shuffle
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what waits for the job last, so that it has time."""
    items.sort(key=lambda item: item.get_closest_marker("vm_job") is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the job at once, in a process that ends itself when this session does."""
    waits = any(item.get_closest_marker("vm_job") for item in session.items)
    if not waits or session.config.option.collectonly or not is_first_worker(session.config):
        return
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    owner = os.getppid() if hasattr(session.config, "workerinput") else os.getpid()
    with open(LOGS / "job.err", "wb") as log:
        argv = [sys.executable, "-m", "tests.vm.job", str(LOGS), str(owner)]
        pid = start_detached(argv, log)
    LAUNCHED.with_suffix(".new").write_text(
        f"{session_name(session.config)} {pid}", encoding="ascii"
    )
    LAUNCHED.with_suffix(".new").replace(LAUNCHED)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Results:
    """Wait for the job of this session and return what it brought home."""
    deadline_s = time.monotonic() + JOB_LIMIT_S
    while time.monotonic() < deadline_s:
        launched = LAUNCHED.read_text(encoding="ascii").split() if LAUNCHED.exists() else ["", ""]
        if launched[0] == session_name(request.config):
            if (LOGS / "result").exists():
                return read_results(LOGS)
            if not os.path.exists(f"/proc/{launched[1]}"):
                break
        time.sleep(0.5)
    return read_results(LOGS)
