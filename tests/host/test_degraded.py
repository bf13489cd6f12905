"""A real daemon whose ledger's disk is full for a while: it says so, gives back, and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

DISK_MIB = 48
LEASE = {"reserve": {"requests": {"cpu_milli": 1, "memory_bytes": 1024**2}}}
TURN = 200


@contextmanager
def on_a_small_disk(lab: DaemonLab) -> Iterator[Path]:
    """Let the ledger lie on a small file system of its own; afterwards it is where it was."""
    folder = Path(lab.layout.state_dir, "ledger")
    lab.stop(lab.start())
    kept = folder.with_name("kept")
    folder.rename(kept)
    folder.mkdir(mode=0o750)
    options = f"size={DISK_MIB}m,mode=0750"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True)
        yield folder
        shutil.rmtree(kept)
        shutil.copytree(folder, kept)
    finally:
        for process in lab.processes:
            if process.poll() is None:
                lab.stop(process)
        subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)


def fill(folder: Path) -> None:
    with (
        open(folder / "filler", "ab", buffering=0) as filler,
        contextlib.suppress(OSError),
    ):
        while True:
            filler.write(bytes(4096))


def batch(lab: DaemonLab, *operations: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"mode": "each", "operations": list(operations)}
    results: list[dict[str, Any]] = lab.request("POST", "/v2/batch", body)["results"]
    return results


def give_back(lab: DaemonLab, ids: list[str]) -> None:
    for first in range(0, len(ids), TURN):
        results = batch(lab, *({"release": {"id": name}} for name in ids[first : first + TURN]))
        assert {each["status"] for each in results} == {200}, results[0]


@contextmanager
def failing_flushes(lab: DaemonLab, pid: int) -> Iterator[Path]:
    """Let the kernel answer every flush of the daemon with EIO; yield where that is written."""
    trace = Path(lab.base, "trace")
    calls = "fdatasync,fsync"
    argv = ["strace", "-f", "-o", str(trace), "-e", f"inject={calls}:error=EIO", "-p", str(pid)]
    with subprocess.Popen(argv, stderr=subprocess.PIPE) as tracer:
        try:
            assert tracer.stderr is not None
            assert b"attached" in tracer.stderr.readline()
            yield trace
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()


def test_failed_flushes_are_answered_as_not_done_and_outlived() -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        kept = batch(lab, LEASE)[0]["reservation"]["id"]
        body = LEASE["reserve"] | {"request_id": "once"}
        with failing_flushes(lab, daemon.pid) as trace:
            for _ in range(3):
                with pytest.raises(ApiError) as error:
                    lab.request("POST", "/v2/reservations", body)
                assert (error.value.status, error.value.code) == (503, "busy")
            told = lab.request("GET", "/v2/health")["ledger"]
            assert (told["state"], told["accepts"]) == ("degraded", "nothing")
            assert "df, dmesg" in told["remedy"]
            listed = lab.request("GET", "/v2/reservations")
            assert listed["ledger_state"] == "degraded"
            assert [row["id"] for row in listed["reservations"]] == [kept]
            with pytest.raises(ApiError):
                lab.request("DELETE", f"/v2/reservations/{kept}")
            assert "INJECTED" in trace.read_text(encoding="utf-8")
        wait_until(lambda: lab.request("GET", "/v2/health")["status"] == "ok", 60)
        assert daemon.poll() is None
        lab.request("POST", "/v2/reservations", body)
        lab.kill(daemon)
        lab.start()
        assert len(lab.reservations()) == 2
        assert kept in {row["id"] for row in lab.reservations()}
        assert "accepts nothing" in lab.log()


def test_a_full_disk_is_told_gives_back_and_is_outlived() -> None:
    with daemon_lab() as lab, on_a_small_disk(lab) as folder:
        daemon = lab.start()
        wait_until((folder / "ledger.ballast").exists, 60)
        held = [each["reservation"]["id"] for each in batch(lab, *[LEASE] * TURN)]
        fill(folder)
        for _ in range(200):  # until the segments that are there are full
            results = batch(lab, *[LEASE] * TURN)
            granted = [each["reservation"]["id"] for each in results if each["status"] == 200]
            give_back(lab, granted)
            if len(granted) < TURN:
                break
        refused = next(each["error"] for each in results if each["status"] != 200)
        assert refused["code"] == "busy"
        told = lab.request("GET", "/v2/health")
        assert (told["status"], told["ledger"]["accepts"]) == ("degraded", "releases")
        assert "no room" in told["ledger"]["reason"]
        with pytest.raises(ApiError) as error:
            lab.request("POST", "/v2/reservations", LEASE["reserve"])
        assert (error.value.status, error.value.error["retry_after_s"]) == (503, 10)
        shown = lab.axern("node", "status")
        assert (shown.returncode, b"degraded since" in shown.stdout) == (0, True)
        assert b"the ledger is degraded: its disk has no room" in shown.stderr
        assert json.loads(lab.axern("reservations", "list", "-o", "json").stdout)[
            "ledger_state"
        ] == "degraded"  # fmt: skip
        run = lab.axern("run", "--request-memory", "16MiB", "--", "true")
        assert (run.returncode, b"no room" in run.stderr) == (125, True), run
        give_back(lab, held)
        assert lab.reservations() == []
        os.unlink(folder / "filler")
        wait_until(lambda: lab.request("GET", "/v2/health")["status"] == "ok", 60)
        assert (folder / "ledger.ballast").exists()
        assert batch(lab, LEASE)[0]["status"] == 200
        give_back(lab, [row["id"] for row in lab.reservations()])
        assert daemon.poll() is None
        assert "the ledger is degraded and accepts releases: its disk has no room" in lab.log()
        assert "the ledger is well again, after" in lab.log()
        assert lab.stop(daemon) == 0
