"""A daemon that enforces: limits asked for on the command line, verdicts, and what it guards."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from axern.host import cgroup_files, cgroup_tree
from tests.conftest import LONG
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.host.test_limits import BOMB, HOG, LIMIT_BYTES, MIB

pytestmark = [pytest.mark.host, pytest.mark.machine, pytest.mark.timeout(3600)]

PROOF_LIMIT_S = 600.0
ENDINGS = 200 if LONG else 20
RUNTIMES = ("runc", "runc", "runc", "runsc") if LONG else ("runc",)
"""Taken in turn; emulated, gVisor takes three times as long."""
KEYS = {"limit/cpu", "limit/pids"}
PROVED: set[str] = set()
SLEEP = ("sleep", "1000")
LIMITS = {"memory_bytes": LIMIT_BYTES}
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB", "--rootfs-readonly")


@pytest.fixture(scope="module")
def stage() -> Iterator[DaemonLab]:
    """One daemon for the whole file, since its proofs take a while; it has proved everything."""
    with daemon_lab(cgroup_enforcement="required") as lab:
        lab.start()
        yield lab


def prove(lab: DaemonLab, runtime: str) -> None:
    """Wait until the daemon has proved the limits of *runtime*, for the first test that asks.

    The daemons after it keep the proofs.
    """

    def is_proved() -> bool:
        found = lab.request("GET", "/v2/node")["node"]["capabilities"]
        present = {item["key"] for item in found if item["status"] == "present"}
        return present >= {*KEYS, f"limit/memory/{runtime}"}

    if runtime not in PROVED:
        wait_until(is_proved, PROOF_LIMIT_S)
        PROVED.add(runtime)


def run(lab: DaemonLab, runtime: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Run in the foreground and return the exit code and the run's object."""
    prove(lab, runtime)
    done = lab.axern("run", "--runtime-class", runtime, *SMALL, *words, limit_s=900)
    run_id = done.stderr.decode().partition("Run: ")[2][:32]
    assert run_id, done.stderr
    return done.returncode, lab.run(run_id)


def detach(
    lab: DaemonLab,
    runtime: str,
    *argv: str,
    requests: dict[str, int] | None = None,
    limits: dict[str, int] | None = None,
    timeout_ms: int | None = None,
) -> str:
    """Start a small run as the command line would: a program for each costs seconds, emulated."""
    prove(lab, runtime)
    body = {
        "command": list(argv),
        "runtime_class": runtime,
        "rootfs_readonly": True,
        "requests": {"cpu_milli": 10, "memory_bytes": 16 * MIB} | (requests or {}),
        "limits": limits or {},
        "timeout_ms": timeout_ms,
    }
    return str(lab.request("POST", "/v2/runs", body)["run"]["id"])


def test_who_takes_too_much_memory_is_told_so(stage: DaemonLab, runtime: str) -> None:
    code, ended = run(stage, runtime, "--limit-memory", "128MiB", "--", *HOG)
    assert code == 137
    assert (ended["status"], ended["exit_code"]) == ("failed", 137)
    assert ended["diagnostic_code"] == "memory-limit-exceeded"
    assert ended["message"].startswith("out of memory: its limit of 128MiB was reached")
    assert ended["enforced"]
    assert ended["enforced_limits"]["memory_bytes"] == LIMIT_BYTES


def test_a_limit_on_cpu_reads_as_asked_for(stage: DaemonLab, quick_runtime: str) -> None:
    prove(stage, quick_runtime)
    words = ("run", "-d", "--runtime-class", quick_runtime, *SMALL, "--limit-cpu")
    for text, held in (("1500m", "150000 100000"), ("50m", "5000 100000")):
        done = stage.axern(*words, text, "--", *SLEEP, limit_s=900)
        run_id = done.stdout.decode().strip()
        stage.wait_status(run_id, "running", limit_s=900)
        wall = stage.layout.sandbox(run_id).wall
        assert cgroup_files.mismatches(wall, {"cpu.max": held}) == ()
        stage.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    done = stage.axern("run", *SMALL, "--request-cpu", "4m", "--limit-cpu", "4m", "--", "true")
    assert done.returncode == 125
    assert b"below the smallest limit, 5m" in done.stderr


def test_a_fork_bomb_ends_with_its_run(stage: DaemonLab, quick_runtime: str) -> None:
    """The host stays able to answer, and nothing is left when the run is cancelled."""
    bound = {"memory_bytes": 512 * MIB}
    run_id = detach(stage, quick_runtime, *BOMB, limits=bound, timeout_ms=20_000)
    stage.wait_status(run_id, "failed", limit_s=900)
    stage.wait_empty(300)
    assert stage.leftovers() == []


def test_a_daemon_that_dies_on_the_way_gives_the_same_verdict(stage: DaemonLab) -> None:
    """From the exit to its record the counters are what is asked, whoever asks."""
    assert stage.stop(stage.processes[-1]) == 0
    first = stage.start("bury.exit_record")
    run_id = detach(stage, "runc", *HOG, limits=LIMITS)
    assert first.wait(900) == -9
    second = stage.spawn("bury.begin")  # which it comes to by itself
    assert second.wait(900) == -9
    stage.start()
    ended = stage.wait_status(run_id, "failed", limit_s=900)
    assert ended["diagnostic_code"] == "memory-limit-exceeded"


def test_memory_in_use_refuses_what_promises_alone_would_admit(stage: DaemonLab) -> None:
    node = stage.request("GET", "/v2/node")["node"]
    rooms = {row["name"]: row for row in node["dimensions"]}
    room = rooms["memory_bytes"]["effective_allocatable"]
    wall = stage.layout.root.child("sandboxes")
    assert cgroup_files.read_number(wall, "memory.max") == room // 4096 * 4096
    fill = f"dd if=/dev/zero of=/dev/shm/x bs={48 * MIB} count=1; echo full; exec sleep 1000"
    holder = detach(stage, "runc", "sh", "-c", fill)
    wait_until(lambda: (cgroup_tree.memory_in_use_bytes(stage.layout.root) or 0) > 48 * MIB, 600)
    wanted = str(room - 16 * MIB - 4096)  # all that is not promised to the holder
    refused = stage.axern(
        "run", "-o", "json", "--rootfs-readonly", "--request-memory", wanted, "true"
    )
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "node_memory_capacity_exhausted"
    assert [each["gate"] for each in error["shortfalls"]] == ["node-memory-use"]
    stage.request("DELETE", f"/v2/runs/{holder}?grace_ms=0")
    stage.wait_empty(300)


def test_a_changed_limit_is_put_right_while_it_runs(stage: DaemonLab) -> None:
    run_id = detach(stage, "runc", *SLEEP, limits=LIMITS)
    stage.wait_status(run_id, "running", limit_s=900)
    wall = stage.layout.sandbox(run_id).wall
    with open(f"{wall.folder}/memory.max", "w", encoding="ascii") as file:
        file.write("max")
    wait_until(lambda: cgroup_files.read_number(wall, "memory.max") == LIMIT_BYTES, 60)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    wanted = {"memory.max": str(LIMIT_BYTES), "memory.swap.max": "0", "pids.max": "4096"}
    assert cgroup_files.mismatches(wall, wanted) == ()
    stage.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    stage.wait_empty(300)


def test_a_workload_may_ask_to_lose_one_process_only(stage: DaemonLab) -> None:
    hog = f"dd if=/dev/zero of=/dev/null bs={2 * LIMIT_BYTES} count=1; echo $?; exit 3"
    words = ("--oom-kill-one", "--limit-memory", "128MiB", "--", "sh", "-c", hog)
    code, ended = run(stage, "runc", *words)
    assert (code, ended["exit_code"]) == (3, 3)
    assert ended["diagnostic_code"] == "memory-limit-exceeded"
    assert ended["message"].endswith("killed 1 of its processes")


KINDS = {
    "ended": ("true",),
    "failed": ("sh", "-c", "exit 3"),
    "missing": ("/no/such/program",),
    "out of memory": HOG,
    "killed": SLEEP,
    "deaf": ("sh", "-c", "trap '' TERM; while :; do sleep 1; done"),
    "forking": ("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; wait"),
}
"""How sandboxes end; the last three only when they are told to."""
AT_A_TIME = 5


def test_however_they_end_nothing_is_left(stage: DaemonLab) -> None:
    """Also no control group that the kernel keeps: its own count of them is as before."""
    root = stage.layout.root
    before = cgroup_files.read_counters(root, "cgroup.stat")["nr_descendants"]
    kinds = itertools.islice(itertools.cycle(KINDS), ENDINGS)
    plan = list(zip(itertools.cycle(RUNTIMES), kinds))
    for first in range(0, len(plan), AT_A_TIME):
        batch = plan[first : first + AT_A_TIME]
        ids = [detach(stage, runtime, *KINDS[kind], limits=LIMITS) for runtime, kind in batch]
        for run_id, (_, kind) in zip(ids, batch, strict=True):
            if kind in ("killed", "deaf", "forking"):
                stage.wait_status(run_id, "running", limit_s=900)
                stage.request("DELETE", f"/v2/runs/{run_id}?grace_ms=500")
            stage.wait_status(run_id, "succeeded", "failed", "cancelled", limit_s=900)
    stage.wait_empty(300)
    assert stage.leftovers() == []
    assert cgroup_files.read_counters(root, "cgroup.stat")["nr_descendants"] == before
