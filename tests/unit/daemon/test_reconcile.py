"""The loop on a real ledger and a clock by hand: who keeps a charge, who loses it, and why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from axern.daemon.reconcile import Reconciler
from axern.host import process
from axern.runtime.record import RunExit
from ledger import transitions
from ledger.errors import CommitFailed
from ledger.reservation import CgroupIdentity, ProcessIdentity
from ledger.tables import BEATS, REQUESTS
from ledger.testing import small_node
from tests.unit.daemon.rig import Rig, journal_text, play
from tests.unit.daemon.test_runs import spec_of

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
SMALL = {"cpu_milli": 100, "memory_bytes": 1024**2, "ephemeral_storage_bytes": 1024**2}
STEP_MS = 10 * SECOND_MS


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


async def begin(rig: Rig) -> Reconciler:
    reconciler = Reconciler(rig.parts)
    await reconciler.tick()
    return reconciler


async def pass_time(rig: Rig, reconciler: Reconciler, ms: int, step_ms: int = STEP_MS) -> None:
    """Let *ms* pass with a tick at each step, so that the loop never misses one."""
    while ms > 0:
        rig.clock.advance(min(step_ms, ms))
        await reconciler.tick()
        ms -= step_ms


async def lease(rig: Rig, **fields: Any) -> dict[str, Any]:
    status, answer = await rig.ask("POST", "/v2/reservations", {"requests": SMALL, **fields})
    assert status == 201, answer
    return answer


async def liveness(rig: Rig, reservation_id: str) -> str | None:
    status, answer = await rig.ask("GET", f"/v2/reservations/{reservation_id}")
    return None if status == 404 else str(answer["reservation"]["liveness"])


def test_a_lease_ends_at_its_deadline_and_not_before(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        made = await lease(rig, ttl_ms=MINUTE_MS)
        found = made["reservation"]["id"]
        await pass_time(rig, reconciler, MINUTE_MS - 1)
        assert await liveness(rig, found) == "active"
        rig.clock.advance(1)
        assert await liveness(rig, found) == "expired"
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, found) is None
        assert found not in rig.parts.heartbeats.beats

    play(tmp_path, scenario)
    assert '"lease expired"' in journal_text(tmp_path)


def test_a_renewed_lease_lives_up_to_its_ceiling(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        made = await lease(rig, ttl_ms=MINUTE_MS, max_lifetime_ms=3 * MINUTE_MS)
        found = made["reservation"]["id"]
        beat = {"token": made["token"], "ttl_ms": MINUTE_MS}
        for _ in range(17):
            await pass_time(rig, reconciler, STEP_MS)
            assert (await rig.ask("POST", f"/v2/reservations/{found}/heartbeat", beat))[0] == 200
        await pass_time(rig, reconciler, STEP_MS)
        status, answer = await rig.ask("POST", f"/v2/reservations/{found}/heartbeat", beat)
        assert (status, answer["error"]["code"]) == (404, "not_found")

    play(tmp_path, scenario)


def test_a_dead_owner_ends_its_lease_with_the_evidence(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = (await lease(rig, owner_process={"pid": owner.pid}))["reservation"]["id"]
        owner.kill()
        owner.wait()
        await pass_time(rig, reconciler, 2 * MINUTE_MS - STEP_MS)
        assert await liveness(rig, found) == "active"
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, found) is None

    play(tmp_path, scenario)
    assert f'"its owner, process {owner.pid}, is gone"' in journal_text(tmp_path)


def test_a_living_owner_is_a_heartbeat(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        made = await lease(rig, owner_process={"pid": owner.pid}, ttl_ms=HOUR_MS)
        found = made["reservation"]["id"]
        await pass_time(rig, reconciler, 30 * MINUTE_MS)
        assert await liveness(rig, found) == "active"
        assert rig.clock.now.monotonic_ms - rig.parts.heartbeats.beats[found] <= 2 * MINUTE_MS

    play(tmp_path, scenario)


def test_a_silent_owner_of_whom_nothing_is_known_is_charged_till_the_deadline(
    tmp_path: Path,
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = (await lease(rig, ttl_ms=HOUR_MS))["reservation"]["id"]
        await pass_time(rig, reconciler, HOUR_MS - STEP_MS)
        assert await liveness(rig, found) == "stale"
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, found) is None

    play(tmp_path, scenario)


def test_after_a_gap_silence_is_forgiven_for_a_window(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = (await lease(rig, owner_process={"pid": owner.pid}))["reservation"]["id"]
        owner.kill()
        owner.wait()
        rig.clock.advance(3 * MINUTE_MS)  # nobody ticked, so nobody could be heard
        await reconciler.tick()
        assert await liveness(rig, found) == "stale"
        await pass_time(rig, reconciler, 2 * MINUTE_MS - STEP_MS)
        assert await liveness(rig, found) == "stale"
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, found) is None

    play(tmp_path, scenario)


def test_a_suspended_host_ends_deadlines_but_nobodys_silence(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        short = (await lease(rig, ttl_ms=MINUTE_MS))["reservation"]["id"]
        long = await lease(rig, ttl_ms=24 * HOUR_MS, owner_process={"pid": owner.pid})
        found = long["reservation"]["id"]
        owner.kill()
        owner.wait()
        rig.clock.suspend(8 * HOUR_MS)
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, short) is None
        assert await liveness(rig, found) == "active"

    play(tmp_path, scenario)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("leap_ms", [10 * MINUTE_MS, 24 * HOUR_MS, 30 * 365 * 24 * HOUR_MS])
def test_a_jump_of_the_wall_clock_changes_nothing(
    tmp_path: Path, owner: subprocess.Popen[bytes], leap_ms: int, sign: int
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        for fields in ({"request_id": "a"}, {"owner_process": {"pid": owner.pid}}):
            await lease(rig, ttl_ms=HOUR_MS, **fields)
        rig.parts.runs.save_spec(spec_of("ab" * 16))
        rig.parts.runs.save_exit("ab" * 16, RunExit("failed", 7, 7, rig.clock.now.wall_ms))
        before = {name: dict(rows) for name, rows in rig.ledger.state.all_rows().items()}
        rig.clock.jump_wall(sign * leap_ms)
        await pass_time(rig, reconciler, MINUTE_MS)
        rows = {name: dict(rows) for name, rows in rig.ledger.state.all_rows().items()}
        assert {**rows, BEATS: None} == {**before, BEATS: None}
        rig.clock.advance(HOUR_MS - 2 * MINUTE_MS)
        await reconciler.tick()
        assert rig.parts.runs.exit("ab" * 16) is not None
        assert (await rig.ask("GET", "/v2/runs"))[1]["runs"]

    play(tmp_path, scenario)


def test_a_request_id_is_forgotten_after_a_day(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        first = (await lease(rig, request_id="a"))["reservation"]["id"]
        assert (await rig.ask("DELETE", f"/v2/reservations/{first}"))[0] == 200
        again = {"requests": SMALL, "request_id": "a"}
        other = {**again, "name": "other"}
        rig.clock.advance(24 * HOUR_MS - 1)
        await reconciler.tick()
        assert (await rig.ask("POST", "/v2/reservations", again))[1]["error"]["code"] == (
            "state_conflict"
        )
        assert (await rig.ask("POST", "/v2/reservations", other))[1]["error"]["code"] == (
            "request_id_conflict"
        )
        await pass_time(rig, reconciler, STEP_MS)
        assert list(rig.ledger.state.rows(REQUESTS)) == []
        assert (await rig.ask("POST", "/v2/reservations", other))[0] == 201

    play(tmp_path, scenario)


def test_heartbeats_are_written_together_and_rarely(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        made = [await lease(rig) for _ in range(5)]
        before = rig.ledger.generation
        for _ in range(60):
            for answer in made:
                target = f"/v2/reservations/{answer['reservation']['id']}/heartbeat"
                assert (await rig.ask("POST", target, {"token": answer["token"]}))[0] == 200
            await pass_time(rig, reconciler, SECOND_MS)
        assert 4 <= rig.ledger.generation - before <= 5
        assert len(list(rig.ledger.state.rows(BEATS))) == 5

    play(tmp_path, scenario, tick="1s")


def test_the_beats_of_the_ended_are_not_written(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        made = await lease(rig)
        await pass_time(rig, reconciler, STEP_MS)
        assert len(list(rig.ledger.state.rows(BEATS))) == 1
        assert (await rig.ask("DELETE", f"/v2/reservations/{made['reservation']['id']}"))[0] == 200
        await pass_time(rig, reconciler, MINUTE_MS)
        assert list(rig.ledger.state.rows(BEATS)) == []

    play(tmp_path, scenario)


def test_an_unchanged_host_writes_nothing(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        before = rig.ledger.generation
        await pass_time(rig, reconciler, HOUR_MS)
        assert rig.ledger.generation == before
        assert rig.observer.readings == 361

    play(tmp_path, scenario)


def test_a_host_that_shrinks_keeps_what_is_charged_and_admits_no_more(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        large = {**SMALL, "cpu_milli": 3_000}
        found = (await lease(rig, requests=large))["reservation"]["id"]
        rig.observer.node = small_node(cpu_milli=1_000)
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, found) == "active"
        _, answer = await rig.ask("GET", "/v2/node")
        cpu = answer["node"]["dimensions"][0]
        assert (cpu["capacity"], cpu["committed"], cpu["headroom"]) == (1_000, 3_000, 0)
        status, answer = await rig.ask("POST", "/v2/reservations", {"requests": SMALL})
        assert status == 507
        (shortfall,) = answer["error"]["shortfalls"]
        assert (shortfall["available"], shortfall["short_by"]) == (0, 100)
        status, answer = await rig.ask("POST", "/v2/reservations", {"requests": large})
        assert (status, answer["error"]["code"]) == (422, "request_exceeds_node")
        rig.observer.node = small_node()
        await pass_time(rig, reconciler, STEP_MS)
        await lease(rig)

    play(tmp_path, scenario)


def test_stale_facts_admit_nobody(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        rig.clock.advance(15_001)
        status, answer = await rig.ask("POST", "/v2/reservations", {"requests": SMALL})
        assert (status, answer["error"]["code"]) == (422, "node_selection_error")
        await reconciler.tick()
        await lease(rig)

    play(tmp_path, scenario)


def test_every_sandbox_is_adopted_and_what_was_never_admitted_goes(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        await lease(rig)
        charged = [await rig.charge_run(number) for number in (1, 2)]
        runs = rig.parts.runs
        for name in (charged[0], "aa" * 16, "bb" * 16, "cc" * 16):
            runs.save_spec(spec_of(name))
        runs.save_exit("bb" * 16, RunExit("succeeded", 0, 0, 1))
        (tmp_path / "runs" / ("cc" * 16) / "exit.json").write_bytes(b"damaged")
        assert reconciler.adopt() == 2
        assert sorted(rig.lives.lives) == sorted(charged)
        assert sorted(runs.names()) == sorted([charged[0], "bb" * 16, "cc" * 16])

    play(tmp_path, scenario)


def test_a_watched_sandbox_beats_by_being_watched(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found, unwatched = await rig.charge_run(1), await rig.charge_run(2)
        rig.lives.begin(found).resting.set()
        rig.lives.begin(unwatched)
        await pass_time(rig, reconciler, STEP_MS)
        assert set(rig.parts.heartbeats.beats) == {found}

    play(tmp_path, scenario)


def test_a_silent_sandbox_is_looked_at_and_never_uncharged(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = await rig.charge_run(1)
        await pass_time(rig, reconciler, HOUR_MS)
        assert set(rig.lives.lives) == {found}
        assert await liveness(rig, found) == "expired"
        assert rig.lives.stopped == []

    play(tmp_path, scenario)


def test_a_sandbox_past_its_deadline_is_asked_to_end_and_stays_charged(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = await rig.charge_run(1, ttl_ms=MINUTE_MS)
        retiring = await rig.charge_run(2, ttl_ms=MINUTE_MS)
        boot = rig.clock.now.boot_id
        await rig.commit(transitions.start, reservation_id=retiring)
        await rig.commit(
            transitions.run,
            reservation_id=retiring,
            monitor=ProcessIdentity(boot, os.getpid(), 1),
            cgroup=CgroupIdentity(boot, "/x", 1),
        )
        await rig.commit(transitions.retire, reservation_id=retiring, reason="done")
        await pass_time(rig, reconciler, MINUTE_MS)
        assert rig.lives.stopped == [(found, "expired", "daemon", 2_000)]
        assert await liveness(rig, found) == "expired"
        assert await liveness(rig, retiring) == "expired"

    play(tmp_path, scenario, stop_grace="2s")


def test_one_bad_entry_never_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def alive(identity: ProcessIdentity) -> bool:
        raise OSError(22, f"bad entry of {identity.pid}")

    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        monkeypatch.setattr(process, "is_alive", alive)
        await lease(rig, owner_process={"pid": os.getpid()})
        ended = (await lease(rig, ttl_ms=2 * MINUTE_MS))["reservation"]["id"]
        await pass_time(rig, reconciler, 2 * MINUTE_MS)
        assert await liveness(rig, ended) is None

    play(tmp_path, scenario)
    assert "bad entry" in caplog.text


def test_a_tick_gets_the_ledger_going_when_its_disk_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        with monkeypatch.context() as patch:
            for call in ("fdatasync", "fsync"):
                patch.setattr(os, call, Mock(side_effect=OSError(5, "Input/output error")))
            status, answer = await rig.ask("POST", "/v2/reservations", {"requests": SMALL})
            assert (status, answer["error"]["code"]) == (503, "busy")
            with pytest.raises(CommitFailed, match="still refuses"):
                await reconciler.tick()
        rig.parts.committer._reseal_after_s = 0.0  # the pause is over
        await reconciler.tick()
        assert not rig.ledger.failed

    play(tmp_path, scenario)


def test_a_new_daemon_gives_every_owner_a_window(
    tmp_path: Path, owner: subprocess.Popen[bytes]
) -> None:
    async def scenario(rig: Rig) -> None:
        await begin(rig)
        made = await lease(rig, owner_process={"pid": owner.pid}, ttl_ms=24 * HOUR_MS)
        owner.kill()
        owner.wait()
        rig.clock.advance(HOUR_MS)
        reconciler = await begin(rig)
        await pass_time(rig, reconciler, 2 * MINUTE_MS - STEP_MS)
        assert await liveness(rig, made["reservation"]["id"]) == "stale"
        await pass_time(rig, reconciler, STEP_MS)
        assert await liveness(rig, made["reservation"]["id"]) is None

    play(tmp_path, scenario)
