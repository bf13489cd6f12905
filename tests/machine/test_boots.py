"""After a reboot and a power cut: no entry of the old boot is left, each gone with evidence.

A reboot lets the daemon end them, so that their burial was in the old boot; after a power cut it is
in this one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.machine.service import ask, reservations, run_of, shown, wait_for

pytestmark = pytest.mark.timeout(600)
NOTE = Path("/var/lib/axern-vm/left.json")
READY_LIMIT_S = 30.0


def check_boot(*, in_order: bool) -> None:
    left = json.loads(NOTE.read_text(encoding="utf-8"))
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert boot_id != left["boot_id"]
    wait_for(lambda: shown("ActiveState") == "active")
    wait_for(lambda: not reservations())
    assert ask("/v2/node")["node"]["boot_id"] == boot_id
    for run_id in left["runs"]:
        run = run_of(run_id)
        assert run["status"] == "failed", run
        assert (run["diagnostic_code"] == "host-shutdown") is in_order, run
        history = ask(f"/v2/reservations/{run_id}?history=true")
        buried = left["boot_id"] if in_order else boot_id
        assert f"boot {buried}" in json.dumps(history), history
    started_us = int(shown("ExecMainStartTimestampMonotonic"))
    ready_us = int(shown("ActiveEnterTimestampMonotonic"))
    if LONG:  # the machine has the host to itself; else it shares with whatever runs beside it
        assert (ready_us - started_us) / 1_000_000 <= READY_LIMIT_S
    else:
        assert int(shown("CPUUsageNSec")) / 1_000_000_000 <= READY_LIMIT_S


@pytest.mark.machine(boot=1)
def test_after_a_reboot() -> None:
    check_boot(in_order=True)


@pytest.mark.machine(boot=2)
def test_after_a_power_cut() -> None:
    check_boot(in_order=False)
