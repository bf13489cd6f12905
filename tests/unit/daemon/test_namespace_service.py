"""Namespaces, quotas and claims through the routes: who may, what is told, what is an event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from axern.daemon.reconcile import Reconciler
from tests.unit.daemon.rig import ROOT, USER, Rig, play

GIB = 1024**3
LEASE = {"requests": {"cpu_milli": 500, "memory_bytes": GIB}}


def code(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], str(answer[1]["error"]["code"])


async def reserve(rig: Rig, namespace: str = "team-a", cpu: int = 500) -> tuple[int, Any]:
    body = {"namespace": namespace, "requests": {"cpu_milli": cpu, "memory_bytes": GIB}}
    return await rig.ask("POST", "/v2/reservations", body, USER)


async def make(rig: Rig, *names: str) -> None:
    await rig.parts.observe()
    for name in names:
        status, _ = await rig.ask("POST", "/v2/namespaces", {"name": name})
        assert status == 201


CHANGES = [
    ("POST", "/v2/namespaces", {"name": "x"}),
    ("PATCH", "/v2/namespaces/team-a", {"maximum": {"cpu_milli": 5}}),
    ("DELETE", "/v2/namespaces/team-a", None),
    ("PATCH", "/v2/quotas/team-a", {"quota": {"cpu_milli": 5}}),
    ("DELETE", "/v2/quotas/team-a", None),
    ("POST", "/v2/claims", {"namespace": "team-a", "amounts": {"cpu_milli": 5}}),
    ("PATCH", "/v2/claims/aaaa", {"mode": "hard"}),
    ("DELETE", "/v2/claims/aaaa", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CHANGES)
def test_only_root_changes_anything(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async def scenario(rig: Rig) -> None:
        await make(rig, "team-a")
        before = rig.ledger.generation
        answer = await rig.ask(method, path, body, USER)
        assert code(answer) == (403, "permission_denied")
        assert rig.ledger.generation == before

    play(tmp_path, scenario)


def test_a_namespace_is_made_bounded_used_and_deleted(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert code(await reserve(rig)) == (404, "not_found")
        await make(rig, "team-a", "team-a")
        status, answer = await rig.ask("GET", "/v2/namespaces", peer=USER)
        assert status == 200
        assert [row["name"] for row in answer["namespaces"]] == ["default", "team-a"]
        changes = {"maximum": {"cpu_milli": 400}, "ratios": {"memory_bytes": "1.5"}}
        status, answer = await rig.ask("PATCH", "/v2/namespaces/team-a", changes)
        assert status == 200
        assert answer["namespace"]["maximum"]["cpu_milli"] == 400
        assert code(await reserve(rig)) == (400, "invalid_argument")
        status, held = await reserve(rig, cpu=400)
        assert status == 201
        refused = await rig.ask("DELETE", "/v2/namespaces/team-a")
        assert code(refused) == (409, "state_conflict")
        assert held["reservation"]["id"][:12] in refused[1]["error"]["message"]
        key = held["reservation"]["id"]
        assert (await rig.ask("DELETE", f"/v2/reservations/{key}", peer=USER))[0] == 200
        assert (await rig.ask("DELETE", "/v2/namespaces/team-a"))[0] == 200
        assert code(await rig.ask("GET", "/v2/namespaces/team-a")) == (404, "not_found")

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "/v2/namespaces", {"name": "Team"}, "name: it must be 1 to 63"),
        ("POST", "/v2/namespaces", {"name": "a", "more": 1}, "unknown field 'more'"),
        ("PATCH", "/v2/quotas/default", {"quota": {"cpu": 1}}, "unknown field 'cpu'"),
        ("PATCH", "/v2/quotas/default", {}, "quota: it must not be left out"),
        ("PATCH", "/v2/namespaces/default", {"minimum": {"cpu_milli": 0}}, "at least 1"),
        (
            "PATCH",
            "/v2/namespaces/default",
            {"minimum": {"cpu_milli": 9}, "maximum": {"cpu_milli": 8}},
            "minimum.cpu_milli: 9m is above the maximum",
        ),
        ("POST", "/v2/claims", {"namespace": "default", "amounts": {}}, "must claim something"),
        ("POST", "/v2/claims", {"namespace": "default", "amounts": {"cpu_milli": None}}, "whole"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    tmp_path: Path, method: str, path: str, body: dict[str, Any], words: str
) -> None:
    async def scenario(rig: Rig) -> None:
        before = rig.ledger.generation
        answer = await rig.ask(method, path, body)
        assert code(answer) == (400, "invalid_argument")
        assert words in answer[1]["error"]["message"]
        assert rig.ledger.generation == before

    play(tmp_path, scenario)


def test_a_quota_patches_and_pressure_is_shown(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await make(rig, "team-a", "team-b")
        body = {"quota": {"cpu_milli": 1000, "memory_bytes": 8 * GIB}}
        await rig.ask("PATCH", "/v2/quotas/team-a", body)
        assert (await reserve(rig, cpu=800))[0] == 201
        _, answer = await rig.ask("GET", "/v2/quotas/team-a", peer=USER)
        quota = answer["quota"]
        assert (quota["used"]["cpu_milli"], quota["available"]["cpu_milli"]) == (800, 200)
        assert (quota["percent"]["cpu_milli"], quota["percent"]["sandbox_slots"]) == (80, None)
        assert quota["pressure"] is True
        _, answer = await rig.ask("GET", "/v2/quotas?pressure=true")
        assert [row["namespace"] for row in answer["quotas"]] == ["team-a"]
        await rig.ask("PATCH", "/v2/quotas/team-a", {"quota": {"cpu_milli": None}})
        _, answer = await rig.ask("GET", "/v2/quotas?constrained=true")
        (row,) = answer["quotas"]
        assert row["quota"]["cpu_milli"] is None
        assert row["quota"]["memory_bytes"] == 8 * GIB
        assert row["pressure"] is False
        _, answer = await rig.ask("DELETE", "/v2/quotas/team-a")
        assert answer["quota"]["constrained"] is False

    play(tmp_path, scenario)


def test_refusals_are_events_that_outlive_the_namespace(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await make(rig, "team-a")
        body = {"quota": {"cpu_milli": 100, "memory_bytes": GIB // 2}}
        await rig.ask("PATCH", "/v2/quotas/team-a", body)
        before = rig.ledger.generation
        for _ in range(2):
            refused = await reserve(rig)
            assert code(refused) == (403, "namespace_quota_exceeded")
            assert refused[1]["error"]["retryable"] is False
        batch = {"mode": "each", "operations": [{"reserve": LEASE | {"namespace": "team-a"}}]}
        await rig.ask("POST", "/v2/batch", batch, USER)
        assert rig.ledger.generation == before
        await rig.ask("DELETE", "/v2/namespaces/team-a")
        _, answer = await rig.ask("GET", "/v2/quotas/team-a/events?limit=2", peer=USER)
        rows = answer["events"]
        assert [row["type"] for row in rows] == ["admission-rejected"] * 2
        assert {row["reason"] for row in rows} == {"insufficient-cpu-memory"}
        assert [short["dimension"] for short in rows[0]["shortfalls"]] == [
            "cpu_milli",
            "memory_bytes",
        ]
        _, answer = await rig.ask("GET", "/v2/quotas/team-a/events")
        assert len(answer["events"]) == 3

    play(tmp_path, scenario)


def test_a_claim_is_made_drawn_changed_and_ended(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await make(rig, "team-a")
        body = {"namespace": "team-a", "amounts": {"cpu_milli": 700}, "ttl_ms": 60_000}
        status, answer = await rig.ask("POST", "/v2/claims", body)
        assert status == 201
        claim = answer["claim"]
        assert (claim["mode"], claim["amounts"]) == ("hard", {"cpu_milli": 700})
        assert (await rig.ask("POST", "/v2/claims", body))[1]["claim"]["id"] == claim["id"]
        assert (await reserve(rig))[0] == 201
        refused = await reserve(rig)
        assert code(refused) == (403, "namespace_claim_exceeded")
        (short,) = refused[1]["error"]["shortfalls"]
        assert (short["claim_id"], short["limit"]) == (claim["id"], 700)
        assert (short["committed"], short["short_by"]) == (500, 300)
        path = f"/v2/claims/{claim['id'][:8]}"
        status, answer = await rig.ask("PATCH", path, {"mode": "advisory"})
        assert (status, answer["claim"]["mode"]) == (200, "advisory")
        assert (await reserve(rig))[0] == 201
        _, answer = await rig.ask("GET", path, peer=USER)
        assert answer["claim"]["drawdown"] == {"cpu_milli": 1000}
        assert answer["claim"]["overdrawn"] == ["cpu_milli"]
        _, answer = await rig.ask("GET", "/v2/quotas/team-a/events")
        assert [row["type"] for row in answer["events"]] == [
            "claim-exceeded",
            "admission-rejected",
        ]
        rig.clock.advance(61_000)
        await Reconciler(rig.parts).tick()
        assert rig.ledger.state.claim_of("team-a") is None
        assert code(await rig.ask("GET", path)) == (404, "not_found")

    play(tmp_path, scenario)


def test_a_claim_lasts_a_day_unless_it_is_said_otherwise(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await make(rig, "team-a")
        body = {"namespace": "team-a", "amounts": {"cpu_milli": 700}}
        _, answer = await rig.ask("POST", "/v2/claims", body)
        row = rig.ledger.state.claim_of("team-a")
        assert row is not None
        assert row.expires_boottime_ms == rig.clock().boottime_ms + 86_400_000
        path = f"/v2/claims/{answer['claim']['id']}"
        _, answer = await rig.ask("PATCH", path, {"ttl_ms": None})
        assert answer["claim"]["expires_at"] is None
        status, answer = await rig.ask("DELETE", path, peer=ROOT)
        assert (status, answer["released"]) == (200, True)
        assert rig.ledger.state.claim_of("team-a") is None

    play(tmp_path, scenario)
