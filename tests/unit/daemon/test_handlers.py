"""The routes: which there are, who may do what, and that every error keeps its form."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from axern.api import frames
from axern.api.schema import DNS_LABEL, HeartbeatRequest, ReserveRequest, RunRequest
from axern.daemon.handlers import Handlers, error_response
from axern.daemon.reconcile import Reconciler
from axern.daemon.routes import Route, Routes
from axern.runtime.record import RunExit
from ledger import rights, transitions
from ledger.errors import CODES, AdmissionRefused, AxernError
from ledger.refusal import Refusal, Shortfall
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play
from tests.unit.daemon.test_runs import ID, spec_of

ROUTES = {
    ("GET", "/v2/queue"),
    ("POST", "/v2/queue/pause"),
    ("DELETE", "/v2/queue/pause"),
    ("GET", "/v2/queue/{id}"),
    ("DELETE", "/v2/queue/{id}"),
    ("GET", "/v2/queue/{id}/stream"),
    ("POST", "/v2/explain"),
    ("POST", "/v2/runs"),
    ("GET", "/v2/runs"),
    ("POST", "/v2/runs/prune"),
    ("POST", "/v2/runs/{id}/stdin"),
    ("GET", "/v2/runs/{id}/execs"),
    ("POST", "/v2/runs/{id}/execs"),
    ("GET", "/v2/runs/{id}/execs/{exec}"),
    ("DELETE", "/v2/runs/{id}/execs/{exec}"),
    ("POST", "/v2/runs/{id}/execs/{exec}/signal"),
    ("GET", "/v2/runs/{id}"),
    ("DELETE", "/v2/runs/{id}"),
    ("GET", "/v2/runs/{id}/stream"),
    ("POST", "/v2/reservations"),
    ("GET", "/v2/reservations"),
    ("GET", "/v2/reservations/{id}"),
    ("DELETE", "/v2/reservations/{id}"),
    ("POST", "/v2/reservations/{id}/heartbeat"),
    ("GET", "/v2/node"),
    ("POST", "/v2/node/drain"),
    ("DELETE", "/v2/node/drain"),
    ("POST", "/v2/node/retire"),
    ("GET", "/v2/doctor"),
    ("GET", "/v2/node/doctor"),
    ("GET", "/v2/templates"),
    ("POST", "/v2/templates"),
    ("GET", "/v2/templates/{name}"),
    ("DELETE", "/v2/templates/{name}"),
    ("GET", "/v2/namespaces"),
    ("POST", "/v2/namespaces"),
    ("GET", "/v2/namespaces/{name}"),
    ("PATCH", "/v2/namespaces/{name}"),
    ("DELETE", "/v2/namespaces/{name}"),
    ("GET", "/v2/quotas"),
    ("GET", "/v2/quotas/{namespace}"),
    ("PATCH", "/v2/quotas/{namespace}"),
    ("DELETE", "/v2/quotas/{namespace}"),
    ("GET", "/v2/quotas/{namespace}/events"),
    ("GET", "/v2/claims"),
    ("POST", "/v2/claims"),
    ("GET", "/v2/claims/{id}"),
    ("PATCH", "/v2/claims/{id}"),
    ("DELETE", "/v2/claims/{id}"),
    ("GET", "/v2/events"),
    ("GET", "/v2/health"),
    ("GET", "/v2/whoami"),
    ("POST", "/v2/batch"),
    ("GET", "/v2/openapi.json"),
}
CANARY = "canary-5d1f"
NOBODY = "f" * 32


def code(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], str(answer[1]["error"]["code"])


def references(value: object) -> list[str]:
    """Return every `$ref` anywhere inside *value*."""
    if isinstance(value, dict):
        mine = [value["$ref"]] if "$ref" in value else []
        return mine + [ref for item in value.values() for ref in references(item)]
    return [ref for item in value for ref in references(item)] if isinstance(value, list) else []


def test_the_document_describes_every_route(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        status, document = await rig.ask("GET", "/v2/openapi.json")
        assert status == 200
        assert document["openapi"] == "3.1.0"
        listed = {
            (method.upper(), path) for path, item in document["paths"].items() for method in item
        }
        assert listed == ROUTES
        assert listed == {(r.method, r.path) for r in Handlers(rig.parts)._routes.all}
        verbs = {verb.name: verb for verb in rights.TABLE}
        for path, item in document["paths"].items():
            wanted = [part[1:-1] for part in path.split("/") if part.startswith("{")]
            for operation in item.values():
                assert operation["summary"]
                verb = verbs[operation["x-axern-verb"]["name"]]
                assert operation["x-axern-verb"]["right"] == verb.right
                assert "default" in operation["responses"]
                names = [parameter["name"] for parameter in operation.get("parameters", [])]
                assert names == wanted
        schemas = document["components"]["schemas"]
        for reference in references(document):
            assert reference.removeprefix("#/components/schemas/") in schemas, reference
        for model in (RunRequest, ReserveRequest, HeartbeatRequest):
            described = schemas[model.__name__]
            assert set(described["properties"]) == set(model.model_fields)
            assert described["additionalProperties"] is False
        assert schemas["RunRequest"]["required"] == ["command"]
        assert schemas["RunRequest"]["properties"]["namespace"]["pattern"] == DNS_LABEL
        codes = schemas["Problem"]["properties"]["error"]["properties"]["code"]["enum"]
        assert codes == sorted(CODES)

    play(tmp_path, scenario)


def is_schema(value: object) -> bool:
    """Tell whether *value* uses only keywords of JSON Schema 2020-12, each of its type."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "$ref": str, "type": (str, list), "title": str, "description": str, "pattern": str,
        "format": str, "properties": dict, "required": list, "items": dict, "anyOf": list,
        "enum": list, "const": str, "minimum": int, "maximum": int, "minLength": int,
        "maxLength": int, "minItems": int, "maxItems": int, "maxProperties": int,
        "additionalProperties": (bool, dict), "default": object,
        "patternProperties": dict,
    }  # fmt: skip
    if not isinstance(value, dict):
        return False
    for keyword, content in value.items():
        if keyword not in kinds or not isinstance(content, kinds[keyword]):
            return False
    inner = [*value.get("properties", {}).values(), *value.get("anyOf", [])]
    inner += value.get("patternProperties", {}).values()
    inner += [value[name] for name in ("items",) if name in value]
    if isinstance(value.get("additionalProperties"), dict):
        inner.append(value["additionalProperties"])
    return all(is_schema(item) for item in inner)


def test_its_schemas_are_schemas(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        _, document = await rig.ask("GET", "/v2/openapi.json")
        for name, schema in document["components"]["schemas"].items():
            assert is_schema(schema), name

    play(tmp_path, scenario)


def test_control_a_wrong_schema_is_seen() -> None:
    assert is_schema({"type": "object", "properties": {"a": {"type": "string"}}})
    assert not is_schema({"type": "object", "properties": {"a": {"typ": "string"}}})
    assert not is_schema({"anyOf": [{"minimum": "1"}]})


def test_only_its_own_path_matches_a_route() -> None:
    route = Route("GET", "/v2/runs/{id}", rights.SEE, "", cast("Any", None))
    routes = Routes([Route("POST", "/v2/runs/prune", rights.PRUNE, "", cast("Any", None)), route])
    assert routes.find("GET", "/v2/runs/abc") == (route, {"id": "abc"})
    assert routes.find("GET", "/v2/runs/prune") == (route, {"id": "prune"})
    for path in ("/v2/runs", "/v2/runs/a/b", "/v2/runs/a/", "v2/runs/a", "/V2/runs/a", "/x/runs/a"):
        assert routes.find("GET", path) is None
        assert routes.methods(path) == []
    assert routes.find("POST", "/v2/runs/abc") is None
    assert routes.methods("/v2/runs/prune") == ["POST", "GET"]
    assert routes.find("GET", "/v2/runs/..") == (route, {"id": ".."})  # refused as an id


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", (404, "not_found")),
        ("GET", "*", (404, "not_found")),
        ("GET", "", (404, "not_found")),
        ("GET", "/v1/runs", (404, "not_found")),
        ("GET", "/v2/runs/", (400, "invalid_argument")),
        ("GET", "//v2/runs", (404, "not_found")),
        ("GET", "/v2/runs/../node", (404, "not_found")),
        ("PUT", "/v2/runs", (400, "invalid_argument")),
        ("HEAD", "/v2/health", (400, "invalid_argument")),
        ("OPTIONS", "/v2/runs", (400, "invalid_argument")),
        ("PATCH", f"/v2/runs/{ID}", (400, "invalid_argument")),
        ("GET", "/v2/runs?color=red", (400, "invalid_argument")),
        ("GET", "/v2/reservations?Namespace=x", (400, "invalid_argument")),
        ("GET", f"/v2/runs/{NOBODY}", (404, "not_found")),
        ("GET", f"/v2/runs/{NOBODY}/stream", (404, "not_found")),
        ("DELETE", f"/v2/runs/{NOBODY}", (404, "not_found")),
        ("GET", f"/v2/reservations/{NOBODY}", (404, "not_found")),
        ("DELETE", f"/v2/reservations/{NOBODY}", (404, "not_found")),
        ("GET", "/v2/runs/ffff", (404, "not_found")),
        *(
            (method, f"/v2/{kind}/{name}", (400, "invalid_argument"))
            for method in ("GET", "DELETE")
            for kind in ("runs", "reservations")
            for name in ("..", ".", "abc", "ABCD", "g" * 32, "a" * 33, "-a", "é" * 8, " abcd")
        ),
    ],
)  # fmt: skip
def test_what_is_not_there_is_said_so(
    tmp_path: Path, method: str, target: str, expected: tuple[int, str]
) -> None:
    async def scenario(rig: Rig) -> None:
        assert code(await rig.ask(method, target)) == expected

    play(tmp_path, scenario)


@pytest.mark.parametrize("value", ["-1", "1.5", "", "x", "9" * 17, str(2**53), "１", "+1", " 1"])
def test_numbers_in_a_query_are_whole_and_bounded(tmp_path: Path, value: str) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.runs.save_spec(spec_of())
        for target in (f"/v2/runs/{ID}?grace_ms={value}", f"/v2/runs/{ID}/stream?from={value}"):
            method = "GET" if "stream" in target else "DELETE"
            assert code(await rig.ask(method, target)) == (400, "invalid_argument")

    play(tmp_path, scenario)


def test_a_daemon_that_stops_ends_no_input(tmp_path: Path) -> None:
    """Its lives are let go before its last connections: "closed" would keep the end for ever."""

    async def scenario(rig: Rig) -> None:
        rig.observer.observe()
        await Reconciler(rig.parts).tick()
        live = await rig.charge_run(1)
        for name in (live, ID):
            rig.parts.runs.save_spec(spec_of(name, stdin=True))
        answer = await rig.ask("POST", f"/v2/runs/{live}/stdin?offset=3")
        assert code(answer) == (503, "busy")
        over = {"stdin": {"taken": 3, "closed": True}}
        assert await rig.ask("POST", f"/v2/runs/{ID}/stdin?offset=3") == (200, over)

    play(tmp_path, scenario)


def test_a_stream_begins_only_where_an_event_ended(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.runs.save_spec(spec_of())
        record = b"2026-01-31T12:00:00.000000000+00:00 stdout F hello\n"
        (tmp_path / "runs" / ID / "output.log").write_bytes(record * 2)
        target = f"/v2/runs/{ID}/stream?follow=false&from="
        for offset in (1, 5, len(record) - 1, len(record) + 36):
            assert code(await rig.ask("GET", f"{target}{offset}")) == (400, "invalid_argument")
        bad = await rig.ask("GET", target[:-6], None, USER, **{"last-event-id": "3"})
        assert code(bad) == (400, "invalid_argument")

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "query",
    [
        "tail=-1",
        "tail=x",
        "since_ms=1.5",
        "from=0&tail=1",
        "from=0&since_ms=1",
        "timestamps=1",
        "follow=yes",
        "lines=5",
    ],
)
def test_where_a_stream_begins_is_said_strictly(tmp_path: Path, query: str) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.runs.save_spec(spec_of())
        answer = await rig.ask("GET", f"/v2/runs/{ID}/stream?{query}")
        assert code(answer) == (400, "invalid_argument")

    play(tmp_path, scenario)


def test_times_come_with_the_records_of_the_fast_form(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.runs.save_spec(spec_of())
        accept = {"accept": frames.CONTENT_TYPE}
        target = f"/v2/runs/{ID}/stream?timestamps=true"
        assert code(await rig.ask("GET", target, None, USER, **accept)) == (400, "invalid_argument")

    play(tmp_path, scenario)


def test_a_log_that_was_removed_is_missed(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.runs.save_spec(spec_of())
        rig.parts.runs.save_exit(ID, RunExit("succeeded", 0, 0, 2, 1))
        status, problem = await rig.ask("GET", f"/v2/runs/{ID}/stream")
        assert (status, problem["error"]["code"]) == (404, "not_found")
        assert "was removed" in problem["error"]["message"]

    play(tmp_path, scenario)


def test_a_foreign_run_is_seen_but_not_what_it_runs(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        spec = spec_of(command=(CANARY,), env={"TOKEN": CANARY})
        rig.parts.runs.save_spec(spec)
        message = f"{CANARY}: not found in the root file system"
        record = RunExit("failed", None, 127, 1, None, "runtime-start-error", message)
        rig.parts.runs.save_exit(ID, record)
        for peer in (ROOT, USER, OTHER):
            _, one = await rig.ask("GET", f"/v2/runs/{ID}", None, peer)
            _, prefix = await rig.ask("GET", f"/v2/runs/{ID[:4]}", None, peer)
            _, listed = await rig.ask("GET", "/v2/runs", None, peer)
            assert one["run"] == prefix["run"] == listed["runs"][0]
            assert one["run"]["command"] == (None if peer is OTHER else [CANARY])
            assert one["run"]["message"] == (None if peer is OTHER else message)
            assert "env" not in one["run"]
            assert (CANARY in json.dumps(listed)) == (peer is not OTHER)

    play(tmp_path, scenario)


def test_only_owner_and_root_change_a_run_or_read_its_output(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        _, node = rig.observer.observe()
        await rig.commit(transitions.observe_node, node=node)
        run_id = await rig.charge_run(1)
        rig.parts.runs.save_spec(spec_of(run_id))
        for method, rest in (("DELETE", ""), ("GET", "/stream")):
            target = f"/v2/runs/{run_id}{rest}"
            assert code(await rig.ask(method, target, None, OTHER)) == (403, "permission_denied")
        for peer in (USER, ROOT):
            assert (await rig.ask("DELETE", f"/v2/runs/{run_id}?grace_ms=5", None, peer))[0] == 202
        assert rig.lives.stopped == [
            (run_id, "cancelled", "uid:1000", 5),
            (run_id, "cancelled", "uid:0", 5),
        ]
        row = rig.ledger.state.reservation(run_id)
        assert (row.phase, row.reason) == ("stopping", "cancelled")
        too_long = await rig.ask("DELETE", f"/v2/runs/{run_id}?grace_ms=86400001", None, ROOT)
        assert code(too_long) == (400, "invalid_argument")

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rootfs": "/"}, (403, "permission_denied")),
        ({"rootfs": "/no/such"}, (403, "permission_denied")),
        ({"template": "unknown"}, (400, "invalid_argument")),
        ({"rootfs": "/", "template": "busybox"}, (400, "invalid_argument")),
        ({"template": "../../etc"}, (400, "invalid_argument")),
        ({"uid": 0}, (400, "invalid_argument")),
        ({"owner": {"uid": 0}}, (400, "invalid_argument")),
        ({"mounts": []}, (400, "invalid_argument")),
        ({"spec": {}}, (400, "invalid_argument")),
    ],
)
def test_what_a_user_may_not_run_leaves_nothing(
    tmp_path: Path, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    async def scenario(rig: Rig) -> None:
        body = {"command": ["true"], **fields}
        forged = {"x-uid": "0", "authorization": "root"}
        assert code(await rig.ask("POST", "/v2/runs", body, USER, **forged)) == expected
        assert list(rig.parts.runs.names()) == []
        assert list(rig.ledger.state.reservations()) == []

    play(tmp_path, scenario)


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        made = {"aa" * 16: 3_000, "bb" * 16: 1_000, "cc" * 16: 2_000}
        for run_id, created_ms in made.items():
            rig.parts.runs.save_spec(spec_of(run_id, created_wall_ms=created_ms))
        _, answer = await rig.ask("GET", "/v2/runs")
        assert [run["id"][:2] for run in answer["runs"]] == ["aa", "cc", "bb"]
        _, answer = await rig.ask("GET", "/v2/runs?namespace=none")
        assert answer["runs"] == []

    play(tmp_path, scenario)


def test_a_prefix_of_several_is_refused(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for tail in ("0", "1"):
            rig.parts.runs.save_spec(spec_of("abcd" + tail * 28))
        answer = await rig.ask("GET", "/v2/runs/abcd")
        assert code(answer) == (400, "invalid_argument")
        assert "2 ids begin with abcd" in answer[1]["detail"]
        assert (await rig.ask("GET", "/v2/runs/abcd1"))[0] == 200

    play(tmp_path, scenario)


@pytest.mark.parametrize("name", CODES)
def test_every_code_has_one_form(name: str) -> None:
    error = AxernError("é \u202e\x1b[31m", hint="hint")
    error.code = name
    response = error_response(error, "id-1")
    document = json.loads(response.body)
    row = CODES[name]
    assert response.content_type == "application/problem+json"
    assert response.status == document["status"] == (row.http_status or 500)
    assert document == {
        "type": f"urn:axern:error:{name}",
        "title": name.replace("_", " "),
        "status": response.status,
        "detail": error.message,
        "request_id": "id-1",
        "error": {
            "code": name,
            "message": error.message,
            "hint": "hint",
            "retryable": row.retryable,
        },
    }
    assert response.headers == ()


def test_a_refusal_has_its_numbers_and_when_to_come_back() -> None:
    shortfall = Shortfall("node", "memory_bytes", 4, 6, 8, 2, 2)
    refusal = Refusal(
        "node_memory_capacity_exhausted", "admission-blocked", "node memory capacity exhausted",
        "message", 7, 3, retryable=True, retry_after_s=12, shortfalls=(shortfall,),
    )  # fmt: skip
    response = error_response(AdmissionRefused(refusal), "")
    assert response.status == 507
    assert response.headers == (("retry-after", "12"),)
    document = json.loads(response.body)
    assert document["title"] == "node memory capacity exhausted"
    assert document["error"] == {
        "code": "node_memory_capacity_exhausted",
        "diagnostic_code": "admission-blocked",
        "admission_summary": "node memory capacity exhausted",
        "retryable": True,
        "waitable": True,
        "retry_after_s": 12,
        "generation": 7,
        "facts_sequence": 3,
        "message": "message",
        "hint": None,
        "shortfalls": [
            {
                "gate": "node",
                "dimension": "memory_bytes",
                "requested": 4,
                "committed": 6,
                "limit": 8,
                "available": 2,
                "short_by": 2,
                "claim_id": None,
            }
        ],
        "reasons": [],
        "explained": False,
        "holders": [],
        "would_fit_if": [],
        "earliest_fit_at": None,
    }


def test_two_at_once_with_one_request_id_are_one_run(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.parts.observer.observe()
        await rig.commit(transitions.observe_node, node=rig.observer.node)
        (tmp_path / "rootfs").mkdir()
        body = {
            "command": ["true"], "request_id": "a", "rootfs": str(tmp_path / "rootfs"),
            "runtime_class": "runc", "requests": {"cpu_milli": 1, "memory_bytes": 1},
        }  # fmt: skip
        answers = await asyncio.gather(*(rig.ask("POST", "/v2/runs", body) for _ in range(5)))
        assert {status for status, _ in answers} == {201}
        (found,) = {answer["run"]["id"] for _, answer in answers}
        assert list(rig.parts.runs.names()) == [found]
        assert set(rig.lives.lives) == {found}
        other = {**body, "command": ["false"]}
        assert code(await rig.ask("POST", "/v2/runs", other)) == (409, "request_id_conflict")
        lease = {"request_id": "a", "requests": {"cpu_milli": 1, "memory_bytes": 1}}
        # Another user's id is another id.
        assert (await rig.ask("POST", "/v2/reservations", lease, USER))[0] == 201

    play(tmp_path, scenario)
