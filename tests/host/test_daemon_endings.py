"""Ends that nobody wishes for: storms, stuck and lost monitors, cancels, deadlines."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
SMALL = {"cpu_milli": 10, "memory_bytes": 16 * 1024**2}
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1; done"


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(launch_workers=2) as made:
        yield made


def begin(lab: DaemonLab, runtime: str, script: str, **fields: Any) -> str:
    body = {"command": ["sh", "-c", script], "runtime_class": runtime, "requests": SMALL, **fields}
    run_id: str = lab.request("POST", "/v2/runs", body)["run"]["id"]
    return run_id


def monitor_pid(lab: DaemonLab, run_id: str) -> int:
    (pid,) = lab.layout.sandbox(run_id).monitor.pids()
    return pid


def wait_ready(lab: DaemonLab, run_id: str) -> None:
    log = lab.layout.sandbox(run_id).log
    wait_until(lambda: os.path.exists(log) and os.path.getsize(log) > 0)


def test_a_crash_in_a_launch_storm_costs_at_most_what_was_half_launched(lab: DaemonLab) -> None:
    daemon = lab.start()
    runs = {begin(lab, ("runc", "runsc")[n % 2], f"exit {n}"): n for n in range(1, 13)}
    lab.kill(daemon)
    lab.start()
    lost = 0
    for run_id, code in runs.items():
        run = lab.wait_status(run_id, "failed")
        assert run["exit_code"] in (code, None)
        lost += run["exit_code"] is None
    assert lost <= 2


def test_a_stop_in_a_launch_storm_costs_nothing(lab: DaemonLab) -> None:
    daemon = lab.start()
    runs = {begin(lab, ("runc", "runsc")[n % 2], f"exit {n}"): n for n in range(1, 13)}
    began_s = time.monotonic()
    assert lab.stop(daemon) == 0
    assert time.monotonic() - began_s < 20
    lab.start()
    for run_id, code in runs.items():
        assert lab.wait_status(run_id, "failed")["exit_code"] == code


def test_a_stuck_monitor_holds_up_no_end(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    run_id = begin(lab, runtime, "sleep 100")
    lab.wait_status(run_id, "running")
    os.kill(monitor_pid(lab, run_id), signal.SIGSTOP)
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    run = lab.wait_status(run_id, "cancelled")
    assert run["exit_code"] is None
    lab.wait_empty()
    assert lab.leftovers() == []


def test_a_lost_monitor_ends_the_run_and_says_so(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    run_id = begin(lab, runtime, "sleep 100")
    lab.wait_status(run_id, "running")
    os.kill(monitor_pid(lab, run_id), signal.SIGKILL)
    run = lab.wait_status(run_id, "failed")
    assert (run["diagnostic_code"], run["exit_code"]) == ("monitor-lost", None)
    lab.wait_empty()
    assert lab.leftovers() == []


def test_a_monitor_lost_in_a_long_grace_is_noticed(lab: DaemonLab) -> None:
    lab.start()
    run_id = begin(lab, "runc", STUBBORN)
    wait_ready(lab, run_id)
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=3600000")
    lab.wait_status(run_id, "stopping")
    os.kill(monitor_pid(lab, run_id), signal.SIGKILL)
    lab.wait_status(run_id, "cancelled")
    lab.wait_empty()


def test_a_cancel_outlives_the_daemon(lab: DaemonLab, runtime: str) -> None:
    daemon = lab.start()
    ended, alive = begin(lab, runtime, STUBBORN), begin(lab, runtime, STUBBORN)
    for run_id in (ended, alive):
        wait_ready(lab, run_id)
        lab.wait_status(run_id, "running")
        lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=3600000")
    lab.kill(daemon)
    lab.layout.sandbox(ended).wall.kill()
    wait_until(lambda: os.path.exists(lab.layout.sandbox(ended).exit_file))
    lab.start()
    for run_id in (ended, alive):
        run = lab.wait_status(run_id, "cancelled")
        assert run["exit_code"] == 137


def test_a_deadline_ends_a_run(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    run_id = begin(lab, runtime, "sleep 100", ttl_ms=2_000)
    run = lab.wait_status(run_id, "failed")
    assert run["diagnostic_code"] == "expired"
    lab.wait_empty()


def test_a_time_limit_counts_running_time_and_outlives_the_daemon(runtime: str) -> None:
    with daemon_lab(tick="60s") as lab:  # the alarm is to the second, not the tick
        daemon = lab.start()
        run_id = begin(lab, runtime, STUBBORN, timeout_ms=3_000, ttl_ms=3_600_000)
        wait_ready(lab, run_id)
        lab.wait_status(run_id, "running")
        running_s = time.monotonic()
        lab.kill(daemon)
        lab.start()
        lab.wait_status(run_id, "stopping")
        assert 1.5 < time.monotonic() - running_s < 30
        run = lab.wait_status(run_id, "failed")
        assert (run["diagnostic_code"], run["exit_code"], run["cli_exit_code"]) == (
            "timeout",
            137,
            124,
        )


def test_what_ended_in_time_while_nobody_watched_was_not_out_of_time(lab: DaemonLab) -> None:
    daemon = lab.start()
    run_id = begin(lab, "runc", "sleep 0.5; exit 3", timeout_ms=2_000)
    lab.wait_status(run_id, "running")
    os.kill(daemon.pid, signal.SIGSTOP)
    wait_until(lambda: os.path.exists(lab.layout.sandbox(run_id).exit_file))
    time.sleep(2)
    os.kill(daemon.pid, signal.SIGCONT)
    run = lab.wait_status(run_id, "failed")
    assert (run["diagnostic_code"], run["cli_exit_code"]) == ("process-exited", 3)


def test_out_of_time_before_the_start_says_so(lab: DaemonLab) -> None:
    lab.start()
    done = lab.axern("run", "--ttl", "1ms", "-o", "json", "--", "true")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"], error["diagnostic_code"]) == (
        124,
        "run_stopped",
        "expired",
    )
    assert b"(ttl) was over [run_stopped]" in done.stderr


def test_a_cancel_of_what_still_waits_for_its_launch_needs_no_launch(lab: DaemonLab) -> None:
    lab.start()
    runs = [begin(lab, "runsc", "exit 1") for _ in range(8)]
    lab.request("DELETE", f"/v2/runs/{runs[-1]}")
    run = lab.wait_status(runs[-1], "cancelled")
    assert (run["exit_code"], run["started_at"]) == (None, None)
    lab.wait_empty()


def test_a_cancel_stays_a_cancel_past_the_deadline(lab: DaemonLab) -> None:
    daemon = lab.start()
    run_id = begin(lab, "runc", STUBBORN, ttl_ms=3_000)
    wait_ready(lab, run_id)
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=3600000")
    lab.kill(daemon)
    time.sleep(3)
    lab.start()
    assert lab.wait_status(run_id, "cancelled")["exit_code"] == 137


def test_a_runtime_that_hangs_holds_up_no_kill(lab: DaemonLab) -> None:
    lab.start()
    run_id = begin(lab, "runsc", "sleep 100")
    lab.wait_status(run_id, "running")
    for pid in lab.layout.sandbox(run_id).wall.pids():
        os.kill(pid, signal.SIGSTOP)
    began_s = time.monotonic()
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=500")
    lab.wait_status(run_id, "cancelled")
    assert time.monotonic() - began_s < 8
