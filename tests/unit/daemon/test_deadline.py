"""Deadlines: the alarm rings when the ledger says, once, and says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from axern.daemon import deadline
from axern.daemon.deadline import Deadlines
from axern.daemon.life import Life
from axern.runtime.outcome import stopped
from ledger import transitions
from ledger.reservation import CgroupIdentity, ProcessIdentity
from tests.unit.daemon.rig import Rig, play

GRACE_MS = 500


async def running(rig: Rig, ttl_ms: int | None, timeout_ms: int | None) -> str:
    _, node = rig.observer.observe()
    await rig.commit(transitions.observe_node, node=node)
    run_id = await rig.charge_run(1, ttl_ms=ttl_ms)
    await rig.commit(transitions.start, reservation_id=run_id)
    ends_ms = None if timeout_ms is None else rig.clock.now.boottime_ms + timeout_ms
    await rig.commit(
        transitions.run,
        reservation_id=run_id,
        monitor=ProcessIdentity("boot-1", 1, 1),
        cgroup=CgroupIdentity("boot-1", "/x", 1),
        ends_boottime_ms=ends_ms,
    )
    return run_id


@pytest.mark.parametrize(
    ("ttl_ms", "timeout_ms", "after_ms", "reason"),
    [
        (None, None, 10**9, None),
        (10, None, 9, None),
        (10, None, 10, "expired"),
        (None, 10, 9, None),
        (None, 10, 10, "timeout"),
        (1_000, 10, 10, "timeout"),
        (10, 1_000, 10, "expired"),
        (10, 10, 10, "expired"),
    ],
)
def test_what_is_nearer_ends_it(
    tmp_path: Path, ttl_ms: int | None, timeout_ms: int | None, after_ms: int, reason: str | None
) -> None:
    async def scenario(rig: Rig) -> None:
        life = Life(await running(rig, ttl_ms, timeout_ms))
        rig.clock.suspend(after_ms)
        Deadlines(rig.ledger, rig.clock, GRACE_MS).watch(life)
        assert life.stop_reason == reason
        assert (life.alarm is None) is (reason is not None or after_ms == 10**9)
        if reason is not None:
            assert life.kill_at_ms == rig.clock.now.monotonic_ms + GRACE_MS
            assert (stopped(reason, 0, None).status, stopped(reason, 0, None).cli_exit_code) == (
                "failed",
                124,
            )
        deadline.quiet(life)

    play(tmp_path, scenario)


def test_an_alarm_that_rings_early_is_set_again(tmp_path: Path) -> None:
    """The event loop's clock is not the ledger's."""

    async def scenario(rig: Rig) -> None:
        looked = asyncio.Event()
        life = Life(await running(rig, None, 20))
        Deadlines(rig.ledger, rig.clock, GRACE_MS).watch(life)
        first = life.alarm
        assert first is not None
        asyncio.get_running_loop().call_at(first.when() + 0.001, looked.set)
        await asyncio.wait_for(looked.wait(), 10)
        assert life.alarm is not first
        assert not life.must_stop()
        rig.clock.advance(20)
        await asyncio.wait_for(life.woken.wait(), 10)
        assert life.stop_reason == "timeout"

    play(tmp_path, scenario)


def test_a_cancel_stays_one_and_is_hurried_by_the_deadline(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        life = Life(await running(rig, None, 10))
        life.stop("cancelled", "uid:1", rig.clock.now.monotonic_ms + 3_600_000)
        rig.clock.advance(10)
        Deadlines(rig.ledger, rig.clock, GRACE_MS).watch(life)
        assert life.stop_reason == "cancelled"
        assert life.kill_at_ms == rig.clock.now.monotonic_ms + GRACE_MS

    play(tmp_path, scenario)


def test_an_entry_that_is_gone_has_no_alarm(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        life = Life("ab" * 16)
        Deadlines(rig.ledger, rig.clock, GRACE_MS).watch(life)
        assert (life.alarm, life.stop_reason) == (None, None)

    play(tmp_path, scenario)
