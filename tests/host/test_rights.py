"""The rights at a glance: who may do what to whose, asked of a real daemon as real users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.host.daemon import DaemonLab, daemon_lab
from tests.host.identities import IDENTITIES, KEYS, LAUNCHERS, OTHER, READERS, Identity

pytestmark = pytest.mark.host

# `mine` is the caller's own, made when they still had all rights; `team` is somebody else's in the
# namespace that the lead owns, `far` somebody else's in another one. + may, . may not.
MATRIX = """
                                         whose  root admin lead member reader nobody
GET    /v2/health                        -       +     +    +     +      +      +
GET    /v2/whoami                        -       +     +    +     +      +      +
GET    /v2/openapi.json                  -       +     +    +     +      +      +

GET    /v2/node                          -       +     +    +     +      +      .
GET    /v2/node/doctor                   -       +     +    +     +      +      .
GET    /v2/events                        -       +     +    +     +      +      .
GET    /v2/doctor                        -       +     +    +     +      +      .
GET    /v2/runs                          -       +     +    +     +      +      .
GET    /v2/runs/{id}                     mine    +     +    +     +      +      .
GET    /v2/runs/{id}                     far     +     +    +     +      +      .
GET    /v2/reservations                  -       +     +    +     +      +      .
GET    /v2/reservations/{id}             mine    +     +    +     +      +      .
GET    /v2/reservations/{id}             far     +     +    +     +      +      .
GET    /v2/templates                     -       +     +    +     +      +      .
GET    /v2/templates/{name}              -       +     +    +     +      +      .
GET    /v2/namespaces                    -       +     +    +     +      +      .
GET    /v2/namespaces/{name}             -       +     +    +     +      +      .
GET    /v2/quotas                        -       +     +    +     +      +      .
GET    /v2/quotas/{namespace}            -       +     +    +     +      +      .
GET    /v2/quotas/{namespace}/events     -       +     +    +     +      +      .
GET    /v2/claims                        -       +     +    +     +      +      .
GET    /v2/claims/{id}                   -       +     +    +     +      +      .
POST   /v2/explain                       -       +     +    +     +      +      .
GET    /v2/queue                         -       +     +    +     +      +      .

GET    /v2/runs/{id}/stream              mine    +     +    +     +      +      .
GET    /v2/runs/{id}/stream              team    +     +    +     .      .      .
GET    /v2/runs/{id}/stream              far     +     +    .     .      .      .
POST   /v2/runs/{id}/stdin               mine    +     +    .     +      .      .
POST   /v2/runs/{id}/stdin               team    +     +    .     .      .      .
POST   /v2/runs/{id}/stdin               far     +     +    .     .      .      .
GET    /v2/runs/{id}/execs               mine    +     +    +     +      +      .
GET    /v2/runs/{id}/execs               far     +     +    +     +      +      .
POST   /v2/runs/{id}/execs               mine    +     +    .     +      .      .
POST   /v2/runs/{id}/execs               team    +     +    .     .      .      .
POST   /v2/runs/{id}/execs               far     +     +    .     .      .      .
GET    /v2/runs/{id}/execs/{exec}        -       +     +    +     +      +      +
DELETE /v2/runs/{id}/execs/{exec}        -       +     +    +     +      +      +
POST   /v2/runs/{id}/execs/{exec}/signal -       +     +    +     +      +      +
DELETE /v2/runs/{id}                     mine    +     +    +     +      +      +
DELETE /v2/runs/{id}                     team    +     +    +     .      .      .
DELETE /v2/runs/{id}                     far     +     +    .     .      .      .
POST   /v2/reservations/{id}/heartbeat   token   +     +    .     +      .      .
POST   /v2/reservations/{id}/heartbeat   wrong   .     .    .     .      .      .
DELETE /v2/reservations/{id}             mine    +     +    +     +      +      +
DELETE /v2/reservations/{id}             team    +     +    +     .      .      .
DELETE /v2/reservations/{id}             far     +     +    .     .      .      .
GET    /v2/queue/{id}                    -       +     +    +     +      +      .
GET    /v2/queue/{id}/stream             mine    +     +    +     +      +      +
GET    /v2/queue/{id}/stream             far     +     +    .     .      .      .
GET    /v2/queue/{id}/stream             team    +     +    +     .      .      .
DELETE /v2/queue/{id}                    -       +     +    +     +      +      +
POST   /v2/runs/prune                    mine    +     +    +     +      +      .
POST   /v2/runs/prune                    team    +     +    +     .      .      .
POST   /v2/runs/prune                    far     +     +    .     .      .      .

POST   /v2/runs                          -       +     +    .     +      .      .
POST   /v2/runs                          rootfs  +     +    .     .      .      .
POST   /v2/reservations                  -       +     +    .     +      .      .
POST   /v2/batch                         -       +     +    .     +      .      .
POST   /v2/batch                         mine    +     +    .     +      .      .
POST   /v2/batch                         far     +     +    .     .      .      .

PATCH  /v2/namespaces/{name}             team    +     +    +     .      .      .
PATCH  /v2/namespaces/{name}             far     +     +    .     .      .      .
PATCH  /v2/namespaces/{name}             bounds  +     +    .     .      .      .
POST   /v2/namespaces                    -       +     +    .     .      .      .
PATCH  /v2/quotas/{namespace}            -       +     +    .     .      .      .
DELETE /v2/quotas/{namespace}            -       +     +    .     .      .      .
POST   /v2/claims                        -       +     +    .     .      .      .
PATCH  /v2/claims/{id}                   -       +     +    .     .      .      .
DELETE /v2/claims/{id}                   -       +     +    .     .      .      .
DELETE /v2/namespaces/{name}             -       +     +    .     .      .      .
POST   /v2/templates                     -       +     +    .     .      .      .
DELETE /v2/templates/{name}              -       +     +    .     .      .      .
POST   /v2/node/drain                    -       +     +    .     .      .      .
DELETE /v2/node/drain                    -       +     +    .     .      .      .
POST   /v2/node/retire                   -       +     +    .     .      .      .
POST   /v2/queue/pause                   -       +     +    .     .      .      .
DELETE /v2/queue/pause                   -       +     +    .     .      .      .
"""
ODD = {
    ("POST", "/v2/templates"): 400,  # of a folder that is not there
    ("DELETE", "/v2/templates/{name}"): 409,  # of the default one
    ("GET", "/v2/runs/{id}/execs/{exec}"): 404,  # there is none of that id
    ("DELETE", "/v2/runs/{id}/execs/{exec}"): 404,
    ("POST", "/v2/runs/{id}/execs/{exec}/signal"): 404,
    ("GET", "/v2/queue/{id}"): 404,  # it was granted at once
    ("DELETE", "/v2/queue/{id}"): 404,
    ("POST", "/v2/node/retire"): 409,  # with what is left on it
}
"""What an allowed request is answered whose success would be in the way; else it succeeds."""
SMALL = {"cpu_milli": 1, "memory_bytes": 1024**2}
RUN = {
    "runtime_class": "runc",
    "requests": {**SMALL, "memory_bytes": 16 * 1024**2, "ephemeral_storage_bytes": 1024**2},
}
Row = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Things:
    """What one identity finds: runs, leases and their tokens by whose they are, and a claim."""

    name: str
    runs: dict[str, str]
    leases: dict[str, str]
    tokens: dict[str, str]
    claim: str

    def request(self, row: Row) -> tuple[str, str, Any]:
        """Return the method, target and body that *row* stands for."""
        method, path, whose = row
        return method, self._target(path, whose), self._body(method, path, whose)

    def _target(self, path: str, whose: str) -> str:
        if "{id}" in path:
            ids = self.runs if "/runs/" in path or "/queue/" in path else self.leases
            found = self.claim if "/claims/" in path else ids.get(whose, ids["mine"])
            path = path.replace("{id}", found)
        space = {"team": "team-a", "bounds": "team-a", "far": "team-b"}.get(whose, self.name)
        path = path.replace("{exec}", "f" * 32)
        name = "busybox" if "/templates/" in path else space
        path = path.replace("{name}", name).replace("{namespace}", name)
        return (
            f"{path}?follow=false"
            if path.endswith(("/stream", "/events")) and "/qu" not in path
            else path
        )

    def _body(self, method: str, path: str, whose: str) -> Any:
        if method in ("GET", "DELETE"):
            return None
        others: dict[str, dict[str, Any]] = {
            "team": {"all_users": True, "namespace": "team-a"},
            "far": {"all_users": True},
        }
        rootfs = {"rootfs": "/none"} if whose == "rootfs" else {}
        release = {"release": {"id": self.leases.get(f"batch-{whose}")}}
        bounds = {"maximum": {"memory_bytes": 2**50}}
        return {
            "/v2/explain": {"command": ["true"], **RUN},
            "/v2/runs/prune": {"dry_run": True, **others.get(whose, {})},
            "/v2/runs/{id}/stdin": "words",
            "/v2/runs/{id}/execs": {"command": ["true"]},
            "/v2/runs/{id}/execs/{exec}/signal": {"signal": "TERM"},
            "/v2/runs": {"command": ["true"], **RUN, **rootfs},
            "/v2/reservations": {"requests": SMALL},
            "/v2/batch": {
                "mode": "all",
                "operations": [{"reserve": {"requests": SMALL}} if whose == "-" else release],
            },
            "/v2/reservations/{id}/heartbeat": {
                "token": self.tokens["mine"] if whose == "token" else "wrong"
            },
            "/v2/namespaces/{name}": bounds
            if whose == "bounds"
            else {"default_requests": {"cpu_milli": 10}},
            "/v2/namespaces": {"name": f"new-{self.name}"},
            "/v2/quotas/{namespace}": {"quota": {"sandbox_slots": 900}},
            "/v2/claims": {"namespace": f"more-{self.name}", "amounts": {"cpu_milli": 1}},
            "/v2/claims/{id}": {"amounts": {"cpu_milli": 2}},
            "/v2/templates": {"name": "t", "source": {"kind": "directory", "path": "/none"}},
            "/v2/queue/pause": None,
            "/v2/node/drain": {"reason": "a test"},
            "/v2/node/retire": {"reason": "a test"},
        }[path]


def table(text: str) -> dict[Row, dict[str, bool]]:
    """Return for each row of *text* who may."""
    head, *lines = [line.split() for line in text.splitlines() if line.strip()]
    names = head[1:]
    return {
        (method, path, whose): {name: mark == "+" for name, mark in zip(names, marks, strict=True)}
        for method, path, whose, *marks in lines
    }


def mistakes(
    text: str, seen: dict[str, dict[Row, tuple[int, Any]]]
) -> list[tuple[str, Row, tuple[int, Any]]]:
    """Return every answer that is not as *text* says."""
    found = []
    for row, allowed in table(text).items():
        for name, answers in seen.items():
            status, answer = answers[row]
            denied = status == 403 and answer["error"]["code"] == "permission_denied"
            expected = ODD.get(row[:2], 400 if row[2] == "rootfs" else 200)
            good = status // 100 == 2 if expected == 200 else status == expected
            if denied == allowed[name] or (allowed[name] and not good):
                found.append((name, row, answers[row]))
    return found


def missing(text: str, document: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the routes of an OpenAPI *document* that *text* has no row for."""
    listed = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    return listed - {(method, path) for method, path, _ in table(text)}


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(**KEYS) as made:
        made.start()
        for name in ("team-a", "team-b"):
            made.request("POST", "/v2/namespaces", {"name": name})
        yield made


def things(lab: DaemonLab, who: Identity) -> Things:
    """Make what *who* finds; their own while they may launch, others' by somebody else."""
    runs, leases, tokens = {}, {}, {}
    for kind in ("", "more-"):
        lab.request("POST", "/v2/namespaces", {"name": f"{kind}{who.name}"})
    claim = {"namespace": who.name, "amounts": {"cpu_milli": 1}}
    claim_id = lab.request("POST", "/v2/claims", claim)["claim"]["id"]
    owners = {"mine": who.with_groups(LAUNCHERS), "team": OTHER, "far": OTHER}
    for whose, owner in owners.items():
        space = {"namespace": "team-b" if whose == "far" else "team-a"}
        run = {"command": ["sleep", "600"], **RUN, **space, "stdin": True}
        lease = {"requests": SMALL, **space}
        started, *held = owner.ask(
            lab,
            ("POST", "/v2/runs", run),
            ("POST", "/v2/reservations", lease),
            ("POST", "/v2/reservations", lease),
        )
        assert started[0] == 201, started
        runs[whose] = started[1]["run"]["id"]
        leases[whose], leases[f"batch-{whose}"] = (made["reservation"]["id"] for _, made in held)
        tokens[whose] = held[0][1]["token"]
    for run_id in runs.values():
        lab.wait_status(run_id, "running")
    return Things(who.name, runs, leases, tokens, claim_id)


@pytest.fixture(scope="module")
def seen(lab: DaemonLab) -> dict[str, dict[Row, tuple[int, Any]]]:
    """Send every row as everybody, the weakest first, and return what each was answered."""
    rows = list(table(MATRIX))
    answers = {}
    for who in reversed(IDENTITIES):
        found = things(lab, who)
        told = who.ask(lab, *(found.request(row) for row in rows))
        answers[who.name] = dict(zip(rows, told, strict=True))
    return answers


def test_every_route_has_a_row(lab: DaemonLab) -> None:
    assert missing(MATRIX, lab.request("GET", "/v2/openapi.json")) == set()


def test_the_rights_are_as_the_matrix_says(seen: dict[str, dict[Row, tuple[int, Any]]]) -> None:
    assert mistakes(MATRIX, seen) == []


def test_a_refusal_says_the_rule_and_whom_it_is_for(
    seen: dict[str, dict[Row, tuple[int, Any]]],
) -> None:
    for who in IDENTITIES:
        for row, (status, answer) in seen[who.name].items():
            if status == 403:
                error = answer["error"]
                assert f"uid {who.uid}" in error["message"] or row[2] == "wrong", error
                assert "may_" in error["hint"] or " is for " in error["hint"] or row[2] == "wrong"


def test_control_each_wrong_cell_is_found(seen: dict[str, dict[Row, tuple[int, Any]]]) -> None:
    lines = [line for line in MATRIX.splitlines() if line.strip()][1:]
    for line, column in product(lines, range(len(IDENTITIES))):
        words = line.split()
        words[3 + column] = "." if words[3 + column] == "+" else "+"
        (found,) = mistakes(MATRIX.replace(line, " ".join(words)), seen)
        assert found[:2] == (IDENTITIES[column].name, tuple(words[:3]))


def test_control_a_route_without_a_row_is_found(lab: DaemonLab) -> None:
    document = lab.request("GET", "/v2/openapi.json")
    document["paths"]["/v2/secrets"] = {"get": {}}
    assert missing(MATRIX, document) == {("GET", "/v2/secrets")}


def test_a_command_is_told_to_its_owner_the_lead_and_admins(lab: DaemonLab) -> None:
    body = {"command": ["true", "secret"], **RUN, "namespace": "team-a"}
    ((_, made),) = OTHER.ask(lab, ("POST", "/v2/runs", body))
    target = f"/v2/runs/{made['run']['id']}"
    told = {who.name: who.ask(lab, ("GET", target, None))[0][1] for who in (*IDENTITIES, OTHER)}
    may = {name for name, answer in told.items() if "secret" in json.dumps(answer)}
    assert may == {"root", "admin", "lead", "other"}


def test_holders_are_named_to_those_who_may_see_them(lab: DaemonLab) -> None:
    held = {"requests": {"cpu_milli": 1, "memory_bytes": 2**28}, "namespace": "team-a"}
    ((_, made),) = OTHER.ask(lab, ("POST", "/v2/reservations", held))
    asked = {"command": ["true"], "requests": {"cpu_milli": 1, "memory_bytes": 2**50}}
    named = {}
    for who in (*IDENTITIES[:-1], OTHER):
        _, answer = who.ask(lab, ("POST", "/v2/explain", {**asked, "runtime_class": "runc"}))[0]
        holders = answer["decision"]["refusal"]["holders"]
        named[who.name] = made["reservation"]["id"] in [each["id"] for each in holders]
    assert named == {
        "root": True, "admin": True, "lead": True, "member": False, "reader": False, "other": True,
    }  # fmt: skip
    OTHER.ask(lab, ("DELETE", f"/v2/reservations/{made['reservation']['id']}", None))


def test_with_too_many_groups_to_ask_for_none_counts_but_the_primary_one(lab: DaemonLab) -> None:
    for count, given in ((255, ["read"]), (256, [])):
        many = Identity("many", 2006, (READERS, *range(10_000, 10_000 + count)))
        ((_, answer),) = many.ask(lab, ("GET", "/v2/whoami", None))
        assert answer["you"]["rights"] == given


def test_everybody_may_ask_what_they_may(lab: DaemonLab) -> None:
    told = {who.name: who.ask(lab, ("GET", "/v2/whoami", None))[0][1]["you"] for who in IDENTITIES}
    assert {name: you["rights"] for name, you in told.items()} == {
        "root": ["read", "reserve", "launch", "admin"],
        "admin": ["read", "reserve", "launch", "admin"],
        "lead": ["read"],
        "member": ["read", "reserve", "launch"],
        "reader": ["read"],
        "nobody": [],
    }
    assert [name for name, you in told.items() if you["namespaces"] == ["team-a"]] == ["lead"]
    shown = lab.axern("whoami")
    assert b"read, reserve, launch, admin" in shown.stdout, shown
