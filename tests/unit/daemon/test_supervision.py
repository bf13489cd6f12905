"""Signs of life are given while rounds end, and what systemd shows is how the daemon is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from axern.daemon.supervision import Supervision
from axern.host.systemd import Notifier


class Heard(Notifier):
    def __init__(self) -> None:
        super().__init__(None)
        self.lines: list[str] = []

    def tell(self, *lines: str) -> bool:
        self.lines += lines
        return True


class Rig:
    """A supervision over a daemon that has nothing but a clock."""

    def __init__(self, watchdog_s: float | None) -> None:
        self.now_ms = 0
        self.ledger: Any = SimpleNamespace(
            state=SimpleNamespace(entry_count=lambda: 3, generation=9, standing=lambda: None),
        )
        self.closing = asyncio.Event()
        self.reconciler: Any = SimpleNamespace(ticked_monotonic_ms=0)
        self.heard = Heard()
        self.trouble = ""
        parts = SimpleNamespace(
            ledger=self.ledger,
            condition=SimpleNamespace(words=lambda: self.trouble),
            closing=self.closing,
            clock=lambda: SimpleNamespace(monotonic_ms=self.now_ms),
        )
        self.supervision = Supervision(
            self.heard, watchdog_s, cast("Any", parts), cast("Any", self.reconciler)
        )

    async def serve(self, seconds: float) -> list[str]:
        async with self.supervision.serving():
            await asyncio.sleep(seconds)
        return self.heard.lines


def test_a_daemon_that_does_its_rounds_gives_signs_of_life() -> None:
    lines = asyncio.run(Rig(0.03).serve(0.3))
    assert lines[:2] == ["READY=1", "STATUS=3 reservations at generation 9"]
    assert lines.count("WATCHDOG=1") >= 2


def test_one_that_stands_still_gives_none() -> None:
    rig = Rig(0.03)
    rig.now_ms = 30
    assert "WATCHDOG=1" not in asyncio.run(rig.serve(0.3))


@pytest.mark.parametrize(
    ("silent_ms", "closing", "alive"),
    [(0, False, True), (59_999, False, True), (60_000, False, False), (90_000, True, True)],
)
def test_what_counts_as_alive(silent_ms: int, *, closing: bool, alive: bool) -> None:
    rig = Rig(60.0)
    rig.now_ms = silent_ms
    if closing:
        rig.closing.set()
    assert rig.supervision.is_alive() is alive


def test_a_ledger_that_refuses_is_told_and_is_no_death() -> None:
    rig = Rig(0.03)
    rig.trouble = "degraded, accepts nothing: its disk"
    lines = asyncio.run(rig.serve(0.3))
    assert "WATCHDOG=1" in lines
    assert all("degraded" in line for line in lines if line.startswith("STATUS="))


def test_the_end_is_told() -> None:
    rig = Rig(None)
    rig.supervision.stop("sandboxes go on")
    assert rig.heard.lines == ["STOPPING=1", "STATUS=stopping; sandboxes go on"]
