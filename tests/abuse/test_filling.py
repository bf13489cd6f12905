"""Sixty-four at once where ten fit: ten are admitted, and every other one is told what is short."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from axern.api.client import ApiError, Client
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

MIB = 1024**2
FIT, ALL = 10, 64
MEMORY, CPU_MILLI = 32 * MIB, 10


def room_for_ten() -> dict[str, str]:
    """Return a reserve that leaves memory and CPU for ten and a half of ours."""
    memory = psutil.virtual_memory().total - FIT * MEMORY - MEMORY // 2
    cpu_milli = 1000 * (psutil.cpu_count() or 1) - FIT * CPU_MILLI - CPU_MILLI // 2
    return {"system_reserve_memory": f"{memory}B", "system_reserve_cpu": f"{cpu_milli}m"}


def ask(lab: DaemonLab) -> Any:
    """Ask for one run; return its id or the error."""
    body = {
        "command": ["sleep", "1000"],
        "runtime_class": "runc",
        "requests": {"cpu_milli": CPU_MILLI, "memory_bytes": MEMORY},
    }
    with Client(lab.socket) as client:
        try:
            return client.request("POST", "/v2/runs", body)["run"]["id"]
        except ApiError as error:
            return error


def test_ten_of_sixty_four_callers_are_admitted() -> None:
    with daemon_lab(**room_for_ten()) as lab:
        lab.start()
        with ThreadPoolExecutor(ALL) as pool:
            found = list(pool.map(lambda _: ask(lab), range(ALL)))
        admitted = [each for each in found if isinstance(each, str)]
        refused = [each for each in found if not isinstance(each, str)]
        assert (len(admitted), len(refused)) == (FIT, ALL - FIT)
        for run_id in admitted:
            lab.wait_status(run_id, "running")
        for error in refused:
            assert error.status == 507
            assert error.error["retryable"] is True
            assert 0 < error.error["retry_after_s"] <= 3600
            assert {gate["dimension"] for gate in error.error["shortfalls"]} == {
                "cpu_milli",
                "memory_bytes",
            }
            assert all(gate["short_by"] > 0 for gate in error.error["shortfalls"])
            assert error.code == "node_cpu_and_memory_capacity_exhausted"


def again(lab: DaemonLab, argv: tuple[str, ...]) -> tuple[bytes, bytes, int]:
    """Ask once more, as a script would."""
    done = lab.axern(*argv)
    return done.stdout, done.stderr, done.returncode


def test_ten_of_sixty_four_command_lines_are_admitted() -> None:
    with daemon_lab(**room_for_ten()) as lab:
        lab.start()
        words = ("run", "--detach", "-o", "json", "--runtime-class", "runc")
        sizes = ("--request-cpu", f"{CPU_MILLI}m", "--request-memory", f"{MEMORY}B")
        argv = (*words, *sizes, "--", "sleep", "1000")
        running = [lab.popen(*argv) for _ in range(ALL)]
        outputs = [(*process.communicate(timeout=300), process.returncode) for process in running]
        # On a host this busy a daemon may be silent for two seconds; then nothing was asked of it.
        unheard = b"[daemon_unreachable]"
        outputs = [again(lab, argv) if unheard in each[1] else each for each in outputs]
        admitted = [out for out, _, code in outputs if code == 0]
        refused = [(out, err) for out, err, code in outputs if code == 125]
        assert (len(admitted), len(refused)) == (FIT, ALL - FIT)
        for out, err in refused:
            error = json.loads(out)["error"]
            assert error["code"] == "node_cpu_and_memory_capacity_exhausted"
            assert len(error["shortfalls"]) == 2
            assert b"[node_cpu_and_memory_capacity_exhausted]" in err
            assert b"node memory: 32MiB asked for, " in err
            assert b"node CPU: 10m asked for, " in err
        assert len(lab.reservations()) == FIT


def test_what_can_never_fit_is_told_so() -> None:
    with daemon_lab(**room_for_ten()) as lab:
        lab.start()
        done: subprocess.CompletedProcess[bytes] = lab.axern(
            *("run", "--detach", "-o", "json", "--request-memory", f"{2 * FIT * MEMORY}B"),
            *("--request-cpu", "10m", "--", "true"),
        )
        assert done.returncode == 125
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "request_exceeds_node"
        assert error["retryable"] is False
        assert error.get("retry_after_s") is None
        assert b"[request_exceeds_node]" in done.stderr
        assert lab.reservations() == []
