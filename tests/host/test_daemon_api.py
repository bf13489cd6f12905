"""The API of a real daemon: leases, rights of other users, a full node, what leaks and what not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import grp
import itertools
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from axern.api.client import ApiError, Client
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.host

GROUP = "nogroup"
UID, OTHER_UID = 1000, 1001
MIB = 1024**2
SMALL = {"cpu_milli": 10, "memory_bytes": 16 * MIB, "ephemeral_storage_bytes": MIB}
# Imports come first: another user may not be able to read them.
ASK = """
import json, os, sys
from axern.api.client import ApiError, Client
from ledger.errors import PermissionDenied
os.setgroups([])
os.setresgid(*[int(sys.argv[4])] * 3)
os.setresuid(*[int(sys.argv[3])] * 3)
with Client(sys.argv[1]) as client:
    for method, target, body in json.loads(sys.argv[2]):
        try:
            print(json.dumps([200, client.request(method, target, body)]))
        except ApiError as error:
            print(json.dumps([error.status, error.error]))
        except PermissionDenied as error:
            print(json.dumps([0, {"code": error.code}]))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(socket_group=GROUP, tick="200ms", facts_every="100ms") as made:
        made.start()
        yield made


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give back every lease of the shared daemon."""
    yield
    if "lab" in request.fixturenames:
        lab = request.getfixturevalue("lab")
        for entry in lab.reservations():
            kind = "runs" if entry["owner"]["kind"] == "run" else "reservations"
            query = "?grace_ms=0" if kind == "runs" else ""
            with contextlib.suppress(ApiError):
                lab.request("DELETE", f"/v2/{kind}/{entry['id']}{query}")
        lab.wait_empty()


def refused(lab: DaemonLab, *request: Any) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        lab.request(*request)
    return caught.value.status, caught.value.code


def ask_as(
    lab: DaemonLab, uid: int, *requests: tuple[Any, ...], gid: int | None = None
) -> list[tuple[int, Any]]:
    """Send *requests*, (method, target, body) each, from a process of another user."""
    group = grp.getgrnam(GROUP).gr_gid if gid is None else gid
    done = subprocess.run(
        [sys.executable, "-c", ASK, lab.socket, json.dumps(requests), str(uid), str(group)],
        capture_output=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def lease(lab: DaemonLab, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = lab.request("POST", "/v2/reservations", {"requests": SMALL, **fields})
    return made


def ids(lab: DaemonLab) -> set[str]:
    return {entry["id"] for entry in lab.reservations()}


def test_the_life_of_a_lease(lab: DaemonLab) -> None:
    made = lease(lab, name="ci job 7", ttl_ms=60_000, max_lifetime_ms=120_000)
    found, token = made["reservation"]["id"], made["token"]
    view = lab.request("GET", f"/v2/reservations/{found}")["reservation"]
    assert view["owner"] == {"kind": "external", "uid": 0, "name": "ci job 7"}
    assert (view["phase"], view["liveness"], view["enforced"]) == ("reserved", "active", False)
    assert view["last_heartbeat_at"] is not None
    assert [entry["id"] for entry in lab.reservations()] == [found]
    beat = {"token": token, "ttl_ms": 90_000}
    renewed = lab.request("POST", f"/v2/reservations/{found}/heartbeat", beat)["reservation"]
    assert renewed["expires_at"] > view["expires_at"]
    beat = {"token": token, "ttl_ms": 10**9}
    most = lab.request("POST", f"/v2/reservations/{found}/heartbeat", beat)["reservation"]
    assert renewed["expires_at"] < most["expires_at"]
    for wrong in ("", token + "x", token.swapcase(), "é"):
        answer = refused(lab, "POST", f"/v2/reservations/{found}/heartbeat", {"token": wrong})
        assert answer == (403, "permission_denied")
    assert refused(lab, "DELETE", f"/v2/runs/{found}") == (404, "not_found")
    released = lab.request("DELETE", f"/v2/reservations/{found}")["released"]
    assert refused(lab, "GET", f"/v2/reservations/{found}") == (404, "not_found")
    again = lab.request("DELETE", f"/v2/reservations/{found}")["released"]
    assert again == released | {"already": True}
    answer = refused(lab, "POST", f"/v2/reservations/{found}/heartbeat", {"token": token})
    assert answer == (404, "not_found")


def test_a_retry_is_the_same_lease_with_a_new_token(lab: DaemonLab) -> None:
    request_id = secrets.token_hex(4)
    first = lease(lab, request_id=request_id)
    again = lease(lab, request_id=request_id)
    assert again["reservation"]["id"] == first["reservation"]["id"]
    beat = f"/v2/reservations/{first['reservation']['id']}/heartbeat"
    assert lab.request("POST", beat, {"token": again["token"]})
    assert refused(lab, "POST", beat, {"token": first["token"]}) == (403, "permission_denied")
    assert len(lab.reservations()) == 1
    other = {"requests": SMALL, "request_id": request_id, "name": "other"}
    assert refused(lab, "POST", "/v2/reservations", other) == (409, "request_id_conflict")
    lab.request("DELETE", f"/v2/reservations/{first['reservation']['id']}")
    same = {"requests": SMALL, "request_id": request_id}
    assert refused(lab, "POST", "/v2/reservations", same) == (409, "state_conflict")


def test_a_lease_ends_by_itself(lab: DaemonLab) -> None:
    found = lease(lab, ttl_ms=300)["reservation"]["id"]
    wait_until(lambda: found not in ids(lab), 30)


def test_a_dead_owner_ends_its_lease() -> None:
    with daemon_lab(tick="100ms", facts_every="50ms", stale_after="400ms") as lab:
        lab.start()
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as owner:
            mine = lease(lab, owner_process={"pid": owner.pid})["reservation"]["id"]
            unknown = lease(lab)["reservation"]["id"]
            alive = lease(lab, owner_process={"pid": os.getpid()})["reservation"]["id"]
            owner.kill()
        wait_until(lambda: mine not in ids(lab), 30)
        assert ids(lab) == {unknown, alive}
        body = {"requests": SMALL, "owner_process": {"pid": owner.pid}}
        assert refused(lab, "POST", "/v2/reservations", body) == (400, "invalid_argument")


def test_other_users_have_their_own_and_nothing_else(lab: DaemonLab) -> None:
    body = {"command": ["sleep", "100"], "runtime_class": "runc", "requests": SMALL}
    mine = lab.request("POST", "/v2/runs", body)["run"]["id"]
    kept = lease(lab)["reservation"]["id"]
    (_, made), (_, held), (status, root) = ask_as(
        lab,
        UID,
        ("POST", "/v2/runs", body),
        ("POST", "/v2/reservations", {"requests": SMALL}),
        ("POST", "/v2/runs", {**body, "rootfs": "/"}),
    )
    assert (status, root["code"]) == (403, "permission_denied")
    assert made["run"]["owner"] == {"uid": UID}
    theirs, their_lease = made["run"]["id"], held["reservation"]["id"]
    lab.wait_status(mine, "running")
    lab.wait_status(theirs, "running")
    foreign = [
        ("DELETE", f"/v2/runs/{mine}", None),
        ("DELETE", f"/v2/runs/{theirs}", None),
        ("GET", f"/v2/runs/{mine}/stream?follow=false", None),
        ("DELETE", f"/v2/reservations/{kept}", None),
        ("DELETE", f"/v2/reservations/{mine}", None),
        ("DELETE", f"/v2/reservations/{their_lease}", None),
        ("POST", f"/v2/reservations/{kept}/heartbeat", {"token": held["token"]}),
        ("POST", f"/v2/reservations/{mine}/heartbeat", {"token": ""}),
    ]
    for status, error in ask_as(lab, OTHER_UID, *foreign):
        assert (status, error["code"]) == (403, "permission_denied")
    reads = [
        ("GET", "/v2/runs", None),
        ("GET", "/v2/reservations", None),
        ("GET", "/v2/node", None),
    ]
    (_, runs), (_, entries), _ = ask_as(lab, UID, *reads)
    commands = {run["id"]: run["command"] for run in runs["runs"]}
    assert (commands[mine], commands[theirs]) == (None, body["command"])
    assert {entry["id"] for entry in entries["reservations"]} == {mine, kept, theirs, their_lease}
    own = [
        ("DELETE", f"/v2/runs/{theirs}?grace_ms=0", None),
        ("DELETE", f"/v2/reservations/{their_lease}", None),
    ]
    assert [status for status, _ in ask_as(lab, UID, *own)] == [200, 200]
    assert lab.run(mine)["command"] == body["command"]
    wait_until(lambda: ids(lab) == {mine, kept}, 60)


def test_who_is_not_in_the_group_is_not_heard(lab: DaemonLab) -> None:
    ((status, error),) = ask_as(lab, UID, ("GET", "/v2/health", None), gid=UID)
    assert (status, error["code"]) == (0, "permission_denied")


def node_dimension(lab: DaemonLab, name: str) -> dict[str, Any]:
    dimensions = lab.request("GET", "/v2/node")["node"]["dimensions"]
    return next(dimension for dimension in dimensions if dimension["name"] == name)


def test_exactly_as_many_as_fit_are_admitted(lab: DaemonLab) -> None:
    free = node_dimension(lab, "cpu_milli")["headroom"]
    body = {"requests": {**SMALL, "cpu_milli": free // 10}, "ttl_ms": 3_600_000}

    def one(_: int) -> tuple[int, Any]:
        with Client(lab.socket) as client:
            try:
                return 201, client.request("POST", "/v2/reservations", body)
            except ApiError as error:
                return error.status, error.error

    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(one, range(40)))
    assert sorted(status for status, _ in answers) == [201] * 10 + [507] * 30
    assert len(lab.reservations()) == 10
    for status, error in answers:
        if status != 507:
            continue
        assert error["code"] == "node_cpu_capacity_exhausted"
        assert error["retryable"] is True
        (shortfall,) = error["shortfalls"]
        assert shortfall["gate"] == "node"
        assert shortfall["requested"] - shortfall["available"] == shortfall["short_by"] > 0
        assert shortfall["committed"] + shortfall["available"] == shortfall["limit"]
    assert node_dimension(lab, "cpu_milli")["committed"] == free // 10 * 10


def raw(path: str, method: str, target: str, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the head and the document of an answer."""
    content = json.dumps(body).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        head = f"{method} {target} HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(content)}"
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    answered, _, document = received.partition(b"\r\n\r\n")
    return answered.decode(), json.loads(document)


def test_every_shortfall_is_told_at_once(lab: DaemonLab) -> None:
    free = {name: node_dimension(lab, name)["headroom"] for name in SMALL}
    most = {name: amount * 3 // 4 for name, amount in free.items()}
    lease(lab, requests=most, ttl_ms=45_000)
    half = {name: amount // 2 for name, amount in free.items()}
    fewer = {name: half[name] for name in ("cpu_milli", "memory_bytes")}
    before = os.listdir(lab.layout.runs)
    of_all = ("/v2/reservations", {"requests": half}, "reservation")
    of_two = ("/v2/runs", {"requests": fewer, "command": ["true"]}, "cpu_and_memory")
    for target, body, which in (of_all, of_two):
        head, document = raw(lab.socket, "POST", target, body)
        error = document["error"]
        assert head.startswith("HTTP/1.1 507")
        assert "content-type: application/problem+json" in head
        assert f"retry-after: {error['retry_after_s']}\r\n" in head
        assert 1 <= error["retry_after_s"] <= 45
        assert error["code"] == f"node_{which}_capacity_exhausted"
        assert {s["dimension"]: s["requested"] for s in error["shortfalls"]} == body["requests"]
    assert os.listdir(lab.layout.runs) == before


def test_what_can_never_fit_is_said_to(lab: DaemonLab) -> None:
    limit = node_dimension(lab, "memory_bytes")["effective_allocatable"]
    body = {"requests": {**SMALL, "memory_bytes": limit + 1}}
    head, document = raw(lab.socket, "POST", "/v2/reservations", body)
    assert head.startswith("HTTP/1.1 422")
    assert "retry-after" not in head
    error = document["error"]
    assert (error["code"], error["retryable"]) == ("request_exceeds_node", False)
    assert error["admission_summary"] == "node memory capacity exhausted"
    huge = dict.fromkeys(SMALL, 2**53 - 1)
    body = {"requests": huge}
    assert raw(lab.socket, "POST", "/v2/reservations", body)[0].startswith("HTTP/1.1 422")


def test_a_lease_takes_no_limits(lab: DaemonLab) -> None:
    body = {"requests": SMALL, "limits": {"memory_bytes": 2 * SMALL["memory_bytes"]}}
    assert refused(lab, "POST", "/v2/reservations", body) == (400, "invalid_argument")


def test_a_limit_needs_enforcement(lab: DaemonLab) -> None:
    for name, amount in (("cpu_milli", 100), ("memory_bytes", 64 * MIB)):
        body = {"command": ["true"], "limits": {name: amount}, "runtime_class": "runc"}
        assert refused(lab, "POST", "/v2/runs", body) == (422, "node_selection_error")


def test_required_enforcement_that_is_not_there_refuses_every_sandbox_and_serves_leases() -> None:
    with daemon_lab(cgroup_enforcement="required") as lab:
        lab.start()
        absent = [
            item["key"]
            for item in lab.request("GET", "/v2/node")["node"]["capabilities"]
            if item["status"] == "absent"
        ]
        assert "limit/pids" in absent
        for runtime in ("runc", "runsc"):
            body = {"command": ["true"], "runtime_class": runtime}
            with pytest.raises(ApiError) as caught:
                lab.request("POST", "/v2/runs", body)
            assert caught.value.code == "node_selection_error"
            reasons = caught.value.error["reasons"]
            assert any(r.startswith("capability limit/pids is absent: ") for r in reasons)
            assert any(f"limit/ephemeral-storage/{runtime} is absent: " in r for r in reasons)
            assert "capacity" not in caught.value.message
        assert os.listdir(lab.layout.runs) == []
        assert lease(lab)["reservation"]["phase"] == "reserved"


EXPECTED_MODES = {
    "state_dir/ledger": 0o750,
    "state_dir/runs": 0o700,
    "run_dir/exits": 0o700,
    "run_dir/runc": 0o700,
    "run_dir/runsc": 0o700,
    "run_dir/axernd.sock": 0o660,
}


def test_modes_and_owners_of_every_file(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sleep", "100")
    lab.wait_status(run_id, "running")
    for name, mode in EXPECTED_MODES.items():
        root, _, rest = name.partition("/")
        path = f"{getattr(lab.layout, root)}/{rest}"
        assert stat.S_IMODE(os.lstat(path).st_mode) == mode, name
    assert os.lstat(lab.socket).st_gid == grp.getgrnam(GROUP).gr_gid
    skipped = ("/templates/", "/filestore/", f"/sandboxes/{run_id}/rootfs", "/lower", "/upper")
    trees = itertools.chain(os.walk(lab.base), os.walk(lab.layout.run_dir))
    for folder, folders, files in trees:
        for path in (f"{folder}/{name}" for name in (*folders, *files)):
            status = os.lstat(path)
            if any(part in path for part in skipped) or stat.S_ISLNK(status.st_mode):
                continue
            assert status.st_mode & (stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID) == 0, path
            within = path.removeprefix(lab.base)
            if within.startswith(("/state/ledger/", "/state/runs/")):
                assert (status.st_uid, status.st_gid) == (0, 0), path
                private = 0o027 if within.startswith("/state/ledger/") else 0o077
                assert stat.S_IMODE(status.st_mode) & private == 0, path
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    lab.wait_status(run_id, "cancelled")
    for name in os.listdir(f"{lab.layout.runs}/{run_id}"):
        path = f"{lab.layout.runs}/{run_id}/{name}"
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600, path


def files_with(folder: str, word: bytes) -> list[str]:
    found = []
    for here, _, names in os.walk(folder):
        for path in (f"{here}/{name}" for name in names):
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    found += [path] if word in file.read() else []
    return found


def test_what_a_run_is_told_stays_between_it_and_its_owner() -> None:
    canary = f"canary{secrets.token_hex(8)}"
    with daemon_lab(socket_group=GROUP) as lab:
        daemon = lab.start()
        bodies: list[dict[str, Any]] = [
            {"command": ["sh", "-c", "true", canary], "env": {"TOKEN": canary}},
            {"command": [canary]},
            {"command": [f"/{canary}"]},
            {"command": ["true"], "cwd": f"/{canary}"},
            {"command": ["sh", "-c", f"{canary}; exit 3"]},
        ]
        made = [
            lab.request("POST", "/v2/runs", {**body, "runtime_class": runtime, "requests": SMALL})
            for body in bodies
            for runtime in ("runc", "runsc")
        ]
        for answer in made:
            lab.wait_status(answer["run"]["id"], "succeeded", "failed")
        lab.wait_empty()
        for body in (
            {"command": [f"{canary}\x00"]},
            {"command": ["true"], "env": {"A": [canary]}},
            {"command": ["true"], "env": {"A": canary}, "template": "unknown"},
        ):
            assert refused(lab, "POST", "/v2/runs", body)[0] == 400
        targets = ["/v2/runs", "/v2/reservations", "/v2/node"]
        targets += [f"/v2/runs/{answer['run']['id']}" for answer in made]
        seen = ask_as(lab, OTHER_UID, *(("GET", target, None) for target in targets))
        assert [status for status, _ in seen] == [200] * len(targets)
        assert canary not in json.dumps(seen)
        assert canary in json.dumps(lab.request("GET", "/v2/runs"))
        lab.stop(daemon)
        assert canary not in lab.log()
        assert files_with(f"{lab.base}/state/ledger", canary.encode()) == []
        kept = files_with(lab.base, canary.encode())
        assert all(path.startswith(f"{lab.layout.runs}/") for path in kept), kept
        assert files_with(lab.base, b"generation") != []  # control: the search does find words
