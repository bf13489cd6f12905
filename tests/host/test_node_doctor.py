"""The doctor of a real node: with a daemon, without one, and with real sandboxes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(extension_capabilities=["example.com/disk=nvme"]) as made:
        yield made


def checks(lab: DaemonLab, *flags: str) -> dict[str, dict[str, Any]]:
    done = lab.axern("node", "doctor", "-o", "json", *flags)
    assert done.returncode == 1, done  # this configuration enforces nothing, which is a warning
    return {check["check"]: check for check in json.loads(done.stdout)["checks"]}


def test_every_fact_is_told_with_and_without_a_daemon(lab: DaemonLab) -> None:
    daemon = lab.start()
    served = checks(lab)
    assert lab.stop(daemon) == 0
    alone = checks(lab)
    assert served.keys() == alone.keys()
    assert (served["daemon"]["status"], alone["daemon"]["status"]) == ("ok", "warning")
    for found in (served, alone):
        for runtime in ("runc", "runsc"):
            assert found[f"runtime/{runtime}"]["status"] == "ok"
            assert "sha256" in found[f"runtime/{runtime}"]["message"]
            assert found[f"limit/memory/{runtime}"]["status"] == "absent"
            assert found[f"limit/ephemeral-storage/{runtime}"]["status"] == "absent"
        assert found["enforcement"]["remedy"]
        assert found["example.com/disk"]["message"].endswith("the configuration says nvme")
        assert found["ledger"]["status"] == found["reservations"]["status"] == "ok"
        for key in ("cgroup/memory", "filestore/project-quota", "user-namespaces", "network"):
            assert key in found
        assert all(check["message"] for check in found.values())


def test_a_limit_is_refused_with_the_doctors_own_reason(lab: DaemonLab) -> None:
    daemon = lab.start()
    found = checks(lab)
    done = lab.axern("run", "--limit-memory", "64MiB", "-o", "json", "--", "true")
    (reason,) = json.loads(done.stdout)["error"]["reasons"]
    lab.stop(daemon)
    told = found["cgroup/memory"]
    if told["status"] == "absent":
        assert told["remedy"]
        assert reason.endswith(told["message"].partition(": ")[2])
    else:
        assert reason.endswith("cgroup_enforcement is disabled_dev, which enforces nothing")


def test_a_probe_runs_a_sandbox_of_each_runtime_and_leaves_nothing(lab: DaemonLab) -> None:
    daemon = lab.start()
    found = checks(lab, "--probe")
    assert lab.reservations() == []
    assert lab.leftovers() == []
    lab.stop(daemon)
    alone = checks(lab, "--probe")
    for each in (found, alone):
        for runtime in ("runc", "runsc"):
            assert each[f"sandbox/{runtime}"]["status"] == "ok", each


def test_before_the_first_start_it_says_how_to_begin() -> None:
    with daemon_lab() as lab:
        found = checks(lab)
        assert "there is no filestore at" in found["filestore/overlay-upper"]["message"]
        assert "axernd, which makes it" in found["filestore/overlay-upper"]["remedy"]
        has_systemd = os.path.isdir("/run/systemd/system")
        assert ("systemctl start" in found["daemon"]["remedy"]) == has_systemd
        assert not [check for check in found.values() if "[Errno" in check["message"]]
        assert os.listdir(lab.base) == ["axern.toml"], "to look makes nothing"


def test_a_missing_program_is_an_error_and_its_runtime_is_refused() -> None:
    with daemon_lab(runsc="/nowhere/runsc") as lab:
        daemon = lab.start()
        done = lab.axern("node", "doctor", "-o", "json")
        assert done.returncode == 3
        found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
        assert found["runtime/runsc"]["status"] == "error"
        assert "apt-get install runsc" in found["runtime/runsc"]["remedy"]
        done = lab.axern("run", "--runtime-class", "runsc", "--", "true")
        assert b"capability runtime/runsc is absent: /nowhere/runsc is not there" in done.stderr
        lab.stop(daemon)
