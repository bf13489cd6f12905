"""Templates without a host: who may, who uses them, and what is shown of them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path

import pytest

from axern.api import schema
from axern.daemon import importer, template_service
from axern.daemon.reconcile import Reconciler
from axern.daemon.runs import RunSpec
from axern.daemon.template_users import LOST, TemplateUsers
from axern.runtime import template
from ledger.errors import StateConflict
from tests.unit.daemon.rig import USER, Rig, play

RECORD = {
    "source": "oci:/x:1",
    "digest": "sha256:0",
    "created_wall_ms": 1_700_000_000_000,
    "bytes": 5,
    "entries": 2,
    "left_out": {"sockets": 1},
    "env": {"A": "1"},
    "image": {"cmd": ["sh"]},
}


def plant(rig: Rig, name: str, record: object = None) -> str:
    folder = Path(rig.parts.layout.templates, name)
    (folder / "rootfs").mkdir(parents=True)
    if record is not None:
        (folder / template.RECORD).write_text(json.dumps(record), encoding="utf-8")
    return str(folder / "rootfs")


async def live_run(rig: Rig, number: int, rootfs: str | None) -> str:
    """Charge a run whose spec has *rootfs*, or is lost."""
    run_id = await rig.charge_run(number)
    if rootfs is not None:
        row = rig.ledger.state.reservation(run_id)
        spec = RunSpec(
            id=run_id,
            namespace=row.namespace,
            uid=1000,
            command=("x",),
            env={},
            cwd="/",
            rootfs=rootfs,
            rootfs_readonly=False,
            runtime_class="runc",
            requests={},
            limits={},
            enforced=False,
            created_wall_ms=1,
        )
        rig.parts.runs.save_spec(spec)
    return run_id


def test_only_root_imports_and_removes(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        plant(rig, "mine")
        body = {"name": "other", "source": {"kind": "dir", "path": str(tmp_path)}}
        for method, target, sent in (
            ("POST", "/v2/templates", body),
            ("DELETE", "/v2/templates/mine", None),
        ):
            status, answer = await rig.ask(method, target, sent, USER)
            assert (status, answer["error"]["code"]) == (403, "permission_denied")
        assert (await rig.ask("GET", "/v2/templates/mine", None, USER))[0] == 200

    play(tmp_path, scenario)


def test_what_is_shown(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rootfs = plant(rig, "made", RECORD)
        plant(rig, "copied")
        plant(rig, "damaged", [1])
        template.make_staging(rig.parts.layout.templates)
        _, answer = await rig.ask("GET", "/v2/templates")
        rows = {row["name"]: row for row in answer["templates"]}
        assert list(rows) == ["copied", "damaged", "made"]
        assert rows["made"] == {
            "name": "made",
            "path": rootfs,
            "users": 0,
            "bytes": 5,
            "entries": 2,
            "source": "oci:/x:1",
            "digest": "sha256:0",
            "created_at": "2023-11-14T22:13:20.000Z",
        }
        assert rows["copied"]["entries"] is rows["damaged"]["entries"] is None
        _, whole = await rig.ask("GET", "/v2/templates/made")
        assert whole["template"]["env"] == {"A": "1"}
        assert whole["template"]["left_out"] == {"sockets": 1}
        assert (await rig.ask("GET", "/v2/templates/.building-x"))[0] == 404

    play(tmp_path, scenario)


def test_users_are_all_live_runs_in_it_however_they_named_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await Reconciler(rig.parts).tick()
        mine, other = plant(rig, "mine"), plant(rig, "other")
        (tmp_path / "link").symlink_to(rig.parts.layout.templates)
        runs = [
            await live_run(rig, 1, mine),
            await live_run(rig, 2, f"{tmp_path}/link/mine/rootfs/usr"),
            await live_run(rig, 3, other),
            await live_run(rig, 4, "/usr"),
        ]
        users = TemplateUsers(rig.parts)
        assert await users.of("mine") == runs[:2]
        assert await users.by_name() == {"mine": runs[:2], "other": [runs[2]]}
        lost = await live_run(rig, 5, None)
        assert (await users.by_name())[LOST] == [lost]
        assert await users.of("other") == [runs[2], lost]
        status, answer = await rig.ask("DELETE", "/v2/templates/mine")
        assert (status, answer["error"]["code"]) == (409, "state_conflict")
        assert f"used by 3 live runs: {runs[0][:12]}, {runs[1][:12]}" in answer["error"]["message"]
        assert template.find(rig.parts.layout.templates, "mine") is not None

    play(tmp_path, scenario)


def test_a_run_being_admitted_and_a_removal_exclude_each_other(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rootfs = plant(rig, "mine")
        users = TemplateUsers(rig.parts)
        named = schema.RunRequest(command=["x"], template="mine")
        for body in (named, schema.RunRequest(command=["x"], rootfs=rootfs)):
            with users.admitting(body), pytest.raises(StateConflict, match="being admitted"):
                users.leaving("mine").__enter__()
            with users.leaving("mine"), pytest.raises(StateConflict, match="being removed"):
                users.admitting(body).__enter__()
        with users.leaving("mine"), users.admitting(schema.RunRequest(command=["x"])):
            pass
        with users.admitting(named):
            pass

    play(tmp_path, scenario)


def test_what_would_be_missed_stays(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for name in ("busybox", "fallback", "mine"):
            plant(rig, name)
        for name, words in (("busybox", "built in"), ("fallback", "default_template")):
            status, answer = await rig.ask("DELETE", f"/v2/templates/{name}")
            assert (status, words in answer["error"]["message"]) == (409, True)
        status, answer = await rig.ask("DELETE", "/v2/templates/mine")
        assert (status, answer["template"]["name"]) == (200, "mine")
        left = os.listdir(rig.parts.layout.templates)
        assert sorted(left) == ["busybox", "fallback"]

    play(tmp_path, scenario, default_template="fallback")


def test_a_template_appears_under_a_free_name_only(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    staging = template.make_staging(str(tmp_path))
    assert template.leftovers(str(tmp_path)) == (staging,)
    with pytest.raises(StateConflict, match="there is a template taken already"):
        template.publish(staging, str(tmp_path), "taken")
    Path(staging, "rootfs").mkdir()
    made = template.publish(staging, str(tmp_path), "free")
    assert template.find(str(tmp_path), "free") == made
    assert dataclasses.replace(made, record={}).env == {}
    aside = template.take_away(str(tmp_path), "free")
    assert template.find(str(tmp_path), "free") is None
    assert template.leftovers(str(tmp_path)) == (aside,)


def test_a_template_that_takes_long_to_remove_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        may_end, ended = asyncio.Event(), asyncio.Event()

        async def discard(_: str) -> None:
            await may_end.wait()
            ended.set()

        monkeypatch.setattr(importer, "discard", discard)
        monkeypatch.setattr(template_service, "_REMOVAL_PATIENCE_S", 0)
        plant(rig, "mine")
        status, _ = await rig.ask("DELETE", "/v2/templates/mine")
        assert (status, ended.is_set()) == (200, False)
        assert (await rig.ask("GET", "/v2/templates/mine"))[0] == 404
        may_end.set()
        await ended.wait()

    play(tmp_path, scenario)
