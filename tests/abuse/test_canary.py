"""Tokens, standard input, arguments and environment: in no ledger, log, event, answer or argv."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError
from tests.abuse.test_secrets import (
    SMALL,
    files_with,
    launch,
    processes_with,
    told_to_a_stranger,
    wait_buried,
)
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

LEASE = {"requests": {"cpu_milli": 1, "memory_bytes": 1024**2}}
TOOLS = (
    ("ledger", "log", "-o", "json"),
    ("ledger", "log"),
    ("ledger", "dump"),
    ("ledger", "check", "-o", "json"),
    ("node", "doctor", "-o", "json"),
    ("node", "status", "-o", "json"),
    ("reservations", "-o", "json"),
    ("reservations", "doctor", "-o", "json"),
    ("quota", "events", "--namespace", "team-a", "-o", "json"),
)


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(socket_group="nogroup", tick="200ms") as made:
        made.start()
        made.request("POST", "/v2/namespaces", {"name": "team-a"})
        made.request("PATCH", "/v2/quotas/team-a", {"quota": {"sandbox_slots": 0}})
        yield made


def told(lab: DaemonLab, *ids: str) -> dict[str, str]:
    """Return what root is told by every command and answer that shows something, by its words."""
    closely = [("reservations", "inspect", found, "-o", "json") for found in ids]
    said = {}
    for words in (*TOOLS, *closely):
        done = lab.axern(*words)
        said[" ".join(words)] = (done.stdout + done.stderr).decode(errors="replace")
    targets = ["/v2/reservations", "/v2/runs", "/v2/quotas/team-a/events", "/v2/node"]
    targets += [f"/v2/reservations/{found}?evidence=true&history=true" for found in ids]
    for target in targets:
        with contextlib.suppress(ApiError):
            said[target] = json.dumps(lab.request("GET", target))
    return said


def places_with(lab: DaemonLab, canary: str, *ids: str) -> set[str]:
    """Return every place that knows *canary*: files, processes, the log, commands and answers."""
    secret = canary.encode()
    found = set(files_with(secret, lab.base, lab.layout.run_dir))
    found |= {f"process {pid}: {what}" for pid, what in processes_with(secret).items()}
    found |= {words for words, text in told(lab, *ids).items() if canary in text}
    return found | {f"stranger: {one}" for one in ids if canary in told_to_a_stranger(lab, one)}


def refused(lab: DaemonLab, method: str, target: str, body: dict[str, Any]) -> str:
    """Return the error that a request ends with."""
    with pytest.raises(ApiError) as caught:
        lab.request(method, target, body)
    return json.dumps(caught.value.error)


def test_a_token_is_known_to_its_holder_alone(lab: DaemonLab) -> None:
    first = lab.request("POST", "/v2/reservations", {**LEASE, "request_id": "one"})
    again = lab.request("POST", "/v2/reservations", {**LEASE, "request_id": "one"})
    held = first["reservation"]["id"]
    operations = [{"reserve": LEASE}]
    batch = lab.request("POST", "/v2/batch", {"mode": "all", "operations": operations})
    tokens = [first["token"], again["token"], batch["results"][0]["token"]]
    beat = f"/v2/reservations/{held}/heartbeat"
    lab.request("POST", beat, {"token": again["token"], "ttl_ms": 60_000})
    wrong = secrets.token_hex(16)
    assert wrong not in refused(lab, "POST", beat, {"token": wrong})
    late = {"heartbeat": {"id": held, "token": wrong}}
    assert wrong not in refused(lab, "POST", "/v2/batch", {"mode": "all", "operations": [late]})
    for token in (*tokens, wrong):
        assert places_with(lab, token, held) == set()
    lab.request("DELETE", f"/v2/reservations/{held}")
    for token in (*tokens, wrong):
        assert places_with(lab, token, held) == set()


@pytest.mark.parametrize("runtime", ["runc", "runsc"])
def test_standard_input_goes_to_the_workload_alone(lab: DaemonLab, runtime: str) -> None:
    canary = secrets.token_hex(16)
    words = ("run", "-i", "--runtime-class", runtime, *SMALL, "--", "sh", "-c")
    script = "read word && test ${#word} = 32 && echo taken && sleep 1000"
    with subprocess.Popen(
        lab.argv(*words, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(f"{canary}\n".encode())
        client.stdin.flush()
        assert client.stdout.readline() == b"taken\n"
        (entry,) = lab.reservations()
        assert places_with(lab, canary, entry["id"]) == set()
        lab.request("DELETE", f"/v2/runs/{entry['id']}?grace_ms=0")
        client.stdin.close()
        client.wait()
    wait_buried(lab, entry["id"])
    assert places_with(lab, canary, entry["id"]) == set()


def test_arguments_and_environment_stand_in_the_spec_alone(lab: DaemonLab) -> None:
    canary = secrets.token_hex(16)
    done = launch(lab, canary, "runc", "sh", "-c", "sleep 1000", "sh")
    run_id = done.stdout.decode().strip()
    lab.wait_status(run_id, "running")
    known = places_with(lab, canary, run_id)
    workload = f"/sandboxes/{run_id}/workload"
    assert {place for place in known if workload not in place} == {
        f"{lab.layout.runs}/{run_id}/spec.json",
        f"{lab.layout.sandboxes}/{run_id}/bundle/config.json",
        "/v2/runs",  # its owner, who is root here, is told the command
    }
    assert lab.axern("reservations", "release", run_id, "--force", "--reason", "x").returncode == 0
    wait_buried(lab, run_id)
    left = {f"{lab.layout.runs}/{run_id}/spec.json", "/v2/runs"}
    assert places_with(lab, canary, run_id) == left
    assert "SECRET" not in json.dumps(lab.run(run_id))


def test_what_is_refused_or_only_asked_is_forgotten(lab: DaemonLab) -> None:
    canary = secrets.token_hex(16)
    words = ("--env", f"A={canary}", "--", "true", canary)
    for flags in (("--namespace", "team-a"), ("--request-memory", "1000TiB"), ("--dry-run",)):
        done = lab.axern("run", *flags, *words)
        assert canary.encode() not in done.stdout + done.stderr
    body = {"command": [canary], "env": {"A": canary}, "namespace": "team-a"}
    assert canary not in json.dumps(lab.request("POST", "/v2/explain", body))
    spec = Path(lab.base) / "run.yaml"
    spec.write_text(
        "api_version: axern/v1\nkind: Run\nmetadata: {namespace: team-a}\n"
        f"spec: {{command: ['true', 'x{canary}'], env: {{A: 'x{canary}'}}}}\n",
        encoding="utf-8",
    )
    done = lab.axern("run", "-f", str(spec))
    spec.unlink()
    assert done.returncode == 125
    assert canary.encode() not in done.stdout + done.stderr
    events = lab.request("GET", "/v2/quotas/team-a/events")["events"]
    assert sum(event["count"] for event in events) == 2
    kept = Path(lab.layout.state_dir, "events.jsonl")
    wait_until(lambda: kept.exists() and kept.stat().st_size > 0, 30)
    assert places_with(lab, canary) == set()


def test_control_what_is_no_secret_is_found_in_every_kind_of_place(lab: DaemonLab) -> None:
    name = secrets.token_hex(16)
    made = lab.request("POST", "/v2/reservations", {**LEASE, "name": name})["reservation"]["id"]
    known = places_with(lab, name, made)
    assert any(place.startswith(f"{lab.layout.state_dir}/ledger/") for place in known)
    expected = {
        *("ledger dump", "reservations -o json", f"reservations inspect {made} -o json"),
        *("/v2/reservations", f"/v2/reservations/{made}?evidence=true&history=true"),
        f"stranger: {made}",
    }
    assert expected - known == set()
    with open(f"{lab.base}/axernd.log", "a", encoding="utf-8") as log:
        log.write(f"{made[::-1]}\n")
    assert places_with(lab, made[::-1]) == {f"{lab.base}/axernd.log"}
