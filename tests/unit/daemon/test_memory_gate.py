"""The gate of memory in use: what is behind the wall counts, and is asked for back once."""

from __future__ import annotations

from pathlib import Path

import pytest

from axern.errors import HostError
from ledger.errors import AdmissionRefused
from ledger.testing import observing, small_node, small_proposal
from tests.unit.daemon.rig import Rig, play

MEMORY_BYTES = small_node().effective_allocatable.memory_bytes
WANTED_BYTES = small_proposal(1).resolved.requests.memory_bytes


def fill(rig: Rig, can_give: int) -> None:
    """Let the sandboxes use all but one byte of what the next one wants."""
    rig.observer.memory.in_use = MEMORY_BYTES - WANTED_BYTES + 1
    rig.observer.memory.can_give = can_give
    rig.observer.observe()


def test_what_the_kernel_takes_back_makes_room(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.parts.committer.submit(observing(rig.observer.node))
        fill(rig, can_give=1)
        row = await rig.parts.reserve(small_proposal(1))
        assert row.charged.memory_bytes == WANTED_BYTES
        assert rig.observer.memory.asked == [1]

    play(tmp_path, story)


def test_where_nothing_comes_back_it_is_refused_with_the_numbers(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.parts.committer.submit(observing(rig.observer.node))
        fill(rig, can_give=0)
        with pytest.raises(AdmissionRefused) as caught:
            await rig.parts.reserve(small_proposal(1))
        (short,) = caught.value.refusal.shortfalls
        assert (short.gate, short.short_by) == ("node-memory-use", 1)
        assert caught.value.refusal.code == "node_memory_capacity_exhausted"
        with pytest.raises(AdmissionRefused):
            await rig.parts.reserve(small_proposal(2))
        assert rig.observer.memory.asked == [1], "a crowd must not keep the kernel reclaiming"
        rig.clock.advance(1_000)
        rig.observer.observe()
        with pytest.raises(AdmissionRefused):
            await rig.parts.reserve(small_proposal(3))
        assert rig.observer.memory.asked == [1, 1]

    play(tmp_path, story)


def test_a_kernel_that_takes_nothing_back_is_a_refusal_with_the_numbers_too(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.parts.committer.submit(observing(rig.observer.node))
        fill(rig, can_give=1)
        rig.observer.memory.trouble = [HostError("no", syscall="write")]
        with pytest.raises(AdmissionRefused) as caught:
            await rig.parts.reserve(small_proposal(1))
        assert [short.short_by for short in caught.value.refusal.shortfalls] == [1]

    play(tmp_path, story)


def test_nothing_is_taken_from_anybody_for_what_is_refused_anyway(tmp_path: Path) -> None:
    async def story(rig: Rig) -> None:
        await rig.parts.committer.submit(observing(rig.observer.node))
        fill(rig, can_give=MEMORY_BYTES)
        with pytest.raises(AdmissionRefused):
            await rig.parts.reserve(small_proposal(1, cpu_milli=10**6))
        assert rig.observer.memory.asked == []

    play(tmp_path, story)
