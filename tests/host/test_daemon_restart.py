"""Daemons that stop or die while sandboxes run: nothing is lost, doubled or over-admitted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from axern import failpoint
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
AGREE_LIMIT_S = 10.0


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


@pytest.mark.parametrize("crash", [True, False])
def test_ten_sandboxes_outlive_their_daemon(lab: DaemonLab, *, crash: bool) -> None:
    daemon = lab.start()
    runs: dict[str, int | None] = {}
    for number in range(10):
        runtime = ("runc", "runsc")[number % 2]
        if number < 5:
            script, code = f"while [ ! -e /go ]; do sleep 0.2; done; exit {number}", None
        else:
            script, code = f"sleep {6 + number / 10}; exit {number}", number
        runs[lab.detach(runtime, "sh", "-c", script)] = code
    for run_id in runs:
        lab.wait_status(run_id, "running", "failed", "succeeded")
    before = {entry["id"]: entry for entry in lab.reservations()}
    if crash:
        lab.kill(daemon)
    else:
        assert lab.stop(daemon) == 0
    down = lab.axern("reservations", "list", "--format", "json")
    listed = json.loads(down.stdout)
    assert listed["source"] == "ledger-file"
    assert {entry["id"] for entry in listed["reservations"]} <= set(runs)
    time.sleep(8)
    lab.start()
    for run_id, code in runs.items():
        if code is None:
            assert lab.run(run_id)["status"] == "running"
            entry = lab.request("GET", f"/v2/reservations/{run_id}")["reservation"]
            assert entry["lane"] == before[run_id]["lane"]
        else:
            run = lab.wait_status(run_id, "failed", "succeeded")
            assert run["exit_code"] == code
    wait_until(lambda: len(lab.reservations()) == 5)


def test_a_foreground_run_carries_on_over_a_restart(lab: DaemonLab, runtime: str) -> None:
    daemon = lab.start()
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo line $i; sleep 0.5; done; exit 3"
    process = lab.popen("run", "--runtime-class", runtime, "--", "sh", "-c", script)
    wait_until(lambda: [e["phase"] for e in lab.reservations()] == ["running"])
    lab.kill(daemon)
    time.sleep(1)
    lab.start()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 3, stderr
    assert stdout == b"".join(b"line %d\n" % number for number in range(1, 13))


@pytest.mark.parametrize("name", [*failpoint.LAUNCH, *failpoint.BURY])
def test_a_death_at_any_step_is_made_good(lab: DaemonLab, runtime: str, name: str) -> None:
    daemon = lab.spawn(name)
    body = {
        "command": ["sh", "-c", "sleep 0.3; exit 7"],
        "runtime_class": runtime,
        "request_id": "once",
        "requests": {"cpu_milli": 10, "memory_bytes": 16 * 1024**2},
    }
    wait_until(lambda: _answers(lab))
    try:
        lab.request("POST", "/v2/runs", body)
    except Exception:  # noqa: BLE001 - the daemon may die before it answers
        acknowledged = False
    else:
        acknowledged = True
    assert daemon.wait(60) == -9, f"{name} was not reached"
    lab.start()
    began_s = time.monotonic()
    wait_until(lambda: lab.reservations() == [], AGREE_LIMIT_S)
    assert lab.leftovers() == []
    assert time.monotonic() - began_s < AGREE_LIMIT_S
    runs = lab.request("GET", "/v2/runs")["runs"]
    assert len(runs) == (1 if acknowledged else len(runs))
    for run in runs:
        assert run["status"] == "failed"
        assert run["exit_code"] in (7, None)
        if run["exit_code"] is None:
            assert run["diagnostic_code"] == "runtime-start-error"
    retried = lab.request("POST", "/v2/runs", body)["run"]
    if runs:
        assert retried["id"] == runs[0]["id"]
    lab.wait_empty()


def test_a_second_daemon_names_the_first_and_leaves(lab: DaemonLab) -> None:
    first = lab.start()
    second = lab.spawn()
    assert second.wait(60) == 75
    assert f"{first.pid}" in lab.log()
    assert lab.request("GET", "/v2/health")["status"] == "ok"


def test_with_the_daemon_down_run_refuses_without_a_trace(lab: DaemonLab) -> None:
    lab.stop(lab.start())
    before = lab.axern("reservations", "list", "--format", "json").stdout
    done = lab.axern("run", "--", "true")
    assert done.returncode == 125
    assert b"daemon_unreachable" in done.stderr
    assert lab.axern("reservations", "list", "--format", "json").stdout == before


def _answers(lab: DaemonLab) -> bool:
    try:
        lab.request("GET", "/v2/health")
    except Exception:  # noqa: BLE001 - not yet
        return False
    return True
