"""Many operations in one request: all or none, or each for itself, and a retry changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from axern.api import schema
from axern.api.batch_schema import OPERATIONS_LIMIT, BatchRequest
from axern.api.messages import Peer
from axern.daemon.batch_service import BatchService
from axern.daemon.lease_service import LeaseService
from axern.daemon.release_service import ReleaseService
from ledger import transitions
from ledger.errors import LedgerBusy
from ledger.testing import small_node
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play

CPU = {"cpu_milli": 1000, "memory_bytes": 16 * 1024**2}
Json = dict[str, Any]


def reserving(cpu_milli: int = 1000, **fields: object) -> Json:
    return {"reserve": {"requests": CPU | {"cpu_milli": cpu_milli}, **fields}}


def releasing(reservation_id: str, **fields: object) -> Json:
    return {"release": {"id": reservation_id, **fields}}


async def send(
    rig: Rig, mode: str, *operations: Json, peer: Any = USER, **fields: object
) -> tuple[int, Json]:
    body = {"mode": mode, "operations": list(operations), **fields}
    return await rig.ask("POST", "/v2/batch", body, peer)


async def ready(rig: Rig) -> None:
    rig.observer.observe()
    await rig.commit(partial(transitions.observe_node, node=small_node(4000)))


def ids(rig: Rig) -> list[str]:
    return [row.id for row in rig.ledger.state.reservations()]


def test_each_for_itself_in_one_commit(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        before = rig.ledger.generation
        status, answer = await send(rig, "each", *[reserving()] * 3, reserving(2000), reserving())
        results = answer["results"]
        assert (status, [each["status"] for each in results]) == (200, [200, 200, 200, 507, 200])
        assert results[3]["error"]["code"] == "node_cpu_capacity_exhausted"
        assert results[3]["error"]["shortfalls"][0]["short_by"] == 1000
        assert rig.ledger.generation == answer["generation"] == before + 1
        first = results[0]["reservation"]["id"]
        _, answer = await send(
            rig,
            "each",
            releasing(first),
            reserving(),
            releasing("f" * 32),
            {"heartbeat": {"id": results[1]["reservation"]["id"], "token": "wrong"}},
            {
                "heartbeat": {
                    "id": results[1]["reservation"]["id"],
                    "token": results[1]["token"],
                    "ttl_ms": 3_600_000,
                }
            },
        )
        assert [each["status"] for each in answer["results"]] == [200, 200, 404, 403, 200]
        assert answer["results"][0]["released"]["id"] == first
        assert answer["results"][0]["released"]["already"] is False
        assert first not in ids(rig)
        assert len(ids(rig)) == 4

    play(tmp_path, scenario)


def test_all_or_none(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        before = rig.ledger.generation
        status, answer = await send(rig, "all", *[reserving()] * 5)
        assert (status, answer["error"]["code"]) == (507, "node_cpu_capacity_exhausted")
        assert answer["error"]["operation"] == 4
        assert answer["detail"].startswith("operations[4]: ")
        assert (rig.ledger.generation, ids(rig)) == (before, [])
        status, answer = await send(rig, "all", *[reserving()] * 4)
        assert (status, len(ids(rig))) == (200, 4)
        mine = [each["reservation"]["id"] for each in answer["results"]]
        status, answer = await send(rig, "all", *map(releasing, mine), peer=OTHER)
        assert (status, answer["error"]["code"]) == (403, "permission_denied")
        assert ids(rig) == mine
        status, answer = await send(rig, "all", *map(releasing, mine), reserving(4000))
        assert status == 200, "what a batch gives back it may take in the same commit"
        assert ids(rig) == [answer["results"][-1]["reservation"]["id"]]

    play(tmp_path, scenario)


@pytest.mark.parametrize("mode", ["all", "each"])
def test_a_retry_changes_nothing_and_another_body_is_a_conflict(tmp_path: Path, mode: str) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        _, answer = await send(rig, mode, reserving(), reserving(request_id="own"))
        old = answer["results"][0]["reservation"]["id"]
        operations = (reserving(), releasing(old), reserving(500, request_id="two"))
        first = (await send(rig, mode, *operations, request_id="b"))[1]["results"]
        there = ids(rig)
        again = (await send(rig, mode, *operations, request_id="b"))[1]["results"]
        assert ids(rig) == there
        for index in (0, 2):
            assert again[index]["reservation"]["id"] == first[index]["reservation"]["id"]
            assert again[index]["token"] != first[index]["token"]
        assert again[1]["released"] == {
            "id": old, "at": None, "by": "uid:1000", "evidence": None, "already": True
        }  # fmt: skip
        beat = {"heartbeat": {"id": again[0]["reservation"]["id"], "token": again[0]["token"]}}
        assert (await send(rig, mode, beat))[0] == 200
        other = (reserving(999), *operations[1:])
        status, answer = await send(rig, mode, *other, request_id="b")
        error = answer["error"] if mode == "all" else answer["results"][0]["error"]
        assert error["code"] == "request_id_conflict"
        assert status == (409 if mode == "all" else 200)
        assert ids(rig) == there
        status, _ = await send(rig, mode, *operations, request_id="b", peer=OTHER)
        assert ids(rig)[: len(there)] == there, "another user's ids are others"

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"mode": "all", "operations": []}, "operations: it must not be empty"),
        ({"mode": "some", "operations": [reserving()]}, "mode: it must be 'all' or 'each'"),
        ({"operations": [reserving()]}, "mode: it must not be left out"),
        ({"mode": "all", "operations": [{}]}, "operations.0: it must have one of reserve"),
        ({"mode": "all", "operations": [reserving() | releasing("a" * 32)]}, "and has 2"),
        ({"mode": "each", "operations": [releasing("abc")]}, "operations.0.release.id: "),
        ({"mode": "each", "operations": [{"run": {}}]}, "unknown field 'run'"),
        (
            {"mode": "each", "operations": [reserving()] * (OPERATIONS_LIMIT + 1)},
            "operations: it must have at most 256 items",
        ),
    ],
)
def test_what_is_malformed_is_told_and_leaves_no_trace(
    tmp_path: Path, body: Json, message: str
) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        status, answer = await rig.ask("POST", "/v2/batch", body, USER)
        assert status == 400
        assert message in answer["detail"], answer["detail"]
        assert ids(rig) == []

    play(tmp_path, scenario)


def test_a_reserve_that_contradicts_itself_refuses_the_whole_batch(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        status, _ = await send(rig, "each", reserving(), reserving(0))
        assert (status, ids(rig)) == (400, [])

    play(tmp_path, scenario)


def test_a_user_has_few_batches_under_way_and_the_queue_is_bounded(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        service = BatchService(rig.parts, LeaseService(rig.parts), ReleaseService(rig.parts))

        async def busy(count: int, size: int, peer: Peer) -> list[LedgerBusy]:
            body = {"mode": "each", "operations": [reserving(1)] * size}
            wanted = schema.parse(BatchRequest, body)
            committer = rig.parts.committer
            await committer._resting.wait()
            committer._resting.clear()  # as while a flush is under way
            asked = [asyncio.create_task(service.perform(wanted, peer)) for _ in range(count)]
            await asyncio.sleep(0)
            committer._start()
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            return [outcome for outcome in outcomes if isinstance(outcome, LedgerBusy)]

        refused = await busy(6, 1, USER)
        assert [error.retry_after_s for error in refused] == [1, 1]
        assert refused[0].message.startswith("4 batches of uid 1000 are under way")
        assert await busy(4, 1, USER) == [], "the places are free again"
        refused = await busy(17, OPERATIONS_LIMIT, ROOT)
        assert len(refused) == 1, "16 of 256 are 4096"
        assert refused[0].message == "the ledger has 4096 operations waiting"
        assert refused[0].retry_after_s == 1

    play(tmp_path, scenario, entry_cap=100_000, namespace_entry_cap=100_000)


def test_a_disk_that_refuses_does_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "planted")

    async def scenario(rig: Rig) -> None:
        await ready(rig)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            status, answer = await send(rig, "each", reserving(), releasing("a" * 32))
        assert (status, answer["error"]["code"]) == (503, "busy")
        assert ids(rig) == []
        with contextlib.suppress(TimeoutError):
            await asyncio.sleep(0)
        assert (await send(rig, "each", reserving()))[0] == 200

    play(tmp_path, scenario)


def test_a_refusal_in_a_batch_is_explained_and_an_event(tmp_path: Path) -> None:
    """As one of a single request is; what rests on the batch itself has its numbers alone."""

    async def scenario(rig: Rig) -> None:
        await ready(rig)
        status, answer = await send(rig, "each", reserving(3000), reserving(2000))
        refused = answer["results"][1]["error"]
        assert (status, refused["explained"]) == (200, True)
        assert [holder["amount"] for holder in refused["holders"]] == [3000]
        status, problem = await send(rig, "all", reserving(500), reserving(600))
        assert (status, problem["error"]["operation"]) == (507, 1)
        assert problem["error"]["explained"] is False
        found = rig.parts.events.newest("default", 9, rig.clock.now.wall_ms)
        assert [(event.what.kind, event.what.reason) for event in found] == [
            ("node-rejected", "insufficient-cpu"),
            ("node-rejected", "insufficient-cpu"),
        ]

    play(tmp_path, scenario)
