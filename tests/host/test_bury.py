"""Whatever a workload does and wherever a crash strikes: one burial later nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from axern import failpoint
from axern.errors import NotProvedGone
from axern.host import mounts
from axern.runtime import launch, monitor, teardown
from axern.runtime.oci import SandboxSpec
from tests.host.conftest import Lab, wait_until
from tests.host.killing import kill_inside_create

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[2]
KILLS = 1_000 if os.environ.get("AXERN_LONG") == "1" else 20
LIMIT_S = 3_600 if KILLS > 20 else 300
IGNORES_TERM = "trap '' TERM; echo up; while true; do sleep 1; done"
FORKS = (
    "trap '' TERM; f() { sleep 600 & }; "
    "for i in $(seq 40); do f; setsid sleep 600 & done; echo up; wait"
)
# The daemon's own steps; what they leave is its tests' business.
ELSEWHERE = {
    "launch.spec",
    "launch.reserved",
    "launch.starting",
    "launch.running",
    "bury.exit_record",
    "bury.released",
}


def start_victim(
    lab: Lab, spec: SandboxSpec, action: str, dies_at: str = ""
) -> subprocess.Popen[bytes]:
    layout = lab.layout
    words = {
        "layout": {
            "state_dir": layout.state_dir,
            "run_dir": layout.run_dir,
            "filestore": layout.filestore,
            "templates": layout.templates,
            "cgroup_root": layout.cgroup_root,
        },
        "spec": {
            "sandbox_id": spec.sandbox_id,
            "runtime": spec.runtime,
            "argv": spec.argv,
            "cwd": spec.cwd,
            "rootfs": spec.rootfs,
            "rootfs_readonly": spec.rootfs_readonly,
            "lane": spec.lane,
            "hostname": spec.hostname,
        },
    }
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.host.victim", action],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {failpoint.VARIABLE: dies_at},
    )
    assert victim.stdin is not None
    victim.stdin.write(json.dumps(words).encode())
    victim.stdin.close()
    return victim


def test_a_stopped_workload_may_end_by_itself(lab: Lab, runtime: str) -> None:
    script = "trap 'echo bye; exit 5' TERM; echo up; while true; do sleep 0.1; done"
    spec = lab.spec(runtime, "sh", "-c", script)
    lab.launch(spec)
    wait_until(lambda: lab.outputs(spec)["stdout"] == b"up\n")
    teardown.stop(runtime, lab.layout, spec.sandbox_id, grace_s=60)
    outcome = lab.finish(spec)
    assert (outcome.exit_code, outcome.stdout) == (5, b"up\nbye\n")


@pytest.mark.parametrize("script", [IGNORES_TERM, FORKS], ids=["ignores TERM", "forks"])
def test_a_workload_that_will_not_end_is_killed(lab: Lab, runtime: str, script: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", script)
    lab.launch(spec)
    wait_until(lambda: lab.outputs(spec)["stdout"] == b"up\n")
    began_s = time.monotonic()
    teardown.stop(runtime, lab.layout, spec.sandbox_id, grace_s=0.3)
    assert time.monotonic() - began_s >= 0.3
    assert lab.finish(spec).exit_code == 137
    assert lab.leftovers() == []


def test_a_burial_needs_no_stop_before(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", FORKS)
    lab.launch(spec)
    wait_until(lambda: lab.outputs(spec)["stdout"] == b"up\n")
    evidence = lab.bury(spec)
    assert evidence.exit_code == 137
    assert evidence.killed > 1
    assert len(evidence.unmounted) == 1
    assert lab.leftovers() == []


def test_a_storm_of_forks_is_buried(lab: Lab) -> None:
    script = "for i in $(seq 60); do (while true; do /bin/true; done) & done; exec sleep 600"
    spec = lab.spec("runc", "sh", "-c", script)
    lab.launch(spec)
    wait_until(lambda: len(lab.layout.sandbox(spec.sandbox_id).wall.pids()) > 50)
    assert lab.bury(spec).exit_code == 137
    assert lab.leftovers() == []


def test_a_second_burial_finds_nothing(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "true")
    assert lab.run(spec).evidence.removed
    again = lab.bury(spec)
    assert (again.killed, again.unmounted, again.removed) == (0, (), ())
    assert again.exit_code == 0
    monitor.discard_exit(lab.layout.sandbox(spec.sandbox_id))
    assert lab.bury(spec).exit_code is None


@pytest.mark.parametrize("text", [b"", b"x", b"\xff"])
def test_a_damaged_exit_file_holds_up_no_burial(lab: Lab, text: bytes) -> None:
    spec = lab.spec("runc", "sleep", "600")
    lab.launch(spec)
    lab.bury(spec)
    Path(lab.layout.sandbox(spec.sandbox_id).exit_file).write_bytes(text)
    assert lab.bury(spec).exit_code is None


def test_a_created_sandbox_that_never_starts_is_buried(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "true")
    launch.create(spec, lab.layout)
    assert lab.bury(spec).killed >= 1
    assert lab.leftovers() == []


def test_the_exit_and_the_log_survive_the_burial(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", "echo kept; exit 9")
    lab.run(spec)
    ended = monitor.read_exit(lab.layout.sandbox(spec.sandbox_id))
    assert ended is not None
    assert ended.exit_code == 9
    assert abs(ended.ended_at_ms / 1000 - time.time()) < 300
    assert lab.outputs(spec)["stdout"] == b"kept\n"


def test_a_lost_monitor_leaves_no_exit_but_no_trace_either(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sleep", "600")
    created = launch.create(spec, lab.layout)
    launch.start(spec, lab.layout)
    os.kill(created.monitor.pid, signal.SIGKILL)
    assert lab.bury(spec).exit_code is None
    assert lab.leftovers() == []


@pytest.mark.parametrize("step", [n for n in failpoint.LAUNCH if n not in ELSEWHERE])
def test_a_crash_at_any_step_of_a_launch_is_buried(lab: Lab, runtime: str, step: str) -> None:
    spec = lab.spec(runtime, "sleep", "600")
    assert start_victim(lab, spec, "launch", step).wait(120) == -signal.SIGKILL
    lab.bury(spec)
    assert lab.leftovers() == []
    # A monitor that was still on its way must not have come back after the burial.
    time.sleep(0.3)
    assert lab.leftovers() == []


@pytest.mark.parametrize("step", [n for n in failpoint.BURY if n not in ELSEWHERE])
def test_a_crash_at_any_step_of_a_burial_is_buried(lab: Lab, runtime: str, step: str) -> None:
    spec = lab.spec(runtime, "sh", "-c", "sleep 600 & sleep 600")
    lab.launch(spec)
    assert start_victim(lab, spec, "bury", step).wait(120) == -signal.SIGKILL
    assert lab.bury(spec).exit_code == 137
    assert lab.leftovers() == []


@pytest.mark.timeout(LIMIT_S)
def test_a_runtime_killed_inside_create_leaves_nothing(lab: Lab, runtime: str) -> None:
    """The runtime's own `delete` would leave folders and control groups in most of these."""
    chance = random.Random(4711)
    for _ in range(KILLS):
        spec = lab.spec(runtime, "true")
        kill_inside_create(lab, spec, chance.random())
        lab.bury(spec)
    assert lab.leftovers() == []


@pytest.mark.timeout(LIMIT_S)
def test_a_burial_during_a_launch_wins(lab: Lab, runtime: str) -> None:
    chance = random.Random(4712)
    for _ in range(KILLS):
        spec = lab.spec(runtime, "sleep", "600")
        victim = start_victim(lab, spec, "launch")
        wait_until(lambda spec=spec: os.path.exists(lab.layout.sandbox(spec.sandbox_id).folder))  # type: ignore[misc]
        time.sleep(chance.random() * 0.1)
        victim.kill()
        victim.wait()
        lab.bury(spec)
    time.sleep(0.3)
    assert lab.leftovers() == []


def test_what_can_not_be_removed_is_named(lab: Lab, runtime: str) -> None:
    spec = lab.spec(runtime, "sleep", "600")
    lab.launch(spec)
    paths = lab.layout.sandbox(spec.sandbox_id)
    held_fd = os.open(paths.rootfs, os.O_RDONLY)
    patience_s, teardown.REMOVE_TIMEOUT_S = teardown.REMOVE_TIMEOUT_S, 0.2
    try:
        with pytest.raises(NotProvedGone) as caught:
            lab.bury(spec)
        assert any(paths.rootfs in text for text in caught.value.leftovers)
        assert paths.wall.pids() == ()
        assert mounts.mounts_below(paths.folder) == (paths.rootfs,)
    finally:
        os.close(held_fd)
        teardown.REMOVE_TIMEOUT_S = patience_s
    assert lab.bury(spec).exit_code == 137
