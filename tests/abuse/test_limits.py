"""The limits of the contract, section 7: what stands at one is taken, one more is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from axern.api.client import ApiError
from axern.api.schema import LONGEST_MS, TOTAL_LIMIT_BYTES
from ledger.units import MAX_INTEGER
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

Json = dict[str, Any]
ARG_MAX_BYTES = 126_976
"""128 KiB less one page; each text counts with the NUL behind it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Two requests: one at the limit and one beyond it, and what the refusal must name."""

    within: Json
    beyond: Json
    told: str
    path: str = "/v2/runs"


def run(**fields: Any) -> Json:
    return {"command": ["true"], **fields}


def nested(depth: int) -> Json:
    """Return a lease's body that is wrong by its depth alone, or by an unknown field."""
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return {"x": value}


LIMITS = {
    "items of argv": Limit(
        run(command=["a"] * 256), run(command=["a"] * 257), "command: it must have at most 256"
    ),
    "all of argv": Limit(
        run(command=["a" * (ARG_MAX_BYTES - 3), "b"]),
        run(command=["a" * (ARG_MAX_BYTES - 2), "b"]),
        f"at most {ARG_MAX_BYTES}",
    ),
    "all of argv, in bytes": Limit(
        run(command=["é" * ((ARG_MAX_BYTES - 2) // 2)]),
        run(command=["é" * (ARG_MAX_BYTES // 2)]),
        f"at most {ARG_MAX_BYTES}",
    ),
    "one text": Limit(run(), run(command=["a" * 131_072]), "at most 131071 bytes"),
    "a NUL in argv": Limit(run(command=["a", "\x01"]), run(command=["a", "b\x00"]), "NUL"),
    "an empty argv": Limit(run(command=["a", ""]), run(command=[]), "must not be empty"),
    "a program without a name": Limit(run(), run(command=[""]), "must not be empty"),
    "variables": Limit(
        run(env={f"V{number}": "" for number in range(256)}),
        run(env={f"V{number}": "" for number in range(257)}),
        "env: it must have at most 256 items",
    ),
    "all of env": Limit(
        run(env={"A": "b" * (ARG_MAX_BYTES - 3)}),
        run(env={"A": "b" * (ARG_MAX_BYTES - 2)}),
        f"at most {ARG_MAX_BYTES}",
    ),
    "a NUL in env": Limit(run(env={"A": "\n"}), run(env={"A": "\x00"}), "NUL"),
    "a variable's name": Limit(run(env={"a b": ""}), run(env={"a=b": ""}), "is not a variable"),
    "a path": Limit(run(cwd="/" * 4095), run(cwd="/" * 4096), "cwd: "),
    "a name": Limit(run(namespace="a" * 63), run(namespace="a" * 64), "1 to 63 of"),
    "a request id": Limit(run(request_id="a" * 128), run(request_id="a" * 129), "1 to 128 of"),
    "an integer": Limit(
        run(requests={"memory_bytes": MAX_INTEGER}),
        run(requests={"memory_bytes": MAX_INTEGER + 1}),
        f"at most {MAX_INTEGER}",
    ),
    "an integer below": Limit(
        run(requests={"memory_bytes": 1}), run(requests={"memory_bytes": -1}), "at least 0"
    ),
    "no integer": Limit(run(), run(requests={"memory_bytes": 1.0}), "whole number"),
    "no number": Limit(run(), run(requests={"memory_bytes": True}), "whole number"),
    "a time": Limit(run(ttl_ms=LONGEST_MS), run(ttl_ms=LONGEST_MS + 1), f"at most {LONGEST_MS}"),
    "a time below": Limit(run(ttl_ms=1), run(ttl_ms=0), "at least 1"),
    "an unknown field": Limit(run(), run(comand=1), "unknown field 'comand'"),
    "a lease's name": Limit(
        {"name": "ü" * 128}, {"name": "ü" * 129}, "128 characters", "/v2/reservations"
    ),
    "a lease's name on two lines": Limit(
        {"name": "a b"}, {"name": "a\nb"}, "printable", "/v2/reservations"
    ),
    "depth": Limit({}, nested(9), "deeper than 8", "/v2/reservations"),
    "depth, and a field nobody knows": Limit({}, nested(8), "unknown field", "/v2/reservations"),
}

TARGETS = {
    "GET /v2/runs?namespace=a&namespace=b": "stands twice",
    "GET /v2/runs?" + "&".join(f"a{number}=" for number in range(17)): "at most 16 parameters",
    "GET /v2/runs?colour=red": "unknown query parameter 'colour'",
    "GET /v2/runs/abc": "4 to 32 hexadecimal digits",
    "GET /v2/runs/%00%0a%1b": "4 to 32 hexadecimal digits",
    "GET /v2/runs/..%2f..%2f": "there is no",
    "GET //v2/health": "there is no",
    "GET /v2/health/": "there is no",
    "GET /V2/health": "there is no",
    "PUT /v2/runs": "does not take PUT",
    "PATCH /v2/health": "does not take PATCH",
    "OPTIONS /v2/health": "does not take OPTIONS",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    """Give a daemon on a host without runtimes, so that no good request ever launches anything."""
    with daemon_lab(runc="/none", runsc="/none", entry_cap=3, namespace_entry_cap=2) as made:
        made.start()
        yield made
        assert "Traceback" not in made.log()


def refusal(lab: DaemonLab, method: str, path: str, body: Json | None = None) -> ApiError | None:
    """Return what the daemon says against it; what it grants is given back."""
    try:
        granted = lab.request(method, path, body)
    except ApiError as error:
        return error
    lab.request("DELETE", f"/v2/reservations/{granted['reservation']['id']}")
    return None


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_where_the_contract_says(lab: DaemonLab, name: str) -> None:
    limit = LIMITS[name]
    taken = refusal(lab, "POST", limit.path, limit.within)
    assert taken is None or taken.code in TAKEN, taken
    refused = refusal(lab, "POST", limit.path, limit.beyond)
    assert refused is not None
    assert (refused.status, refused.code) == (400, "invalid_argument")
    assert limit.told in refused.message
    assert len(refused.message) < 400


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_is_none_is_refused(lab: DaemonLab, target: str) -> None:
    refused = refusal(lab, *target.split(" ", 1))  # type: ignore[arg-type]
    assert refused is not None
    assert refused.status in (400, 404)
    assert TARGETS[target] in refused.message


def test_a_namespace_has_a_cap_of_its_own(lab: DaemonLab) -> None:
    small = {"requests": {"cpu_milli": 1, "memory_bytes": 1}}
    made = [lab.request("POST", "/v2/reservations", small) for _ in range(2)]
    refused = refusal(lab, "POST", "/v2/reservations", small)
    assert refused is not None
    assert refused.code == "node_reservation_capacity_exhausted"
    for each in made:
        lab.request("DELETE", f"/v2/reservations/{each['reservation']['id']}")


TAKEN = ("node_selection_error", "request_exceeds_node", "not_found")
"""What a good request hears here: there is no runtime, node or namespace for it."""

FLAGS: dict[str, tuple[list[str], list[str], str]] = {
    "items of argv": (["--", *["a"] * 256], ["--", *["a"] * 257], "at most 256"),
    "all of argv": (
        ["--", "a" * (TOTAL_LIMIT_BYTES - 1)],
        ["--", "a" * TOTAL_LIMIT_BYTES],
        f"at most {TOTAL_LIMIT_BYTES}",
    ),
    "argv that is no text": (["--", "a\n\x1b"], ["--", "a\udcff"], "UTF-8"),
    "variables": (
        [f"--env=V{number}=" for number in range(256)] + ["--", "a"],
        [f"--env=V{number}=" for number in range(257)] + ["--", "a"],
        "--env: it must have at most 256",
    ),
    "a variable that is no text": (
        ["--env=A=\n", "--", "a"],
        ["--env=A=\udcff", "--", "a"],
        "UTF-8",
    ),
    "a namespace": (
        ["--namespace", "a" * 63, "--", "a"],
        ["--namespace", "a" * 64, "--", "a"],
        "--namespace: it must be 1 to 63",
    ),
    "a request id": (
        ["--request-id", "a" * 128, "--", "a"],
        ["--request-id", "a" * 129, "--", "a"],
        "--request-id: it must be 1 to 128",
    ),
    "memory": (
        ["--request-memory", f"{MAX_INTEGER}B", "--", "a"],
        ["--request-memory", f"{MAX_INTEGER + 1}B", "--", "a"],
        "--request-memory",
    ),
    "time": (["--ttl", "36500d", "--", "a"], ["--ttl", "36501d", "--", "a"], "--ttl"),
    "a folder": (["--cwd", "/" * 4095, "--", "a"], ["--cwd", "/" * 4096, "--", "a"], "--cwd"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_the_command_line_has_the_same_limits(lab: DaemonLab, name: str) -> None:
    within, beyond, told = FLAGS[name]
    done = lab.axern("run", "--detach", "-o", "json", *within)
    assert json.loads(done.stdout)["error"]["code"] in TAKEN
    refused = lab.axern("run", "--detach", "-o", "json", *beyond)
    assert refused.returncode == 125
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "invalid_argument"
    assert told in error["message"]
    assert b"Traceback" not in refused.stderr
