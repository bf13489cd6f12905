"""What the daemon makes of what it sees: proofs, waiting for them, and the loss policies."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import axern
from axern.daemon import capability_loss, capability_watch
from axern.daemon.capability_loss import CapabilityLoss
from axern.daemon.capability_watch import CapabilityWatch
from axern.errors import CapabilityMissing, HostError, HostUnproved
from axern.host import capabilities
from axern.host.capabilities import DEGRADE, FAIL_STOP, Row
from axern.host.cgroup import Hierarchies
from axern.host.process import boot_id
from axern.runtime import kept_proofs
from axern.runtime.layout import Layout
from axern.runtime.outcome import CAPABILITY_LOST
from ledger import transitions
from ledger.errors import AdmissionRefused
from ledger.reservation import RUN, Owner
from ledger.testing import ManualClock, small_proposal
from tests.unit.daemon.rig import USER, Rig, capability, play


class Host:
    """A host of one controller and one runtime's limit on top of it."""

    def __init__(self, folder: Path, loss: str = FAIL_STOP) -> None:
        self.clock = ManualClock()
        self.layout = Layout(
            state_dir=str(folder),
            run_dir=str(folder),
            filestore=str(folder),
            templates=str(folder),
            cgroup_root="axern",
            hierarchies=Hierarchies("/nowhere", ()),
        )
        self.identity = "boot 1"
        self.trouble: Exception | None = None
        self.tests = 0
        self.gate: Callable[[], None] = lambda: None
        self.rows = (
            Row("base", "Base", loss, probe=self.probe, identity=self.read),
            Row("top", "Top", FAIL_STOP, self.test, self.read, ("base",), is_self_test=True),
        )

    def probe(self) -> str:
        if self.trouble:
            raise self.trouble
        return "it holds"

    def read(self) -> str:
        return self.identity

    def test(self) -> str:
        self.tests += 1
        self.gate()
        return "seen to obey"

    def watch(self) -> CapabilityWatch:
        return CapabilityWatch(self.rows, self.layout, self.clock)


async def proved(watch: CapabilityWatch) -> None:
    """Sweep, and wait for what runs a sandbox."""
    await watch.sweep()
    if watch._testing is not None:
        await watch._testing


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_second_daemon_of_this_boot_repeats_no_self_test(tmp_path: Path) -> None:
    host = Host(tmp_path)

    async def scene() -> None:
        for _ in range(3):
            watch = host.watch()
            await proved(watch)
            assert watch.snapshot().present() == ("base", "top")
            await watch.close()
        assert host.tests == 1
        host.identity = "boot 2"
        watch = host.watch()
        await proved(watch)
        assert host.tests == 2
        await watch.close()

    run(scene)


def test_the_proofs_of_another_boot_prove_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `run_dir` is on a disk they are still there, and a program is still the same file."""
    host = Host(tmp_path)

    async def scene() -> None:
        for tests, boot in enumerate(("a", "b"), 1):
            monkeypatch.setattr(kept_proofs, "boot_id", lambda boot=boot: boot)
            watch = host.watch()
            await proved(watch)
            assert host.tests == tests
            await watch.close()

    run(scene)


@pytest.mark.parametrize("text", ["{", "[]", '{"boot_id": 1}', "whole"])
def test_a_damaged_file_of_proofs_proves_nothing(tmp_path: Path, text: str) -> None:
    host = Host(tmp_path)
    whole = {"boot_id": boot_id(), "version": axern.__version__, "proofs": []}
    damaged = json.dumps(whole) if text == "whole" else text
    (tmp_path / "capability-proofs.json").write_text(damaged, encoding="utf-8")

    async def scene() -> None:
        watch = host.watch()
        await proved(watch)
        assert host.tests == 1
        await watch.close()

    run(scene)


def test_a_request_waits_for_a_proof_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)

    async def scene() -> None:
        loop, may_end = asyncio.get_running_loop(), asyncio.Event()
        host.gate = lambda: asyncio.run_coroutine_threadsafe(wait(may_end), loop).result(30)
        watch = host.watch()
        await watch.sweep()
        await watch.settle(("base", "no such key"))  # known, and nothing to wait for
        monkeypatch.setattr(capability_watch, "SETTLE_S", 0.01)
        with pytest.raises(HostUnproved, match="the proof of top is still under way"):
            await watch.settle(("top",))
        monkeypatch.setattr(capability_watch, "SETTLE_S", 30)
        waiting = asyncio.create_task(watch.settle(("top",)))
        await asyncio.sleep(0)
        assert not waiting.done()
        may_end.set()
        await waiting
        assert watch.snapshot().present() == ("base", "top")
        await watch.close()

    run(scene)


async def wait(event: asyncio.Event) -> None:
    await event.wait()


def test_what_needs_something_that_nobody_looked_at_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path)
    monkeypatch.setattr(capability_watch, "SETTLE_S", 0.01)

    async def scene() -> None:
        watch = host.watch()
        await proved(watch)
        host.clock.advance(capabilities.VALID_MS + 1)
        with pytest.raises(HostUnproved):
            await watch.settle(("top",))
        host.identity, host.trouble = "boot 2", CapabilityMissing("gone", syscall="read")
        await watch.sweep()
        await watch.settle(("top",))  # which is known now: it is absent
        await watch.close()

    run(scene)


def test_what_a_proof_makes_is_what_it_stands_on(tmp_path: Path) -> None:
    host = Host(tmp_path)

    def make() -> str:
        host.identity = "made"
        return "it holds"

    host.rows = (dataclasses.replace(host.rows[0], probe=make), host.rows[1])

    async def scene() -> None:
        watch = host.watch()
        await proved(watch)
        await proved(watch)
        assert (host.tests, watch.snapshot().present()) == (1, ("base", "top"))
        await watch.close()

    run(scene)


def test_a_bug_in_a_self_test_is_told_and_not_tried_again_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host(tmp_path)

    def bug() -> None:
        raise KeyError("unexpected")

    host.gate = bug

    async def scene() -> None:
        watch = host.watch()
        for _ in range(3):
            await proved(watch)
        assert (host.tests, watch.snapshot().present()) == (1, ("base",))
        assert "capability top: its probe ended by a bug" in caplog.text
        await watch.close()

    run(scene)


@pytest.mark.parametrize("loss", [FAIL_STOP, DEGRADE])
def test_only_a_definite_no_falls_and_takes_with_it_what_stands_on_it(
    tmp_path: Path, loss: str
) -> None:
    host = Host(tmp_path, loss)

    async def scene() -> None:
        watch = host.watch()
        await proved(watch)
        host.identity, host.trouble = "boot 2", HostError("late", syscall="read")
        await watch.sweep()
        assert watch.snapshot().present() == ()
        assert watch.fallen(loss) == frozenset()
        host.identity, host.trouble = "boot 3", CapabilityMissing("gone", syscall="read")
        await watch.sweep()
        assert watch.fallen(loss) == {"base", "top"}
        await watch.close()

    run(scene)


def test_a_loss_waits_for_no_proof_of_something_else(tmp_path: Path) -> None:
    host = Host(tmp_path)

    async def scene() -> None:
        loop, may_end = asyncio.get_running_loop(), asyncio.Event()
        is_there = True

        def read() -> str:
            if is_there:
                return "1"
            raise CapabilityMissing("quotas are off", syscall="quotactl")

        def slow() -> str:
            asyncio.run_coroutine_threadsafe(wait(may_end), loop).result(30)
            return "at last"

        host.rows = (
            Row("quota", "Quota", FAIL_STOP, probe=str, identity=read),
            Row("program", "Program", FAIL_STOP, probe=slow, identity=host.read),
        )
        watch = host.watch()
        may_end.set()
        await watch.sweep()
        may_end.clear()
        is_there, host.identity = False, "replaced"
        heard = asyncio.Event()
        sweeping = asyncio.create_task(watch.sweep(heard.set))
        await asyncio.wait_for(heard.wait(), 30)
        assert not sweeping.done()
        assert watch.fallen(FAIL_STOP) == {"quota"}
        may_end.set()
        await sweeping
        await watch.close()

    run(scene)


async def charged(rig: Rig, number: int, *requires: str) -> str:
    _, node = rig.observer.observe()
    await rig.commit(transitions.observe_node, node=node)
    proposal = dataclasses.replace(
        small_proposal(number),
        owner=Owner(RUN, USER.uid),
        runtime="runc",
        requires=("runtime/runc",),
    )
    await rig.parts.reserve(proposal)
    if requires:  # as admitted while they were there
        rows = rig.ledger.state
        row = rows.reservation(proposal.id)
        object.__setattr__(row, "requires", (*row.requires, *requires))
    return proposal.id


def test_what_was_proved_since_the_last_tick_counts_at_once(tmp_path: Path) -> None:
    """Else who waited for a proof would be refused for the want of it."""
    key = "limit/memory/runc"

    async def scene(rig: Rig) -> None:
        await rig.parts.observe()
        proposal = dataclasses.replace(small_proposal(1), runtime="runc", requires=(key,))
        with pytest.raises(AdmissionRefused):
            await rig.parts.reserve(proposal)
        rig.capabilities.items = (capability(key, "seen to obey", present=True),)
        rig.observer.capabilities = (key,)
        await rig.parts.reserve(proposal)
        readings = rig.observer.readings
        await rig.parts.reserve(dataclasses.replace(small_proposal(2), requires=(key,)))
        assert rig.observer.readings == readings == 2

    play(tmp_path, scene)


def test_what_stands_on_a_lost_row_is_ended_and_nothing_else(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        doomed = await charged(rig, 1, "limit/memory/runc")
        await charged(rig, 2)
        loss = CapabilityLoss(rig.parts)
        loss.act()
        assert rig.lives.stopped == []
        rig.capabilities.lost = {FAIL_STOP: frozenset({"cgroup/memory", "limit/memory/runc"})}
        loss.act()
        grace_ms = capability_loss.GRACE_MS
        assert rig.lives.stopped == [(doomed, CAPABILITY_LOST, "daemon", grace_ms)]
        assert grace_ms <= 1_000

    play(tmp_path, scene)


def test_a_degraded_node_says_what_it_can_not_keep_up(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await charged(rig, 1, "limit/cpu")
        assert capability_loss.degraded(rig.parts) == ()
        rig.capabilities.lost = {DEGRADE: frozenset({"cgroup/cpu", "limit/cpu"})}
        CapabilityLoss(rig.parts).act()
        assert capability_loss.degraded(rig.parts) == ("limit/cpu",)
        assert rig.lives.stopped == []

    play(tmp_path, scene)
