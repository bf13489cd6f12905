"""A host that can't be read: admission waits for it, and nothing else does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from axern.errors import HostError
from tests.unit.daemon.rig import Rig, play
from tests.unit.daemon.test_reconcile import (
    MINUTE_MS,
    SMALL,
    STEP_MS,
    begin,
    lease,
    liveness,
    pass_time,
)


@pytest.mark.parametrize("error", [HostError("no", syscall="statvfs"), OSError(24, "too many")])
def test_a_host_that_cannot_be_read_is_tried_again(tmp_path: Path, error: Exception) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        rig.observer.trouble = [error, error]
        running = asyncio.create_task(reconciler.loop())
        again = asyncio.create_task(rig.observer.second.wait())
        await asyncio.wait({running, again}, return_when=asyncio.FIRST_COMPLETED)
        rig.parts.closing.set()
        await running
        assert rig.observer.trouble == []

    play(tmp_path, scenario, facts_every="1ms")


def test_a_host_that_cannot_be_read_keeps_no_lease_beyond_its_deadline(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        reconciler = await begin(rig)
        found = (await lease(rig, ttl_ms=MINUTE_MS))["reservation"]["id"]
        rig.observer.trouble = [HostError("no", syscall="quotactl_fd")] * 100
        await pass_time(rig, reconciler, MINUTE_MS + STEP_MS)
        assert await liveness(rig, found) is None
        status, answer = await rig.ask("POST", "/v2/reservations", {"requests": SMALL})
        assert (status, answer["error"]["code"]) == (422, "node_selection_error")

    play(tmp_path, scenario)
