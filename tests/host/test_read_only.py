"""A ledger that can't be decided on: the daemon stays up, tells it, changes nothing, goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError
from ledger.errors import AxernError
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

LEASE = {"requests": {"cpu_milli": 10, "memory_bytes": 16 * 1024**2}}


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def folder(lab: DaemonLab) -> Path:
    return Path(lab.layout.state_dir, "ledger")


def condition(lab: DaemonLab) -> dict[str, Any]:
    found: dict[str, Any] = lab.request("GET", "/v2/health")["ledger"]
    return found


def is_well(lab: DaemonLab) -> bool:
    with contextlib.suppress(AxernError):
        return bool(condition(lab)["state"] == "ok")
    return False


def refused(lab: DaemonLab, method: str, path: str, body: dict[str, Any] | None = None) -> ApiError:
    with pytest.raises(ApiError) as told:
        lab.request(method, path, body)
    return told.value


def damage(path: Path) -> bytes:
    """Change one byte in the middle; return what was there."""
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"generation":', b'"generatiom":', 1))
    return before


@pytest.mark.parametrize("file", ["ledger.json", "node-id"])
def test_damage_is_served_read_only_and_outlived(lab: DaemonLab, file: str) -> None:
    daemon = lab.start()
    run_id = lab.detach("runc", "sh", "-c", "sleep 1000")
    lab.wait_status(run_id, "running")
    lease = lab.request("POST", "/v2/reservations", LEASE)["reservation"]["id"]
    assert condition(lab)["accepts"] == "everything"
    lab.stop(daemon)
    path = folder(lab) / file
    before = damage(path) if file == "ledger.json" else path.read_bytes()
    if file == "node-id":
        path.write_text("another\n", encoding="utf-8")
    daemon = lab.start()
    told = condition(lab)
    assert (told["state"], told["accepts"]) == ("untrusted", "nothing")
    assert "check" in told["remedy"]
    listed = lab.request("GET", "/v2/reservations")
    assert listed["ledger_state"] == "untrusted"
    if file == "node-id":  # the rest of it reads as it is
        assert {row["id"] for row in listed["reservations"]} == {run_id, lease}
    for method, target, body in (
        ("POST", "/v2/reservations", LEASE),
        ("DELETE", f"/v2/reservations/{lease}", None),
        ("DELETE", f"/v2/runs/{run_id}?grace_ms=0", None),
        ("POST", "/v2/node/drain", {"reason": "x"}),
    ):
        error = refused(lab, method, target, body)
        assert (error.status, error.code) == (503, "ledger_corrupt")
        assert "nothing is changed" in error.message
        assert error.hint is not None
    error = refused(lab, "GET", f"/v2/runs/{run_id}/stream")
    assert error.code == "ledger_corrupt", "its end would not be seen"
    shown = lab.axern("node", "status")
    assert shown.returncode == 0
    assert b"untrusted since" in shown.stdout
    assert b"the ledger is untrusted" in shown.stderr
    run = lab.axern("run", "--", "true")
    assert b"[ledger_corrupt]" in run.stderr
    assert "read-only: ledger untrusted" in lab.log()
    path.write_bytes(before)
    wait_until(lambda: is_well(lab), 60)
    assert daemon.poll() is None
    assert lab.run(run_id)["status"] == "running"
    lab.request("DELETE", f"/v2/reservations/{lease}")
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    lab.wait_status(run_id, "cancelled")
    assert "the ledger opens again" in lab.log()


def test_one_that_is_asked_to_end_ends(lab: DaemonLab) -> None:
    lab.stop(lab.start())
    path = folder(lab) / "ledger.json"
    before = damage(path)
    daemon = lab.start()
    assert condition(lab)["state"] == "untrusted"
    assert lab.spawn().wait(60) == 78, "another one finds the socket served"
    assert lab.stop(daemon) == 0
    assert not os.path.exists(lab.socket)
    path.write_bytes(before)


def test_a_backup_put_back_is_noticed_while_the_host_is_up(lab: DaemonLab) -> None:
    daemon = lab.start()
    lab.request("POST", "/v2/reservations", LEASE)
    lab.stop(daemon)
    backup, newest = folder(lab).with_name("backup"), folder(lab).with_name("newest")
    shutil.copytree(folder(lab), backup)
    daemon = lab.start()
    second = lab.request("POST", "/v2/reservations", LEASE)["reservation"]["id"]
    lab.stop(daemon)
    folder(lab).rename(newest)
    backup.rename(folder(lab))
    daemon = lab.start()
    told = condition(lab)
    assert told["state"] == "untrusted"
    assert "this boot has seen" in told["reason"]
    assert refused(lab, "POST", "/v2/reservations", LEASE).code == "ledger_corrupt"
    offline = lab.axern("reservations", "list", "-o", "json")
    assert json.loads(offline.stdout)["ledger_state"] == "untrusted"
    folder(lab).rename(backup)
    newest.rename(folder(lab))
    wait_until(lambda: is_well(lab), 60)
    assert second in {row["id"] for row in lab.reservations()}
    assert daemon.poll() is None


def test_a_ledger_that_is_gone_is_missed_after_a_boot_too(lab: DaemonLab) -> None:
    daemon = lab.start()
    lab.stop(daemon)
    away = folder(lab).with_name("away")
    folder(lab).rename(away)
    lab.forget_generations()
    lab.start()
    told = condition(lab)
    assert told["state"] == "untrusted"
    assert "there is no ledger in" in told["reason"]
    assert lab.reservations() == []
    assert lab.request("GET", "/v2/node")["node"]["dimensions"] == []
    assert not folder(lab).exists(), "none is born"
    away.rename(folder(lab))
    wait_until(lambda: is_well(lab), 60)


def test_a_disk_that_refuses_at_the_start_is_waited_for(lab: DaemonLab) -> None:
    daemon = lab.start()
    lease = lab.request("POST", "/v2/reservations", LEASE)["reservation"]["id"]
    lab.stop(daemon)
    kept = folder(lab).with_name("kept")
    folder(lab).rename(kept)
    folder(lab).mkdir(mode=0o750)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=0750", "tmpfs", str(folder(lab))]
    subprocess.run(mount, check=True)
    try:
        shutil.copytree(kept, folder(lab), dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(folder(lab))], check=True)
        daemon = lab.start()
        told = condition(lab)
        assert (told["state"], told["accepts"]) == ("degraded", "nothing")
        assert [row["id"] for row in lab.reservations()] == [lease], "what is read is true"
        error = refused(lab, "DELETE", f"/v2/reservations/{lease}")
        assert (error.status, error.code, error.error["retry_after_s"]) == (503, "busy", 10)
        subprocess.run(["mount", "-o", "remount,rw", str(folder(lab))], check=True)
        wait_until(lambda: is_well(lab), 60)
        lab.request("DELETE", f"/v2/reservations/{lease}")
        assert lab.stop(daemon) == 0
        shutil.rmtree(kept)
        shutil.copytree(folder(lab), kept)
    finally:
        subprocess.run(["umount", str(folder(lab))], check=True)
    folder(lab).rmdir()
    kept.rename(folder(lab))
