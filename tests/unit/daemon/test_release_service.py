"""Releases, evidence and the doctor through the routes, with lives that end by hand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from axern.daemon import release_service
from axern.runtime.record import RunExit, save_exit
from ledger import transitions
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play
from tests.unit.daemon.test_runs import spec_of
from tests.unit.ledger.samples import CGROUP, MONITOR

FORCE = "force=true&reason=because"


async def observe(rig: Rig) -> None:
    """Let the host be known, as the daemon's first tick does."""
    _, node = rig.observer.observe()
    await rig.commit(transitions.observe_node, node=node)


async def asked_to_stop(rig: Rig) -> None:
    """Wait until a life was asked to end."""
    async with asyncio.timeout(10):
        while not rig.lives.stopped:  # noqa: ASYNC110 - a list has nothing to wait for
            await asyncio.sleep(0)


async def lease(rig: Rig, **body: Any) -> str:
    answer = await rig.ask(
        "POST", "/v2/reservations", {"requests": {"cpu_milli": 10}, **body}, USER
    )
    found: str = answer[1]["reservation"]["id"]
    return found


async def running(rig: Rig, number: int = 0xAB << 120) -> str:
    found = await rig.charge_run(number)
    await rig.commit(transitions.start, reservation_id=found)
    await rig.commit(
        transitions.run,
        reservation_id=found,
        monitor=MONITOR,
        cgroup=CGROUP,
        started_wall_ms=rig.clock().wall_ms,
    )
    return found


async def bury(rig: Rig, reservation_id: str, evidence: str = "nothing left") -> None:
    """End a sandbox as its life would."""
    await rig.commit(transitions.retire, reservation_id=reservation_id, reason="x")
    await rig.commit(transitions.release, reservation_id=reservation_id, evidence=evidence)
    life = rig.lives.begin(reservation_id)
    life.evidence = evidence
    life.over.set()


async def release(rig: Rig, found: str, query: str = "", peer: Any = USER) -> tuple[int, Any]:
    return await rig.ask("DELETE", f"/v2/reservations/{found}?{query}", peer=peer)


def test_a_lease_is_released_once_and_told_ever_after(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await lease(rig)
        assert (await release(rig, found, peer=OTHER))[0] == 403
        status, first = await release(rig, found[:8])
        assert (status, first["reservation"]["phase"]) == (200, "released")
        assert first["released"]["evidence"] == "released by uid 1000"
        assert not first["released"]["already"]
        assert set(first["reservation"]["charged"].values()) == {0}
        for word, peer in ((found, USER), (found[:8], USER), (found, ROOT)):
            status, again = await release(rig, word, peer=peer)
            assert status == 200
            assert again["released"] == first["released"] | {"already": True}
        assert (await release(rig, found, peer=OTHER))[0] == 403
        assert rig.parts.heartbeats.beats == {}

    play(tmp_path, scenario)


def test_what_runs_needs_force_and_a_reason(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await running(rig)
        status, refused = await release(rig, found)
        assert (status, refused["error"]["code"]) == (409, "state_conflict")
        assert "is running since" in refused["error"]["message"]
        assert found in refused["error"]["hint"]
        for query in ("force=true", "force=true&reason=", "force=yes", "force=true&reason=a%0ab"):
            assert (await release(rig, found, query.replace("%0a", "\n")))[0] == 400
        assert (await release(rig, found, FORCE, OTHER))[0] == 403
        assert (await release(rig, "ab", FORCE))[0] == 400
        assert rig.lives.stopped == []
        assert rig.ledger.state.reservation(found).phase == "running"

    play(tmp_path, scenario)


def test_a_forced_release_waits_for_the_proof(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await running(rig)
        asking = asyncio.create_task(release(rig, found, f"{FORCE}&grace_ms=70"))
        await asked_to_stop(rig)
        note = "released by uid 1000: because"
        assert rig.lives.stopped == [(found, note, "uid:1000", 70)]
        assert rig.ledger.state.reservation(found).reason == note
        await bury(rig, found)
        status, answer = await asking
        assert (status, answer["released"]["evidence"]) == (200, "nothing left")
        status, again = await release(rig, found)
        assert (status, again["released"]["already"]) == (200, True)

    play(tmp_path, scenario)


def test_without_proof_it_is_still_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_service, "WAIT_S", 0.01)

    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await running(rig)
        status, answer = await release(rig, found, FORCE)
        assert (status, answer["released"]) == (202, None)
        assert answer["reservation"]["phase"] == "stopping"
        # To ask again is to wait again, with or without force.
        for query in ("", FORCE):
            assert (await release(rig, found, query))[0] == 202
        await rig.commit(transitions.retire, reservation_id=found, reason="x")
        assert (await release(rig, found))[1]["reservation"]["phase"] == "retiring"
        rig.parts.closing.set()
        assert (await release(rig, found))[0] == 202

    play(tmp_path, scenario)


def test_what_was_not_started_is_cancelled(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await rig.charge_run(0xCD << 120)
        asking = asyncio.create_task(release(rig, found))
        await asked_to_stop(rig)
        assert rig.ledger.state.reservation(found).phase == "stopping"
        await bury(rig, found)
        assert (await asking)[0] == 200

    play(tmp_path, scenario)


def test_what_the_journal_forgot_its_record_tells(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = "ef" * 16
        assert (await release(rig, found))[0] == 404
        rig.parts.runs.save_spec(spec_of(found))
        save_exit(f"{rig.parts.layout.runs}/{found}", RunExit("succeeded", 0, 0, 1_700_000_000_000))
        status, answer = await release(rig, found[:6], peer=ROOT)
        assert (status, answer["reservation"], answer["released"]["already"]) == (200, None, True)

    play(tmp_path, scenario)


def test_leaks_are_buried_by_root_alone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = "ef" * 16
        store = f"{rig.parts.layout.filestore}/{found}"
        os.makedirs(f"{store}/upper")
        assert (await release(rig, found, peer=USER))[0] == 404
        assert os.listdir(rig.parts.layout.filestore) == [found]
        status, answer = await rig.ask("GET", "/v2/doctor")
        assert [(each["code"], each["id"]) for each in answer["findings"]] == [
            ("leaked-files", found)
        ]
        status, answer = await release(rig, found[:5], peer=ROOT)
        assert (status, answer["reservation"]) == (200, None)
        assert "traces removed: 1" in answer["released"]["evidence"]
        assert os.listdir(rig.parts.layout.filestore) == []
        assert (await rig.ask("GET", "/v2/doctor"))[1]["findings"] == []
        assert (await release(rig, found, peer=ROOT))[0] == 404

    play(tmp_path, scenario)


def test_an_entry_from_all_sides(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        found = await lease(rig)
        plain = await rig.ask("GET", f"/v2/reservations/{found}")
        assert set(plain[1]) == {"reservation", "ledger_state"}
        rig.clock.advance(1500)
        status, answer = await rig.ask(
            "GET", f"/v2/reservations/{found}?evidence=true&history=true"
        )
        assert (status, answer["evidence"]["last_heartbeat_age_ms"]) == (200, 1500)
        assert [step["operation"] for step in answer["history"]["steps"]] == ["reserve"]
        await release(rig, found)
        assert (await rig.ask("GET", f"/v2/reservations/{found}"))[0] == 404
        status, answer = await rig.ask("GET", f"/v2/reservations/{found[:7]}?history=true")
        assert (status, answer["reservation"]["phase"]) == (200, "released")
        assert answer["history"]["steps"][-1]["note"] == "released by uid 1000"
        assert (await rig.ask("GET", f"/v2/reservations/{'0' * 32}?history=true"))[0] == 404
        sandbox = await running(rig)
        _, answer = await rig.ask("GET", f"/v2/reservations/{sandbox}?evidence=true")
        seen = answer["evidence"]
        assert (seen["monitor"]["alive"], seen["cgroup"]["exists"]) == (False, False)

    play(tmp_path, scenario)


def test_the_doctor_does_not_judge_what_moves(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await observe(rig)
        await lease(rig)
        _, answer = await rig.ask("GET", "/v2/doctor")
        assert answer["findings"] == []
        sandbox = await running(rig)
        _, answer = await rig.ask("GET", "/v2/doctor")
        codes = {(each["code"], each["id"]) for each in answer["findings"]}
        assert codes == {("orphaned-sandbox", sandbox), ("drifting-record", sandbox)}
        # The same sandbox, gone by the second look: no finding.
        examining = asyncio.create_task(rig.ask("GET", "/v2/doctor"))
        await asyncio.sleep(0.3)
        await bury(rig, sandbox)
        assert (await examining)[1]["findings"] == []

    play(tmp_path, scenario)
