"""Every file of a daemon has the mode and owner of docs/operating.md, whoever started it."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import time
from pathlib import Path

import pytest

from axern.api.client import ApiError, Client
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.host.networks import on_new_host

pytestmark = pytest.mark.host

ID = "[0-9a-f]{32}"
EXEC = "[0-9a-f]{16}"
ROOT, SANDBOX = "root", "sandbox"
# What, its modes, and whose: root's, or that of the user that root inside a sandbox is.
RULES = (
    (r"state", "0755", ROOT),
    (r"state/node-id", "0600", ROOT),
    (r"state/ledger", "0750", ROOT),
    (r"state/ledger/.*", "0640 0750", ROOT),
    (r"state/events\.jsonl(\.tmp)?", "0640", ROOT),
    (r"state/retired-[A-Za-z0-9._-]+", "0600", ROOT),
    (r"state/runs", "0700", ROOT),
    (rf"state/runs/{ID}", "0700", ROOT),
    (rf"state/runs/{ID}/(spec\.json|exit\.(json|room)|output\.log.*)", "0600", ROOT),
    (r"state/(filestore|templates)", "0755", ROOT),
    (r"state/templates/busybox", "0700", ROOT),
    (rf"state/filestore/{ID}", "0700", ROOT),
    (rf"state/filestore/{ID}/.*", "0000 0700 0755", SANDBOX),
    (r"run", "0711 0755", ROOT),
    (r"run/axernd\.sock", "0660", ROOT),
    (r"run/axernd\.lock", "0600", ROOT),
    (r"run/cgroup_root", "0644", ROOT),
    (r"run/[0-9a-f]{32}\.generation", "0644", ROOT),
    (r"run/names", "0711", ROOT),
    (r"run/names/[a-z0-9-]+", "0644", ROOT),
    (rf"run/sandboxes/{ID}/network", "0444 0600", ROOT),
    (r"run/(exits|runc|runsc)", "0700", ROOT),
    (rf"run/exits/{ID}", "0644", ROOT),
    (r"run/(runc|runsc)/.*", "0600 0640 0644 0700 0711", ROOT),
    (r"run/sandboxes", "0711", ROOT),
    (rf"run/sandboxes/{ID}(/bundle)?", "0710", ROOT),
    (rf"run/sandboxes/{ID}/bundle/config\.json", "0600", ROOT),
    (rf"run/sandboxes/{ID}/bundle/(ctl|winsz|attach)", "0600 0640 0700", ROOT),
    (rf"run/sandboxes/{ID}/pid", "0644", ROOT),
    (rf"run/sandboxes/{ID}/execs(/{EXEC})?", "0700", ROOT),
    (rf"run/sandboxes/{ID}/execs/{EXEC}/lease\.json", "0600", ROOT),
    (rf"run/sandboxes/{ID}/execs/{EXEC}/((inner\.|monitor\.)?pid|{ID})", "0600 0640 0644", ROOT),
    (rf"run/sandboxes/{ID}/execs/{EXEC}/(ctl|winsz|attach)", "0600 0640 0700", ROOT),
    (rf"run/sandboxes/{ID}/(lower|skeleton|skeleton/(dev|etc|proc|sys))", "0755", SANDBOX),
    (rf"run/sandboxes/{ID}/skeleton/etc/(hosts|hostname|resolv\.conf)", "0644", SANDBOX),
)
FIRST_SANDBOX_UID = 100_000
LOOKS = 10


def entries(lab: DaemonLab) -> list[tuple[str, os.stat_result]]:
    """Return all that is below both folders, but not what a sandbox's root holds."""
    found = []
    for name, top in (("state", lab.layout.state_dir), ("run", lab.layout.run_dir)):
        found.append((name, os.lstat(top)))
        for folder, folders, files in os.walk(top):
            folders[:] = [each for each in folders if each not in ("rootfs", "upper")]
            for each in (*folders, *files):
                path = f"{folder}/{each}"
                with contextlib.suppress(FileNotFoundError):  # a burial is quicker
                    found.append((f"{name}{path.removeprefix(top)}", os.lstat(path)))
    return found


def wrong(path: str, status: os.stat_result) -> str | None:
    """Return what is wrong with an entry, or None."""
    rule = next((rule for rule in RULES if re.fullmatch(rule[0], path)), None)
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if rule is None:
        return f"{path} ({mode}) is not in the table"
    if mode not in rule[1].split():
        return f"{path} has mode {mode}"
    owners = (status.st_uid == 0, rule[2] == SANDBOX and status.st_uid >= FIRST_SANDBOX_UID)
    return None if any(owners) else f"{path} belongs to uid {status.st_uid}"


def complaints(lab: DaemonLab) -> str:
    """Return what is wrong and stays so; a burial or a file under its first name passes."""
    told: list[str] = []
    for _ in range(LOOKS):
        told = [word for entry in entries(lab) if (word := wrong(*entry))]
        if not told:
            break
        time.sleep(0.2)
    return "\n".join(told)


def start_with_umask(
    lab: DaemonLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: str
) -> None:
    """Start a daemon whose parent had *umask*."""
    program = tmp_path / f"python-{umask}"
    program.write_text(f'#!/bin/sh\numask {umask}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", str(program))
        lab.start()


def fill(lab: DaemonLab) -> None:
    """Leave a running sandbox of each runtime and an ended one."""
    for runtime in ("runc", "runsc"):
        running = lab.detach(runtime, "sh", "-c", "echo hello; umask; sleep 1000")
        lab.wait_status(running, "running")
        with Client(lab.socket) as client:
            words = {"command": ["sleep", "1000"]}
            for end in client.request_files(f"/v2/runs/{running}/execs", words)[1]:
                os.close(end)
    lab.wait_status(lab.detach("runc", "true"), "succeeded")
    lab.request("POST", "/v2/reservations", {})
    lab.request("POST", "/v2/namespaces", {"name": "full"})
    lab.request("PATCH", "/v2/quotas/full", {"quota": {"cpu_milli": 0}})
    with pytest.raises(ApiError):
        lab.request("POST", "/v2/reservations", {"namespace": "full"})
    events = f"{lab.layout.state_dir}/events.jsonl"
    wait_until(lambda: os.path.exists(events))


def connect(lab: DaemonLab) -> None:
    """Leave a running sandbox that has a network."""
    small = ("--request-cpu", "10m", "--request-memory", "16MiB", "--runtime-class", "runsc")
    done = lab.axern("run", "--detach", "--network", "bridge", *small, "--", "sleep", "1000")
    assert done.returncode == 0, done.stderr
    lab.wait_status(done.stdout.decode().strip(), "running")


@pytest.mark.parametrize("umask", ["000", "077"])
@on_new_host
def test_modes_and_owners_depend_on_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: str
) -> None:
    with daemon_lab() as lab:
        start_with_umask(lab, tmp_path, monkeypatch, umask)
        fill(lab)
        connect(lab)
        assert complaints(lab) == ""
        found = entries(lab)
        unused = [
            rule[0] for rule in RULES if not any(re.fullmatch(rule[0], path) for path, _ in found)
        ]
        rare = {rf"run/exits/{ID}", r"state/retired-[A-Za-z0-9._-]+"}
        assert set(unused) <= rare, "the table names what is never there"


def test_wider_rights_from_before_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_lab() as lab:
        lab.stop(lab.start())
        for path in ("state", "state/ledger", "state/runs", "state/filestore", "state/templates"):
            os.chmod(f"{lab.base}/{path}", 0o777)  # noqa: S103 - the point of the test
        for path in ("", "/exits", "/runc", "/runsc", "/sandboxes"):
            os.chmod(f"{lab.layout.run_dir}{path}", 0o777)  # noqa: S103
        lab.start()
        fill(lab)
        assert complaints(lab) == ""


def test_a_folder_that_is_somebody_elses_is_refused() -> None:
    with daemon_lab() as lab:
        lab.stop(lab.start())
        for path in (lab.layout.runs, lab.layout.exits, f"{lab.layout.state_dir}/ledger"):
            os.chown(path, 12345, 0)
            assert lab.spawn().wait(60) != 0
            assert f"the folder {path} belongs to uid 12345" in lab.log()
            os.chown(path, 0, 0)
        assert "Traceback" not in lab.log()


def test_control_a_wrong_mode_is_found() -> None:
    fields = [stat.S_IFREG | 0o644, *[0] * 9]
    spec = f"state/runs/{'a' * 32}/spec.json"
    assert wrong(spec, os.stat_result(fields)) == f"{spec} has mode 0644"
    assert "not in the table" in str(wrong("state/secret", os.stat_result(fields)))
    fields = [stat.S_IFREG | 0o600, 0, 0, 0, 12345, *[0] * 5]
    assert "belongs to uid 12345" in str(wrong(spec, os.stat_result(fields)))
