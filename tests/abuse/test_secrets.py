"""A secret in arguments or environment stands where it must, and nowhere else on the host."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

STRANGER = 65534
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")
# Imports come first: another user may not be able to read them.
ASK = """
import json, os, sys
from axern.api.client import ApiError, Client
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
for target in sys.argv[3:]:
    with Client(sys.argv[1]) as client:
        try:
            if target.startswith("/v2/events") or target.endswith("/stream"):
                print([str(event) for event in client.events(target)])
            else:
                print(json.dumps(client.request("GET", target)))
        except ApiError as error:
            print(json.dumps(error.error))
"""


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(socket_group="nogroup") as made:
        made.start()
        yield made


def files_with(canary: bytes, *tops: str) -> dict[str, os.stat_result]:
    """Return the files below *tops* that hold *canary* in content or name, by their path."""
    found = {}
    for top in tops:
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != "rootfs"]
            for name in names:
                path = f"{folder}/{name}"
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    content = b""
                    if stat.S_ISREG(status.st_mode):
                        content = Path(path).read_bytes()
                    if canary in content or canary in os.fsencode(path):
                        found[path] = status
    return found


def processes_with(canary: bytes) -> dict[int, str]:
    """Return the command lines and control groups of processes that show *canary*, by their id."""
    found = {}
    for pid in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            folder = Path(f"/proc/{int(pid)}")
            shown = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
            if canary in shown:
                found[int(pid)] = (folder / "cgroup").read_text() + repr(shown[:300])
    return found


def told_to_a_stranger(lab: DaemonLab, run_id: str) -> str:
    """Return all that another user may read over the API."""
    targets = [
        target.replace("{id}", run_id)
        .replace("{name}", "busybox")
        .replace("{namespace}", "default")
        .replace("/v2/events", "/v2/events?follow=false")
        for target, operations in lab.request("GET", "/v2/openapi.json")["paths"].items()
        if "get" in operations
    ]
    assert len(targets) > 6
    targets.append(f"/v2/reservations/{run_id}?evidence=true&history=true")
    arguments = [lab.socket, str(STRANGER), *targets]
    done = subprocess.run(
        [sys.executable, "-c", ASK, *arguments], capture_output=True, check=False, timeout=60
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.stdout.decode()


def launch(
    lab: DaemonLab, canary: str, runtime: str, *words: str
) -> subprocess.CompletedProcess[bytes]:
    """Start a detached run that is given *canary* in every way there is."""
    env_file = Path(lab.base) / f"{canary}.env"
    env_file.write_text(f"FROM_FILE={canary}\n", encoding="utf-8")
    try:
        return lab.axern(
            *("run", "--detach", "--runtime-class", runtime, *SMALL, "--env", f"SECRET={canary}"),
            *("--env-file", str(env_file), "--", *words, canary),
        )
    finally:
        env_file.unlink()


def wait_buried(lab: DaemonLab, run_id: str) -> None:
    """Wait until nothing of the sandbox is left."""
    wait_until(lambda: not os.path.exists(f"{lab.layout.sandboxes}/{run_id}"))


def assert_kept(lab: DaemonLab, canary: str, run_id: str, done: Any, *, ended: bool) -> None:
    """Check every place that is not meant to know."""
    secret = canary.encode()
    allowed = {f"{lab.layout.runs}/{run_id}/spec.json"}
    if not ended:
        allowed.add(f"{lab.layout.sandboxes}/{run_id}/bundle/config.json")
        # What runsc keeps for itself, in a folder that only root may enter.
        allowed.add(f"{lab.layout.run_dir}/runsc/{run_id}_sandbox:{run_id}.state")
    found = files_with(secret, lab.base, lab.layout.run_dir)
    assert set(found) - allowed == set()
    assert all(status.st_uid == 0 and status.st_mode & 0o27 == 0 for status in found.values())
    assert stat.S_IMODE(os.stat(f"{lab.layout.run_dir}/runsc").st_mode) == 0o700
    others = [
        told
        for told in processes_with(secret).values()
        if f"/sandboxes/{run_id}/workload" not in told
    ]
    assert others == []
    assert canary not in told_to_a_stranger(lab, run_id)
    assert secret not in done.stdout + done.stderr
    assert canary not in lab.log()


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_a_run_keeps_its_secret_while_it_runs_and_after(lab: DaemonLab, runtime: str) -> None:
    canary = secrets.token_hex(16)
    done = launch(lab, canary, runtime, "sh", "-c", "test $SECRET = $1 && sleep 1000", "sh")
    run_id = done.stdout.decode().strip()
    lab.wait_status(run_id, "running")
    assert_kept(lab, canary, run_id, done, ended=False)
    assert lab.axern("run", "cancel", run_id, "--grace", "0s").returncode == 0
    lab.wait_status(run_id, "cancelled")
    wait_buried(lab, run_id)
    assert_kept(lab, canary, run_id, done, ended=True)
    assert canary in json.dumps(lab.run(run_id)["command"])


def test_a_run_that_ends_or_never_starts_keeps_it_too(lab: DaemonLab) -> None:
    for words in (("true",), ("/none",), ("sh", "-c", "exit 3", "sh"), ("/etc/hosts",)):
        canary = secrets.token_hex(16)
        done = launch(lab, canary, "runc", *words)
        run_id = done.stdout.decode().strip()
        lab.wait_status(run_id, "succeeded", "failed")
        wait_buried(lab, run_id)
        assert_kept(lab, canary, run_id, done, ended=True)


def test_a_refused_run_leaves_nothing_of_it(lab: DaemonLab) -> None:
    for words in (("--request-memory", "1000TiB"), ("--namespace", "A"), ("--limit-cpu", "1")):
        canary = secrets.token_hex(16)
        refused = lab.axern("run", *words, "--env", f"A={canary}", "--", "true", canary)
        assert refused.returncode == 125
        assert canary.encode() not in refused.stdout + refused.stderr
        assert files_with(canary.encode(), lab.base, lab.layout.run_dir) == {}
        assert canary not in lab.log()


def test_a_program_that_is_the_secret_is_told_to_its_owner_only(lab: DaemonLab) -> None:
    canary = secrets.token_hex(16)
    made = lab.request("POST", "/v2/runs", {"command": [canary], "runtime_class": "runc"})["run"]
    ended = lab.wait_status(made["id"], "failed")
    assert canary in ended["message"]
    lab.wait_empty()
    assert canary not in told_to_a_stranger(lab, made["id"])
    assert canary not in lab.log()
    kept = {f"{lab.layout.runs}/{made['id']}/{name}" for name in ("spec.json", "exit.json")}
    assert set(files_with(canary.encode(), lab.base, lab.layout.run_dir)) <= kept


def test_bad_requests_leave_no_secret_behind(lab: DaemonLab) -> None:
    canary = secrets.token_hex(16)
    for body in (
        {"command": [canary, "\x00"], "env": {}},
        {"command": ["a"], "env": {canary: "\x00"}},
        {"command": ["a"], "env": {"A": canary}, "cwd": "relative"},
        {"command": [canary], "template": "none-such"},
        {canary: 1},
    ):
        with pytest.raises(ApiError):
            lab.request("POST", "/v2/runs", body)
    with contextlib.suppress(ApiError):
        lab.request("GET", f"/v2/{canary}")
    assert canary not in lab.log()
    assert files_with(canary.encode(), lab.base, lab.layout.run_dir) == {}


def test_control_a_leak_is_found(tmp_path: Path) -> None:
    canary = secrets.token_hex(16)
    (tmp_path / "log").write_text(f"x{canary}y", encoding="utf-8")
    (tmp_path / canary).touch()
    assert len(files_with(canary.encode(), str(tmp_path))) == 2
    with subprocess.Popen(["sleep", "100"], env={"A": canary}) as child:
        wait_until(lambda: child.pid in processes_with(canary.encode()))
        child.kill()
