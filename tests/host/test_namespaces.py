"""Namespaces, quotas and claims by the command line, with a real daemon, across a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
RUN = ("run", "--runtime-class", "runc", "--request-cpu", "100m", "--request-memory", "16MiB")
TEAM = ("--namespace", "team-a")


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def told(lab: DaemonLab, *words: str) -> dict[str, Any]:
    done = lab.axern(*words, "-o", "json")
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(lab: DaemonLab, code: int, *words: str) -> str:
    done = lab.axern(*words)
    assert done.returncode == code, done
    return done.stderr.decode()


def test_a_namespace_from_its_making_to_its_end(lab: DaemonLab) -> None:
    daemon = lab.start()
    assert "[not_found]" in refused(lab, 125, *RUN, *TEAM, "--", "true")
    told(lab, "namespace", "create", "team-a")
    told(lab, "quota", "set", *TEAM, "--cpu", "150m", "--sandbox-slots", "8")
    kept = lab.axern(*RUN, *TEAM, "--detach", "--", "sleep", "600").stdout.decode().strip()
    lab.wait_status(kept, "running")
    for _ in range(2):
        message = refused(lab, 125, *RUN, *TEAM, "--", "true")
        assert "[namespace_quota_exceeded]" in message
        assert "namespace-quota CPU: 100m asked for, 50m left" in message
    rows = told(lab, "quota", "events", *TEAM)["events"]
    assert [row["reason"] for row in rows] == ["insufficient-cpu"] * 2
    told(lab, "quota", "set", *TEAM, "--cpu", "50m")
    assert lab.run(kept)["status"] == "running"
    quota = told(lab, "quota", "get", *TEAM)["quota"]
    assert (quota["percent"]["cpu_milli"], quota["pressure"]) == (200, True)
    assert b"team-a" in lab.axern("quota", "list", "--pressure").stdout
    assert f"reservation ({kept[:12]})" in refused(lab, 5, "namespace", "delete", "team-a")
    # Events are no commits: the kill takes what no tick has written yet.
    kept_events = Path(lab.layout.state_dir, "events.jsonl")
    wait_until(lambda: kept_events.exists() and b"insufficient-cpu" in kept_events.read_bytes(), 60)
    lab.kill(daemon)
    offline = told(lab, "quota", "get", *TEAM)
    assert (offline["quota"], offline["source"]) == (quota, "ledger-file")
    refused(lab, 6, "quota", "unset", *TEAM)
    lab.start()
    told(lab, "quota", "unset", *TEAM)
    assert lab.axern(*RUN, *TEAM, "--", "true").returncode == 0
    assert lab.axern("run", "cancel", "--grace", "0s", kept).returncode == 0
    wait_until(lambda: lab.axern("namespace", "delete", "team-a").returncode == 0, 60)
    wait_until(lambda: bool(told(lab, "quota", "events", *TEAM)["events"]), 60)


def test_a_claim_keeps_its_room_and_its_ceiling(lab: DaemonLab) -> None:
    daemon = lab.start()
    told(lab, "namespace", "create", "team-a")
    node = told(lab, "node", "capacity")["node"]
    free = next(row["headroom"] for row in node["dimensions"] if row["name"] == "cpu_milli")
    claim = told(lab, "claim", "create", *TEAM, "--cpu", f"{free - 50}m", "--ttl", "none")["claim"]
    assert "[node_cpu_capacity_exhausted]" in refused(lab, 125, *RUN, "--", "true")
    assert lab.axern(*RUN, *TEAM, "--", "true").returncode == 0
    lab.kill(daemon)
    seen = told(lab, "claim", "get", claim["id"][:8])
    assert seen["source"] == "ledger-file"
    assert seen["claim"]["amounts"] == claim["amounts"]
    lab.start()
    message = refused(lab, 3, "claim", "update", claim["id"], "--cpu", f"{free + 1}m")
    assert "request_exceeds_node" in message or "node_cpu_capacity_exhausted" in message
    told(lab, "claim", "update", claim["id"], "--cpu", "50m")
    message = refused(lab, 125, *RUN, *TEAM, "--", "true")
    assert "[namespace_claim_exceeded]" in message
    assert "axern claim update" in message or "claim" in message
    assert lab.axern(*RUN, "--", "true").returncode == 0
    assert lab.axern("claim", "release", claim["id"][:8]).returncode == 0
    assert told(lab, "claim", "list")["claims"] == []


def test_bounds_of_a_namespace_hold_for_what_runs(lab: DaemonLab) -> None:
    lab.start()
    told(lab, "namespace", "create", "team-a")
    told(
        lab,
        *("namespace", "update", "team-a", "--default-request-memory", "16MiB"),
        *("--default-request-cpu", "50m", "--min-cpu", "20m"),
    )
    key = lab.axern("run", "--runtime-class", "runc", *TEAM, "--detach", "--", "true")
    run = lab.run(key.stdout.decode().strip())
    assert (run["requests"]["cpu_milli"], run["requests"]["memory_bytes"]) == (50, 16 * 1024**2)
    words = ("run", "--request-cpu", "10m", *TEAM, "--", "true")
    assert "below the minimum of namespace team-a, 20m" in refused(lab, 125, *words)
    assert b"minimum" in lab.axern("namespace", "get", "team-a").stdout
