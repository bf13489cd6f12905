"""Why, from a real daemon: a full host in twelve lines, and explain as run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from axern.api.client import ApiError
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

MIB = 1024**2
ALWAYS_NEW = {"generation", "facts_sequence", "retry_after_s", "earliest_fit_at"}


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    """A daemon on a host that two leases have filled with memory."""
    with daemon_lab(tick="200ms", facts_every="100ms") as made:
        made.start()
        free = dimension(made, "memory_bytes")["headroom"]
        for name, part, ttl_ms in (("large", 2, 600_000), ("small", 4, 300_000)):
            requests = {"cpu_milli": 10, "memory_bytes": free // part}
            body = {"name": name, "requests": requests, "ttl_ms": ttl_ms}
            made.request("POST", "/v2/reservations", body)
        yield made
        for entry in made.reservations():
            made.request("DELETE", f"/v2/reservations/{entry['id']}")


def dimension(lab: DaemonLab, name: str) -> dict[str, Any]:
    rows = lab.request("GET", "/v2/node")["node"]["dimensions"]
    return next(row for row in rows if row["name"] == name)


def too_much(lab: DaemonLab) -> int:
    """Return more than is left, and less than what fits once the small lease has ended."""
    left: int = dimension(lab, "memory_bytes")["headroom"]
    return left + left // 4


def test_a_full_host_is_told_in_twelve_lines(lab: DaemonLab) -> None:
    asked = ("--request-cpu", "10m", "--request-memory", str(too_much(lab)))
    done = lab.axern("run", *asked, "--", "true")
    assert done.returncode == 125
    shown = done.stderr.decode().splitlines()
    assert 6 <= len(shown) <= 12
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("axern: refused: node memory capacity exhausted [node_memory_")
    large, small = lab.reservations()
    assert any(large["id"][:12] in line and "ends in " in line for line in shown)
    assert f"  it fits once {small['id'][:12]} has ended" in shown
    assert any(line.startswith("  it fits with --request-memory ") for line in shown)
    explained = lab.axern("explain", *asked)
    assert explained.returncode == 3
    # Of the time that passes between both, a deadline tells.
    told = re.sub(r"ends in \S+", "ends in", explained.stdout.decode()).splitlines()
    assert told[1:-2] == [re.sub(r"ends in \S+", "ends in", line) for line in shown[1:-2]]
    dry = lab.axern("run", "--dry-run", *asked, "--", "true")
    assert (dry.returncode, dry.stderr) == (125, b"")


def test_what_is_said_to_fit_does(lab: DaemonLab) -> None:
    requests = {"cpu_milli": 10, "memory_bytes": too_much(lab)}
    body = {"command": ["true"], "requests": requests}
    generation = lab.request("GET", "/v2/health")["generation"]
    decision = lab.request("POST", "/v2/explain", body)["decision"]
    with pytest.raises(ApiError) as caught:
        lab.request("POST", "/v2/runs", body)
    assert caught.value.status == 507
    assert without(caught.value.error) == without(decision["refusal"])
    assert generation <= decision["generation"] <= caught.value.error["generation"]
    (smaller,) = (way for way in decision["refusal"]["would_fit_if"] if "request" in way)
    requests |= smaller["request"]
    assert lab.request("POST", "/v2/explain", body)["decision"]["admitted"] is True
    requests["memory_bytes"] += 1
    assert lab.request("POST", "/v2/explain", body)["decision"]["admitted"] is False
    assert len(lab.reservations()) == 2


def without(error: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in error.items() if name not in ALWAYS_NEW}
    # A deadline is shown on the wall clock, where the millisecond of asking is part of it.
    holders = [holder | {"expires_at": None} for holder in error["holders"]]
    return kept | {"holders": holders}


def test_json_is_the_same_structure(lab: DaemonLab) -> None:
    asked = ("--request-cpu", "10m", "--request-memory", str(too_much(lab)), "-o", "json")
    ran = json.loads(lab.axern("run", *asked, "--", "true").stdout)["error"]
    told = json.loads(lab.axern("explain", *asked).stdout)["decision"]["refusal"]
    assert without(ran) == without(told)
    assert ran["explained"] is True


def test_exposure_is_shown(lab: DaemonLab) -> None:
    memory = dimension(lab, "memory_bytes")
    assert memory["exposure"] == memory["committed"]  # leases have no limits
    assert (memory["unlimited"], memory["max_exposure"]) == (0, None)
