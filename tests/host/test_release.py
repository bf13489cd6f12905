"""Releases of real sandboxes: through a daemon, and under its locks after it was killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from axern import failpoint
from axern.errors import DaemonUnreachable
from axern.runtime import offline
from axern.runtime.configured import sole_user_of
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

STUBBORN = ("sh", "-c", "trap '' TERM; while :; do sleep 0.2; done")
FORCE = ("--force", "--reason", "the host goes down")
STEPS = (*failpoint.RELEASE, *(name for name in failpoint.BURY if name != "bury.begin"))
SHORT = ("release.stopped", "bury.exit_record", "bury.killed", "bury.released")


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(stop_grace="300ms") as made:
        yield made


def release(lab: DaemonLab, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        lab.argv("reservations", "release", *words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, **variables},
    )


def outcome(lab: DaemonLab, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = release(lab, *words, "-o", "json")
    return done.returncode, json.loads(done.stdout)["results"]


def begin(lab: DaemonLab, runtime: str, *argv: str) -> str:
    run_id = lab.detach(runtime, *argv)
    lab.wait_status(run_id, "running")
    return run_id


def phases(lab: DaemonLab) -> dict[str, str]:
    listed = lab.axern("reservations", "list", "-o", "json")
    return {row["id"]: row["phase"] for row in json.loads(listed.stdout)["reservations"]}


def test_through_the_daemon(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    run_id = begin(lab, runtime, *STUBBORN)
    lease = lab.request("POST", "/v2/reservations", {"requests": {"cpu_milli": 5}})
    lease_id = lease["reservation"]["id"]
    refused = release(lab, run_id, lease_id)
    assert refused.returncode == 5
    assert b"is running since" in refused.stderr
    assert lease_id.encode() in refused.stdout
    assert set(phases(lab)) == {run_id}
    code, (first,) = outcome(lab, run_id[:9], *FORCE)
    assert (code, first["reservation"]["phase"], first["error"]) == (0, "released", None)
    assert not first["released"]["already"]
    assert "nothing left" in first["released"]["evidence"]
    assert lab.reservations() == []
    assert lab.leftovers() == []
    code, (again, other) = outcome(lab, run_id, lease_id)
    assert code == 0
    assert again["released"] | {"already": False} == first["released"] | {
        "at": again["released"]["at"]
    }
    assert other["released"]["already"]
    run = lab.run(run_id)
    assert (run["status"], run["message"]) == (
        "cancelled",
        "released by uid 0: the host goes down",
    )


def test_never_beside_a_daemon(lab: DaemonLab) -> None:
    daemon = lab.start()
    run_id = begin(lab, "runc", "sleep", "600")
    argv = lab.argv("--socket", f"{lab.base}/nobody", "reservations", "release", run_id, *FORCE)
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"axernd, process {daemon.pid}".encode() in done.stderr
    assert phases(lab) == {run_id: "running"}


def test_no_daemon_starts_beside_an_offline_release(lab: DaemonLab) -> None:
    with sole_user_of(lab.layout.run_dir, offline.HOLDER):
        assert lab.spawn().wait(60) == 75
    assert f"{offline.HOLDER}, process {os.getpid()}" in lab.log()


def test_offline_what_has_ended_needs_no_force(lab: DaemonLab, runtime: str) -> None:
    daemon = lab.start()
    ended = begin(lab, runtime, "sh", "-c", "sleep 1.5; exit 7")
    lab.kill(daemon)
    wait_until(lambda: os.path.exists(f"{lab.layout.exits}/{ended}"))
    obstacle = f"{lab.layout.runs}/{ended}/exit.json.new"
    os.mkdir(obstacle)
    code, (refused,) = outcome(lab, ended)
    assert (code, refused["error"]["code"]) == (1, "busy")
    assert obstacle in refused["error"]["message"]
    assert set(phases(lab)) == {ended}
    os.rmdir(obstacle)
    code, (done,) = outcome(lab, ended)
    assert (code, done["released"]["already"]) == (0, False)
    assert phases(lab) == {}
    assert lab.leftovers() == []
    lab.start()
    run = lab.run(ended)
    assert (run["status"], run["exit_code"]) == ("failed", 7)


@pytest.mark.parametrize(
    "steps", [SHORT, pytest.param(STEPS, marks=pytest.mark.long)], ids=["short", "all"]
)
def test_offline_a_death_at_any_step_is_made_good(
    lab: DaemonLab, runtime: str, steps: tuple[str, ...]
) -> None:
    if steps == SHORT and runtime == "runsc":
        steps = SHORT[2:]
    daemon = lab.start()
    runs = {name: begin(lab, runtime, *STUBBORN) for name in steps}
    lab.kill(daemon)
    refused = release(lab, *runs.values())
    assert refused.returncode == 5
    assert set(phases(lab).values()) == {"running"}
    for name, run_id in runs.items():
        dead = release(lab, run_id, *FORCE, "--grace", "0s", AXERN_FAILPOINT=name)
        assert dead.returncode == -signal.SIGKILL, (name, dead)
        # Whatever it had done, the charge is there until the proof is.
        assert (run_id in phases(lab)) == (name != "bury.released")
    # Whoever goes on with it needs no force, and the first reason stays.
    code, results = outcome(lab, *runs.values(), "--grace", "0s")
    assert code == 0, results
    for name, each in zip(runs, results, strict=True):
        # What died behind the release had only its exit file left.
        assert ("the host goes down" in each["released"]["evidence"]) == (name != "bury.released")
    assert phases(lab) == {}
    assert lab.leftovers() == []
    assert not os.listdir(lab.layout.exits)
    assert lab.axern("reservations", "doctor").returncode == 0
    code, again = outcome(lab, *runs.values())
    assert code == 0
    assert all(result["released"]["already"] for result in again)
    lab.start()
    for run_id in runs.values():
        run = lab.run(run_id)
        assert run["status"] == "cancelled"
        assert "the host goes down" in run["message"]


@pytest.mark.parametrize(
    ("name", "runs", "status", "codes"),
    [
        ("launch.reserved", False, "cancelled", (None,)),
        pytest.param("launch.bundle", False, "failed", (None,), marks=pytest.mark.long),
        ("launch.created", True, "cancelled", (2, 137)),
        ("bury.exit_record", False, "failed", (7,)),
        pytest.param("bury.unmounted", False, "failed", (7,), marks=pytest.mark.long),
    ],
)
def test_offline_whatever_the_daemon_had_begun(
    lab: DaemonLab, name: str, *, runs: bool, status: str, codes: tuple[int | None, ...]
) -> None:
    daemon = lab.spawn(name)
    wait_until(lambda: os.path.exists(lab.socket))
    body = {"command": ["sh", "-c", "exit 7"], "runtime_class": "runc"}
    with contextlib.suppress(DaemonUnreachable):
        lab.request("POST", "/v2/runs", body)
    assert daemon.wait(60) == -signal.SIGKILL
    (run_id,) = phases(lab)
    if runs:
        assert release(lab, run_id).returncode == 5
    code, (done,) = outcome(lab, run_id, *(FORCE if runs else ()))
    assert (code, done["error"]) == (0, None)
    assert phases(lab) == {}
    assert lab.leftovers() == []
    lab.start()
    run = lab.run(run_id)
    assert run["status"] == status
    # A created runtime ends by TERM with 2, or by KILL; the workload itself never ran.
    assert run["exit_code"] in codes
