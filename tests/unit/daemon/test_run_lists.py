"""Lists of runs: pages that stay where they are, filters that agree, and what is removed."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from axern.daemon import retention
from axern.daemon.run_index import RunIndex
from axern.daemon.runs import RunStore
from axern.runtime.record import RunExit
from ledger import transitions
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play
from tests.unit.daemon.test_runs import spec_of

DAY_MS = 86_400_000


def run_id(number: int) -> str:
    return f"{number:032x}"


def keep(runs: RunStore, number: int, status: str | None = "succeeded", **fields: Any) -> str:
    """Store a run that was created at *number* ms and, with a *status*, ended a day later."""
    name = run_id(number)
    finished_ms = fields.pop("finished_wall_ms", number + DAY_MS)
    runs.save_spec(spec_of(name, **{"created_wall_ms": number, **fields}))
    if status is not None:
        runs.save_exit(name, RunExit(status, 0, 0, finished_ms))
    return name


def write_log(runs: RunStore, name: str) -> None:
    with open(f"{runs.root}/{name}/output.log", "wb") as file:
        file.write(b"x" * 100_000)


async def listed(rig: Rig, query: str = "", **options: Any) -> tuple[list[int], str | None]:
    status, answer = await rig.ask("GET", f"/v2/runs?{query}", **options)
    assert status == 200, answer
    return [int(run["id"], 16) for run in answer["runs"]], answer["next_cursor"]


async def pages(rig: Rig, limit: int) -> list[list[int]]:
    found, cursor = await listed(rig, f"limit={limit}")
    all_pages = [found]
    while cursor is not None:
        found, cursor = await listed(rig, f"limit={limit}&cursor={cursor}")
        all_pages.append(found)
    return all_pages


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7, 8, 1000])
def test_pages_put_together_are_the_list(tmp_path: Path, limit: int) -> None:
    async def scenario(rig: Rig) -> None:
        for number in range(1, 8):
            keep(rig.parts.runs, number, created_wall_ms=number // 2)  # some at the same moment
        found = await pages(rig, limit)
        assert list(itertools.chain(*found)) == [7, 6, 5, 4, 3, 2, 1]
        assert all(len(page) == limit for page in found[:-1])
        assert found[-1]

    play(tmp_path, scenario)


def test_a_page_stays_while_runs_come_and_go(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        runs = rig.parts.runs
        for number in range(1, 7):
            keep(runs, number)
        found, cursor = await listed(rig, "limit=2")
        assert found == [6, 5]
        keep(runs, 8)
        runs.discard(run_id(5))  # even the one that the cursor names
        runs.discard(run_id(4))
        found, cursor = await listed(rig, f"limit=2&cursor={cursor}")
        assert found == [3, 2]
        assert await listed(rig, f"limit=2&cursor={cursor}") == ([1], None)

    play(tmp_path, scenario)


def test_nothing_is_an_empty_page(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert await listed(rig) == ([], None)

    play(tmp_path, scenario)


def test_filters_agree(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        _, node = rig.observer.observe()
        await rig.commit(transitions.observe_node, node=node)
        runs = rig.parts.runs
        keep(runs, 1, "failed", labels={"team": "search", "odd": "a,b=c%"}, namespace="blue")
        keep(runs, 2, "cancelled", labels={"team": "web"}, uid=1001)
        keep(runs, 3, None, labels={"team": "search"})
        live = await rig.charge_run(4)
        runs.save_spec(spec_of(live, created_wall_ms=4))
        await rig.commit(transitions.start, reservation_id=live)
        for query, expected in {
            "": [4, 3, 2, 1],
            "namespace=blue": [1],
            "status=failed": [1],
            "status=failed,cancelled": [2, 1],
            "status=reserved": [3],
            "status=starting": [4],
            "status=running": [],
            "owner=1001": [2],
            "owner=1000": [4, 3, 1],
            "label=team": [3, 2, 1],
            "label=team=search": [3, 1],
            "label=team=search,odd": [1],
            "label=odd=a%2Cb=c%25": [1],  # as the server hands it over, decoded once
            "label=team=": [],
            "label=none": [],
            "created_from_ms=2&created_before_ms=4": [3, 2],
            "label=team=search&status=failed,reserved&namespace=default": [3],
        }.items():
            assert (await listed(rig, query))[0] == expected, query

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    "query",
    [
        "status=bogus", "status=", "status=running,", "status=Running", "limit=0", "limit=1001",
        "limit=x", "limit=-1", "owner=root", "owner=", "created_from_ms=now", "label=", "label=a,",
        "label=-a", "label==x", "cursor=", "cursor=x", "cursor=MTIz", "cursor=%ff",
        f"cursor={'A' * 5000}", "color=red", "phase=running",
    ],
)  # fmt: skip
def test_what_can_match_nothing_is_refused(tmp_path: Path, query: str) -> None:
    async def scenario(rig: Rig) -> None:
        status, answer = await rig.ask("GET", f"/v2/runs?{query}")
        assert (status, answer["error"]["code"]) == (400, "invalid_argument"), query

    play(tmp_path, scenario)


def test_a_phase_that_is_none_is_refused(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert (await rig.ask("GET", "/v2/reservations?phase=running"))[0] == 200
        for word in ("bogus", "", "succeeded", "running,starting,bogus"):
            assert (await rig.ask("GET", f"/v2/reservations?phase={word}"))[0] == 400

    play(tmp_path, scenario)


def test_files_of_ended_runs_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = RunStore(str(tmp_path))
    for number in range(1, 21):
        keep(runs, number)
    keep(runs, 30, None)
    index = RunIndex(runs)
    first = index.entries()
    assert [entry.created_wall_ms for entry in first] == [30, *range(20, 0, -1)]
    read: list[str] = []
    monkeypatch.setattr(RunStore, "spec", lambda *_: pytest.fail("read again"))
    real = RunStore.exit

    def noted(self: RunStore, name: str) -> RunExit | None:
        read.append(name)
        return real(self, name)

    monkeypatch.setattr(RunStore, "exit", noted)
    assert index.entries() == first
    assert read == [run_id(30)]
    runs.save_exit(run_id(30), RunExit("failed", 1, 1, 5))
    read.clear()
    assert index.entries()[0].status == "failed"
    runs.discard(run_id(7))
    assert len(index.entries()) == 20
    assert read == [run_id(30)]


def test_a_damaged_spec_is_listed_nowhere_and_goes_with_the_others(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        keep(rig.parts.runs, 1)
        keep(rig.parts.runs, 2)
        (tmp_path / "runs" / run_id(2) / "spec.json").write_bytes(b"{")
        assert await listed(rig) == ([1], None)
        assert retention.retain(rig.parts, 10**15) == 2

    play(tmp_path, scenario)


async def prune(rig: Rig, peer: Any = USER, **body: Any) -> dict[str, Any]:
    status, answer = await rig.ask("POST", "/v2/runs/prune", body, peer)
    assert status == 200, answer
    pruned: dict[str, Any] = answer["pruned"]
    assert pruned["count"] == len(pruned["run_ids"])
    return pruned


def test_only_own_runs_that_are_over_are_pruned(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        _, node = rig.observer.observe()
        await rig.commit(transitions.observe_node, node=node)
        runs = rig.parts.runs
        keep(runs, 11)
        keep(runs, 12, uid=OTHER.uid)
        keep(runs, 13, None)  # admitted a moment ago
        buried = await rig.charge_run(14)  # has its exit record and is still being buried
        runs.save_spec(spec_of(buried))
        runs.save_exit(buried, RunExit("succeeded", 0, 0, 1))
        write_log(runs, run_id(11))
        dry = await prune(rig, dry_run=True)
        assert (dry["run_ids"], dry["dry_run"]) == ([run_id(11)], True)
        assert dry["disk_bytes"] >= 100_000
        assert len(list(runs.names())) == 4
        assert await prune(rig) == dry | {"dry_run": False}
        assert (await prune(rig))["count"] == 0
        status, answer = await rig.ask("POST", "/v2/runs/prune", {"all_users": True}, USER)
        assert (status, answer["error"]["code"]) == (403, "permission_denied")
        assert (await prune(rig, ROOT))["count"] == 0
        assert (await prune(rig, ROOT, all_users=True))["run_ids"] == [run_id(12)]
        assert sorted(runs.names()) == sorted([run_id(13), buried])

    play(tmp_path, scenario)


def test_prune_takes_only_what_was_named(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        now_ms = rig.clock.now.wall_ms
        runs = rig.parts.runs
        for number, (status, age_ms, labels) in enumerate(
            [
                ("failed", 10, {"a": "1"}),
                ("failed", 5, {}),
                ("succeeded", 10, {"a": "2"}),
                ("cancelled", 0, {"a": "1"}),
            ],
            start=1,
        ):
            keep(runs, number, status, labels=labels, finished_wall_ms=now_ms - age_ms)
        wanted: tuple[tuple[dict[str, Any], list[int]], ...] = (
            ({"older_than_ms": 11}, []),
            ({"older_than_ms": 10, "statuses": ["cancelled"]}, []),
            ({"older_than_ms": 10, "labels": {"a": None}}, [3, 1]),
            ({"labels": {"a": "1"}}, [4, 1]),
            ({"statuses": ["failed"], "older_than_ms": 6}, [1]),
            ({"namespace": "blue"}, []),
            ({}, [4, 3, 2, 1]),
        )
        for body, expected in wanted:
            found = await prune(rig, dry_run=True, **body)
            assert found["run_ids"] == [run_id(number) for number in expected], body
        bad: tuple[dict[str, Any], ...] = (
            {"statuses": ["running"]},
            {"older_than_ms": -1},
            {"labels": {"-": "x"}},
        )
        for body in bad:
            assert (await rig.ask("POST", "/v2/runs/prune", body, USER))[0] == 400

    play(tmp_path, scenario)


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"runs_max": 2}, [4, 5]),
        ({"runs_max": 5}, [1, 2, 3, 4, 5]),
        ({"runs_disk_max": "300KiB"}, [4, 5]),
        ({"runs_disk_max": "1B"}, []),
        ({"runs_kept": "3ms"}, [3, 4, 5]),
        ({"runs_kept": "3ms", "runs_max": 1}, [5]),
    ],
)
def test_retention_takes_the_oldest_end_first(
    tmp_path: Path, keys: dict[str, Any], left: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(rig: Rig) -> None:
        runs = rig.parts.runs
        for number in range(1, 6):
            name = keep(runs, 10 - number, finished_wall_ms=number)
            write_log(runs, name)
        keep(runs, 20, None)
        with caplog.at_level(logging.INFO):
            removed = await asyncio.to_thread(retention.retain, rig.parts, 6)
        kept = {10 - int(name, 16) for name in runs.names()}
        assert sorted(kept) == [-10, *left]  # what has not ended stays
        assert removed == 5 - len(left)
        assert (f"retention removed {removed} ended runs" in caplog.text) is (removed > 0)
        assert retention.retain(rig.parts, 6) == 0

    play(tmp_path, scenario, **keys)


def test_retention_stops_when_the_daemon_ends(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        keep(rig.parts.runs, 1)
        assert retention.retain(rig.parts, 10**15, lambda: True) == 0
        assert retention.retain(rig.parts, 10**15) == 1

    play(tmp_path, scenario)


STEP = st.tuples(st.sampled_from(["add", "end", "drop"]), st.integers(1, 12))


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(STEP, max_size=25))
def test_the_index_always_says_what_the_folders_say(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    runs = RunStore(str(tmp_path_factory.mktemp("runs")))
    index = RunIndex(runs)
    for step, number in steps:
        name = run_id(number)
        there = runs.spec(name) is not None
        if step == "add" and not there:
            keep(runs, number, None)
        elif step == "end" and there:
            runs.save_exit(name, RunExit("failed", 1, 1, number))
        elif step == "drop":
            runs.discard(name)
        fresh = RunIndex(runs).entries()
        assert index.entries() == fresh
        assert [entry.id for entry in fresh] == sorted(runs.names(), reverse=True)


def test_control_an_index_that_is_not_refreshed_is_seen(tmp_path: Path) -> None:
    runs = RunStore(str(tmp_path))
    index = RunIndex(runs)
    keep(runs, 1)
    stale = index._newest_first
    assert stale != [entry.id for entry in index.entries()]
    assert msgspec.structs.asdict(index.entries()[0])["status"] == "succeeded"
