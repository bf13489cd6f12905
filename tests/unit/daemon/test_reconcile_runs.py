"""The loop and runs that are over: what is kept of them goes by itself, beside everything else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from axern.daemon import retention
from axern.daemon.reconcile import Reconciler
from axern.runtime.record import RunExit
from tests.unit.daemon.rig import Rig, play
from tests.unit.daemon.test_reconcile import HOUR_MS, MINUTE_MS, begin, pass_time
from tests.unit.daemon.test_runs import spec_of


async def pruned(reconciler: Reconciler) -> None:
    assert reconciler.pruning is not None
    await reconciler.pruning


def test_old_runs_are_pruned_by_themselves(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        runs, now = rig.parts.runs, rig.clock.now
        runs.save_spec(spec_of("aa" * 16))
        runs.save_exit("aa" * 16, RunExit("succeeded", 0, 0, now.wall_ms))
        rig.clock.advance(2 * HOUR_MS)
        await reconciler.tick()
        await pruned(reconciler)
        assert runs.exit("aa" * 16) is not None
        rig.clock.advance(HOUR_MS)
        await reconciler.tick()
        await pruned(reconciler)
        assert list(runs.names()) == []

    play(tmp_path, scenario, runs_kept="2h")


def test_facts_stay_fresh_while_old_runs_are_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, go_on = [], threading.Event()

    def slow(*arguments: object) -> int:
        calls.append(arguments)
        go_on.wait(20)
        raise OSError(5, "bad disk")

    async def scenario(rig: Rig) -> None:
        monkeypatch.setattr(retention, "retain", slow)
        reconciler = await begin(rig)
        await pass_time(rig, reconciler, 2 * HOUR_MS, MINUTE_MS)
        assert rig.observer.readings == 121
        go_on.set()
        await pruned(reconciler)
        assert len(calls) == 1
        await pass_time(rig, reconciler, MINUTE_MS)
        await pruned(reconciler)
        assert len(calls) == 2

    play(tmp_path, scenario)


def test_exit_files_that_nobody_waits_for_go(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        charged = await rig.charge_run(1)
        exits = Path(rig.parts.layout.exits)
        kept = {charged, "bb" * 16 + ".AB12CD"}
        for name in (*kept, "aa" * 16):
            (exits / name).write_bytes(b"0")
        reconciler.adopt()
        assert set(os.listdir(exits)) == kept

    play(tmp_path, scenario)
