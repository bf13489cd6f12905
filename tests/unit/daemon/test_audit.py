"""Who looks after the walls of sandboxes: whose are put right, and whose are left alone.

The control group is a plain folder here; what stands in its files is the test's word. The same
with a real one: tests/host/test_audit.py.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from axern.daemon.audit import SHARDS, Audit
from axern.errors import CgroupError
from axern.host import process
from axern.host.cgroup import Hierarchies
from axern.runtime import confinement
from ledger import transitions
from ledger.reservation import RUN, Owner, ProcessIdentity
from ledger.testing import observing, small_proposal
from tests.unit.daemon.rig import Rig, play
from tests.unit.daemon.test_runs import spec_of

LOST = "capability-enforcement-lost"
CHANGED = "cpu.max holds max 100000, not 500 100000"


@dataclasses.dataclass(slots=True)
class Scene:
    """One running sandbox, who looks after it, and what is found; `mended` counts."""

    rig: Rig
    id: str
    audit: Audit
    wall: str
    broken: tuple[str, ...] = ()
    on_look: Callable[[], None] = lambda: None
    mended: int = 0

    async def whole_round(self) -> list[str]:
        """Look at every shard once; return why sandboxes were asked to end so far."""
        for _ in range(SHARDS):
            await self.audit.step()
        return [reason for _, reason, _, _ in self.rig.lives.stopped]


def on_stage(
    folder: Path,
    patches: pytest.MonkeyPatch,
    story: Callable[[Scene], Coroutine[Any, Any, None]],
    monitor: ProcessIdentity | None = None,
) -> None:
    watcher = monitor or process.identify(os.getpid())
    assert watcher is not None

    async def scene(rig: Rig) -> None:
        layout = dataclasses.replace(rig.parts.layout, hierarchies=Hierarchies(str(folder), ()))
        parts = dataclasses.replace(rig.parts, layout=layout)
        await parts.committer.submit(observing(rig.observer.node))
        rig.observer.observe()
        proposal = dataclasses.replace(
            small_proposal(1), owner=Owner(RUN, 0), runtime="runc", enforced=True
        )
        await parts.reserve(proposal)
        parts.runs.save_spec(spec_of(proposal.id, enforced=True, pids_max=512))
        wall = layout.sandbox(proposal.id).wall
        made = wall.create()
        await rig.commit(transitions.start, reservation_id=proposal.id)
        await rig.commit(transitions.run, reservation_id=proposal.id, monitor=watcher, cgroup=made)
        rig.lives.begin(proposal.id)
        staged = Scene(rig, proposal.id, Audit(parts), wall.folder)

        def look(*_: object) -> tuple[str, ...]:
            staged.on_look()
            return staged.broken

        def mend(*_: object) -> None:
            staged.mended += 1

        patches.setattr(confinement, "broken", look)
        patches.setattr(confinement, "mend", mend)
        await story(staged)

    play(folder, scene)


def test_what_somebody_changed_is_put_right_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        assert (await scene.whole_round(), scene.mended) == ([], 0)
        scene.broken = (CHANGED,)
        assert (await scene.whole_round(), scene.mended) == ([], 1)
        assert CHANGED in caplog.text

    on_stage(tmp_path, monkeypatch, story)


@pytest.mark.parametrize("ends", ["before", "meanwhile"])
def test_who_is_being_killed_keeps_the_cpu_time_to_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """Under a cap of a hundredth of a core, that took minutes."""

    async def story(scene: Scene) -> None:
        scene.broken = (CHANGED,)

        def end() -> None:
            scene.rig.lives.begin(scene.id).ending = True

        if ends == "before":
            end()
        else:
            scene.on_look = end
        assert (await scene.whole_round(), scene.mended) == ([], 0)
        assert caplog.text == ""

    on_stage(tmp_path, monkeypatch, story)


def test_a_group_that_goes_with_its_burial_is_nobodys_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        def vanish() -> None:
            scene.rig.lives.begin(scene.id).ending = True
            raise CgroupError("it is gone", syscall="open")

        scene.on_look = vanish
        assert await scene.whole_round() == []
        assert caplog.text == ""

    on_stage(tmp_path, monkeypatch, story)


@pytest.mark.parametrize("boot", ["this", "the last"])
def test_what_ended_with_its_boot_has_lost_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    async def story(scene: Scene) -> None:
        shutil.rmtree(scene.wall)
        if boot == "the last":
            monkeypatch.setattr(process, "boot_id", lambda: "another")
        assert await scene.whole_round() == ([] if boot == "the last" else [LOST])

    on_stage(tmp_path, monkeypatch, story)


def test_children_of_a_stranger_with_the_monitors_number_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = process.identify(os.getpid())
    assert here is not None
    program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    for monitor, ended in ((here, [LOST]), (dataclasses.replace(here, start_ticks=1), [])):

        async def story(scene: Scene, ended: list[str] = ended) -> None:
            assert await scene.whole_round() == ended

        folder = tmp_path / str(len(ended))
        folder.mkdir()
        with subprocess.Popen(program, stdin=subprocess.PIPE) as child:
            on_stage(folder, monkeypatch, story, monitor)
            child.kill()


def test_a_lost_spec_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        scene.rig.parts.runs.discard(scene.id)
        assert await scene.whole_round() == []
        assert await scene.whole_round() == []
        assert caplog.text.count("its spec is lost") == 1

    on_stage(tmp_path, monkeypatch, story)
