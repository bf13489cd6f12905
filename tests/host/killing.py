"""Kills a runtime inside `create`, as often as a test likes, at another moment each time."""

from __future__ import annotations

import os
import signal
import threading
import time

from axern.runtime import launch
from axern.runtime.oci import SandboxSpec
from ledger.errors import AxernError
from tests.host.conftest import Lab, wait_until

LONGEST_S = {"runc": 0.03, "runsc": 0.12}
"""How long a `create` takes on an idle host."""


def create_s(lab: Lab, spec: SandboxSpec) -> float:
    """Return how long the runtime's `create` of *spec* takes here and now."""
    wall = lab.layout.sandbox(spec.sandbox_id).wall
    launching = threading.Thread(target=launch.create, args=(spec, lab.layout))
    launching.start()
    wait_until(lambda: _is_creating(wall.pids()))
    begun_s = time.monotonic()
    wait_until(lambda: not _is_creating(wall.pids()))
    took_s = time.monotonic() - begun_s
    launching.join()
    return took_s


def kill_inside_create(
    lab: Lab,
    spec: SandboxSpec,
    part: float,
    patience_s: float = 2.0,
    longest_s: float | None = None,
) -> None:
    """Launch and kill the runtime after *part*, 0 to 1, of its usual time, or of *longest_s*.

    A monitor whose runtime was killed may wait for its orphan, so that there is little patience.
    """
    wall = lab.layout.sandbox(spec.sandbox_id).wall
    launching = threading.Thread(target=_launch_quietly, args=(lab, spec, patience_s))
    launching.start()
    wait_until(lambda: _is_creating(wall.pids()))
    time.sleep(part * (longest_s or LONGEST_S[spec.runtime]))
    for pid in wall.pids():
        if _is_creating((pid,)):
            os.kill(pid, signal.SIGKILL)
    launching.join()


def _launch_quietly(lab: Lab, spec: SandboxSpec, patience_s: float) -> None:
    try:
        launch.create(spec, lab.layout, timeout_s=patience_s)
    except AxernError:
        return


def _is_creating(pids: tuple[int, ...]) -> bool:
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"create" in words:
            return True
    return False
