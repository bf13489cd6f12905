"""Leases that end all at once: they share commits, and nothing else of the loop waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.testing import GIB, reserving, small_node, small_proposal
from tests.unit.daemon.rig import Rig, play
from tests.unit.daemon.test_reconcile import HOUR_MS, MINUTE_MS, begin


def test_many_that_end_at_once_share_commits_and_the_host_is_observed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        rig.observer.node = small_node(cpu_milli=100_000, memory_bytes=64 * GIB, slots=1_000)
        reconciler = await begin(rig)
        asked = [small_proposal(number, ttl_ms=MINUTE_MS) for number in range(200)]
        for proposal in asked:
            await rig.parts.committer.submit(reserving(proposal, rig.clock.now))
        signs: list[tuple[int, int]] = []

        async def observed() -> None:
            signs.append((reconciler.ticked_monotonic_ms, rig.clock.now.monotonic_ms))

        monkeypatch.setattr(reconciler, "_observe", observed)
        rig.clock.advance(HOUR_MS)  # so that what was observed is old at each look
        before = rig.parts.ledger.generation
        await reconciler.tick()
        assert rig.parts.ledger.state.entry_count() == 0
        assert rig.parts.ledger.generation - before <= 200 // 10
        assert len(signs) >= 200 // 64
        assert {ticked for ticked, now in signs[1:]} == {rig.clock.now.monotonic_ms}

    play(tmp_path, scenario)
