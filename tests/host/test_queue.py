"""Waiting with the real daemon: a grant by a release, Ctrl-C, and a daemon that dies meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
WAIT = ("--wait-for-capacity", "5m")
SMALL = ("--runtime-class", "runc", "--request-cpu", "10m", "--request-memory", "64MiB")


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(max_sandboxes=2) as made:
        yield made


def hold(lab: DaemonLab) -> str:
    """Hold one of the two slots; return the run."""
    done = lab.axern("run", "--detach", *SMALL, "--", "sleep", "600")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.decode().strip()
    # One that is only starting would end with its daemon.
    wait_until(lambda: lab.request("GET", f"/v2/runs/{run_id}")["run"]["status"] == "running")
    return run_id


def waiting(lab: DaemonLab, count: int, limit_s: float = 30) -> list[dict[str, Any]]:
    """Wait until *count* wait, and return them."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        found: list[dict[str, Any]] = lab.request("GET", "/v2/queue")["tickets"]
        if len(found) == count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{len(found)} wait, not {count}")


def test_a_run_waits_for_a_release_and_then_runs(lab: DaemonLab) -> None:
    lab.start()
    first, _ = hold(lab), hold(lab)
    with lab.popen("run", *WAIT, *SMALL, "--", "sh", "-c", "echo done; exit 7") as run:
        (ticket,) = waiting(lab, 1)
        assert ticket["code"] == "runtime_slot_capacity_exhausted"
        listed = lab.axern("queue", "list")
        assert ticket["id"][:12].encode() in listed.stdout
        assert b"runtime slot" in lab.axern("queue", "inspect", ticket["id"]).stdout
        assert lab.request("GET", f"/v2/runs/{ticket['id']}")["run"]["status"] == "waiting"
        lab.request("DELETE", f"/v2/runs/{first}")
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (7, b"done\n"), err
        assert b"waiting, position 1: runtime slot capacity exhausted" in err
        assert f"Run: {ticket['id']}".encode() in err
    assert waiting(lab, 0) == []


def test_ctrl_c_leaves_the_queue_and_nothing_behind(lab: DaemonLab) -> None:
    lab.start()
    hold(lab), hold(lab)
    with lab.popen("run", *WAIT, *SMALL, "--", "true") as run:
        (ticket,) = waiting(lab, 1)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)
        assert run.returncode == 130
    assert waiting(lab, 0) == []
    assert lab.axern("run", "get", ticket["id"]).returncode == 5


def test_a_client_that_is_killed_gives_its_ticket_up(lab: DaemonLab) -> None:
    lab.start()
    hold(lab), hold(lab)
    with lab.popen("run", *WAIT, *SMALL, "--", "true") as run:
        waiting(lab, 1)
        run.kill()
        run.communicate(timeout=30)
    assert waiting(lab, 0) == []


def test_who_waits_survives_the_daemon_and_is_granted_by_the_next(lab: DaemonLab) -> None:
    process = lab.start()
    first, _ = hold(lab), hold(lab)
    with lab.popen("run", *WAIT, *SMALL, "--", "sh", "-c", "echo again") as run:
        (before,) = waiting(lab, 1)
        lab.kill(process)
        lab.start()
        (after,) = waiting(lab, 1)
        assert after["id"] == before["id"]
        time.sleep(3)  # it comes back within this, and is no more unattended
        lab.request("DELETE", f"/v2/runs/{first}")
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out) == (0, b"again\n"), err
