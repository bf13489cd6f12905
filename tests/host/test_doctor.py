"""The doctor finds exactly what was planted on a real host, and the remedy that it names works."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from axern.host.cgroup import Cgroup
from axern.host.linux import mount
from axern.runtime import teardown
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

Found = set[tuple[str, str]]


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(stop_grace="300ms", stale_after="1s", tick="500ms") as made:
        yield made


def examine(lab: DaemonLab) -> tuple[int, list[dict[str, Any]]]:
    done = lab.axern("reservations", "doctor", "-o", "json")
    return done.returncode, json.loads(done.stdout)["findings"]


def found(lab: DaemonLab) -> Found:
    return {(finding["code"], finding["id"]) for finding in examine(lab)[1]}


def remedy(lab: DaemonLab) -> None:
    """Do what each finding says, in its own words; afterwards there is nothing to say."""
    for finding in examine(lab)[1]:
        words = shlex.split(finding["remedy"])
        assert words[0] == "axern"
        done = lab.axern(*(word.replace("TEXT", "a test") for word in words[1:]))
        assert done.returncode == 0, (finding, done)
    assert examine(lab) == (0, [])


@contextlib.contextmanager
def process_in(group: Cgroup) -> Iterator[int]:
    """Run a process in *group*, made for it."""
    group.create()
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        group.add(process.pid)
        try:
            yield process.pid
        finally:
            process.kill()


def folder(path: str) -> str:
    os.makedirs(path)
    return path


def test_leaks_and_owners_beside_a_daemon(lab: DaemonLab) -> None:
    lab.start()
    layout = lab.layout
    root = Cgroup(layout.hierarchies, layout.cgroup_root)
    healthy = lab.detach("runc", "sleep", "600")
    lab.wait_status(healthy, "running")
    assert examine(lab) == (0, [])
    names = {
        kind: secrets.token_hex(16)
        for kind in ("process", "monitor", "mount", "store", "exit", "state", "run", "young")
    }
    with process_in(root.child("sandboxes").child(names["process"]).child("workload")):
        root.child("monitors").child(names["monitor"]).create()
        point = folder(f"{layout.sandboxes}/{names['mount']}/rootfs")
        mount("tmpfs", point, "tmpfs")
        folder(f"{layout.filestore}/{names['store']}/upper/some")
        Path(f"{layout.exits}/{names['exit']}").write_text("0", encoding="ascii")
        folder(f"{layout.runtime_root('runsc')}/{names['state']}")
        for kind in ("run", "young"):
            path = folder(f"{layout.runs}/{names[kind]}")
            Path(path, "spec.json").write_text("{}", encoding="ascii")
        long_ago = time.time() - 3600
        os.utime(f"{layout.runs}/{names['run']}", (long_ago, long_ago))
        silent = lab.request("POST", "/v2/reservations", {"requests": {"cpu_milli": 5}})
        with subprocess.Popen(["/bin/sleep", "600"]) as owner:
            body = {"requests": {"cpu_milli": 5}, "owner_process": {"pid": owner.pid}}
            orphan = lab.request("POST", "/v2/reservations", body)["reservation"]["id"]
            stale = silent["reservation"]["id"]
            stray = Cgroup(layout.hierarchies, f"{layout.cgroup_root}/sandboxes/{healthy}/stray")
            with process_in(stray):
                time.sleep(1.1)
                expected = {
                    ("leaked-sandbox", names["process"]),
                    ("leaked-sandbox", names["monitor"]),
                    ("leaked-sandbox", names["mount"]),
                    ("leaked-files", names["store"]),
                    ("leaked-files", names["exit"]),
                    ("leaked-files", names["state"]),
                    ("leaked-run", names["run"]),
                    ("stale-owner", stale),
                    ("drifting-process", healthy),
                }
                assert found(lab) == expected
                assert examine(lab)[0] == 3
                owner.kill()
                owner.wait()
                # The loop ends it by itself once it is stale; until then it is an orphan.
                codes = {code for code, name in found(lab) if name == orphan}
                assert codes <= {"orphaned-lease"}
                remedy(lab)
    assert os.path.exists(f"{layout.runs}/{names['young']}")
    assert lab.reservations() == []


def test_drift_without_a_daemon(lab: DaemonLab) -> None:
    daemon = lab.start()
    layout = lab.layout
    kinds = ("healthy", "monitor", "orphan", "ended", "inode", "spec", "empty")
    names = {}
    for kind in kinds:
        argv = ("sleep", "3") if kind == "ended" else ("sleep", "600")
        names[kind] = lab.detach("runc", *argv)
    lease = lab.request("POST", "/v2/reservations", {"requests": {"cpu_milli": 5}, "ttl_ms": 4000})
    for kind in kinds:
        lab.wait_status(names[kind], "running")
    monitors = {
        name: Path(layout.sandbox(name).monitor.folder, "cgroup.procs").read_text("ascii").split()
        for name in names.values()
    }
    lab.kill(daemon)
    os.kill(int(monitors[names["monitor"]][0]), signal.SIGKILL)
    teardown.bury("runc", layout, names["orphan"])
    os.unlink(f"{layout.exits}/{names['orphan']}")
    wall = layout.sandbox(names["inode"]).wall
    os.kill(int(monitors[names["inode"]][0]), signal.SIGSTOP)
    wall.destroy(10)
    os.unlink(f"{layout.runs}/{names['spec']}/spec.json")
    os.kill(int(monitors[names["empty"]][0]), signal.SIGSTOP)
    layout.sandbox(names["empty"]).wall.kill()
    wait_until(lambda: os.path.exists(f"{layout.exits}/{names['ended']}"))
    with process_in(layout.sandbox(names["inode"]).workload):
        time.sleep(1)
        assert found(lab) == {
            ("drifting-monitor", names["monitor"]),
            ("orphaned-sandbox", names["orphan"]),
            ("drifting-phase", names["ended"]),
            ("drifting-cgroup", names["inode"]),
            ("drifting-record", names["spec"]),
            ("drifting-phase", names["empty"]),
            ("expired-entry", lease["reservation"]["id"]),
        }
        assert examine(lab)[0] == 3
        for kind in ("inode", "empty"):
            os.kill(int(monitors[names[kind]][0]), signal.SIGCONT)
        remedy(lab)
    lab.start()
    assert {row["id"] for row in lab.reservations()} == {names["healthy"]}


@pytest.mark.host(alone=True)
def test_what_comes_and_goes_is_no_finding() -> None:
    # A busy machine is late with heartbeats, which the window of the other tests would tell.
    with daemon_lab(stop_grace="300ms", stale_after="30s", tick="500ms") as lab:
        lab.start()
        forking = lab.detach("runc", "sh", "-c", "while :; do (true)& (true)& wait; done")
        lab.wait_status(forking, "running")
        words = (
            "run",
            "--runtime-class",
            "runc",
            "--request-cpu",
            "10m",
            "--request-memory",
            "16MiB",
        )

        def churn() -> list[int]:
            return [lab.axern(*words, "--", "true").returncode for _ in range(5)]

        with ThreadPoolExecutor(2) as threads:
            churning = [threads.submit(churn) for _ in range(2)]
            answers = []
            while not all(each.done() for each in churning):
                answers.append(lab.request("GET", "/v2/doctor")["findings"])
        assert [each.result() for each in churning] == [[0] * 5] * 2
        assert len(answers) > 10
        assert [found for found in answers if found] == []
