"""Walls of running sandboxes are looked after: a real sandbox, in a ledger of the test's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from axern.daemon.audit import SHARDS, Audit
from axern.host import cgroup_files
from axern.runtime import held_limits, launch, monitor, record
from axern.runtime.layout import SandboxPaths
from axern.runtime.monitor import Created
from ledger import transitions
from ledger.reservation import RUN, Owner
from ledger.testing import observing, small_proposal
from tests.host.conftest import Lab, wait_until
from tests.host.test_limits import LIMIT_BYTES, MIB, write
from tests.unit.daemon.rig import Rig, play
from tests.unit.daemon.test_runs import spec_of

pytestmark = [pytest.mark.host, pytest.mark.machine, pytest.mark.timeout(1200)]

LOST = "capability-enforcement-lost"


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """One running sandbox and who looks after it."""

    rig: Rig
    lab: Lab
    paths: SandboxPaths
    created: Created
    audit: Audit

    async def whole_round(self) -> list[str]:
        """Look at every shard once; return why sandboxes were asked to end so far."""
        for _ in range(SHARDS):
            await self.audit.step()
        return [reason for _, reason, _, _ in self.rig.lives.stopped]

    def doctor(self) -> list[str]:
        """Return what the doctor finds of the limits."""
        rows = self.rig.parts.ledger.state.reservations()
        return [finding.found for finding in held_limits.examine(rows, self.lab.layout)]


def on_stage(folder: Path, lab: Lab, story: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    """Play *story* with a runc sandbox that has a memory limit."""
    spec = lab.limited("runc", "sleep", "1000", memory_bytes=LIMIT_BYTES)
    created = launch.create(spec, lab.layout)
    launch.start(spec, lab.layout)
    paths = lab.layout.sandbox(spec.sandbox_id)
    made = paths.wall.identity()
    assert made is not None

    async def scene(rig: Rig) -> None:
        parts = dataclasses.replace(rig.parts, layout=lab.layout)
        await rig.parts.committer.submit(observing(rig.observer.node))
        rig.observer.observe()
        proposal = dataclasses.replace(
            small_proposal(1),
            id=spec.sandbox_id,
            owner=Owner(RUN, 0),
            runtime="runc",
            enforced=True,
        )
        await parts.reserve(proposal)
        run = spec_of(
            proposal.id,
            enforced=True,
            pids_max=512,
            requests={"cpu_milli": 100, "memory_bytes": 16 * MIB},
            limits={"memory_bytes": LIMIT_BYTES},
        )
        parts.runs.save_spec(run)
        record.write_durably(record.spec_path(paths.run_folder), msgspec.json.encode(run))
        await rig.commit(transitions.start, reservation_id=proposal.id)
        await rig.commit(
            transitions.run, reservation_id=proposal.id, monitor=created.monitor, cgroup=made
        )
        await story(Scene(rig, lab, paths, created, Audit(parts)))

    play(folder, scene)


def test_what_holds_is_left_alone(tmp_path: Path, enforcing_lab: Lab) -> None:
    async def story(scene: Scene) -> None:
        assert await scene.whole_round() == []

    on_stage(tmp_path, enforcing_lab, story)


def test_a_changed_limit_is_put_right_and_told(
    tmp_path: Path, enforcing_lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(scene: Scene) -> None:
        write(scene.paths.wall, "memory.max", "max")
        write(scene.paths.workload, "memory.oom.group", "0")
        (told,) = scene.doctor()
        wall, workload = scene.paths.wall.folder, scene.paths.workload.folder
        assert told.startswith(
            f"{wall}/memory.max holds max, not 134217728; {workload}/memory.oom.group holds 0"
        )
        assert await scene.whole_round() == []
        assert scene.doctor() == []
        assert cgroup_files.read_number(scene.paths.wall, "memory.max") == LIMIT_BYTES
        assert cgroup_files.read_number(scene.paths.workload, "memory.oom.group") == 1
        assert "memory.max holds max, not 134217728" in caplog.text

    on_stage(tmp_path, enforcing_lab, story)


def test_a_process_that_was_moved_out_ends_its_sandbox(tmp_path: Path, enforcing_lab: Lab) -> None:
    async def story(scene: Scene) -> None:
        outside = scene.lab.layout.root.child("daemon")
        outside.create()
        outside.add(scene.created.init.pid)
        assert await scene.whole_round() == [LOST]

    on_stage(tmp_path, enforcing_lab, story)


def test_a_group_that_was_replaced_ends_its_sandbox(tmp_path: Path, enforcing_lab: Lab) -> None:
    async def story(scene: Scene) -> None:
        outside = scene.lab.layout.root.child("daemon")
        outside.create()
        outside.add(scene.created.init.pid)
        assert scene.paths.wall.destroy(10)
        scene.paths.wall.create()
        assert await scene.whole_round() == [LOST]

    on_stage(tmp_path, enforcing_lab, story)


def test_what_has_ended_is_nobodys_business(tmp_path: Path, enforcing_lab: Lab) -> None:
    async def story(scene: Scene) -> None:
        assert scene.paths.wall.destroy(10)
        wait_until(lambda: monitor.read_exit(scene.paths) is not None)
        assert await scene.whole_round() == []

    on_stage(tmp_path, enforcing_lab, story)
