"""The installed daemon in the test machine, as its users and its administrator know it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

from axern.api.client import Client

UNIT = "axernd.service"
SOCKET = "/run/axern/axernd.sock"
AXERN = "/usr/local/bin/axern"
LIMIT_S = 300.0


def ask(path: str) -> Any:
    """Return the daemon's answer to a GET."""
    with Client(SOCKET) as client:
        return client.request("GET", path)


def run_of(run_id: str) -> dict[str, Any]:
    """Return a run's JSON object."""
    found: dict[str, Any] = ask(f"/v2/runs/{run_id}")["run"]
    return found


def reservations() -> list[dict[str, Any]]:
    """Return the ledger's entries as the daemon tells them."""
    found: list[dict[str, Any]] = ask("/v2/reservations")["reservations"]
    return found


def call(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command line to its end."""
    return subprocess.run(
        [AXERN, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def detach(runtime: str, *argv: str) -> str:
    """Start a small sandbox with a memory limit, detached, and return its run's id.

    A node that has just started has not proved everything yet, and refuses until it has.
    """
    held = ("--request-cpu", "10m", "--request-memory", "128MiB", "--limit-memory", "128MiB")
    words = ("run", "--detach", "--runtime-class", runtime, *held, "--", *argv)
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        done = call(*words)
        if done.returncode == 0:
            return done.stdout.strip()
        not_yet = "[busy]" in done.stderr or "[node_selection_error]" in done.stderr
        assert not_yet, done.stderr
        time.sleep(2)
    raise AssertionError(done.stderr)


def systemctl(*words: str) -> str:
    """Run systemctl, which has to succeed, and return what it prints."""
    done = subprocess.run(
        ["systemctl", *words], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"systemctl {words}: {done.returncode}\n{done.stderr}"
    return done.stdout.strip()


def shown(name: str) -> str:
    """Return a property of the unit."""
    return systemctl("show", "--value", "-p", name, UNIT)


def wait_for(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Look until *holds* does; fail after *limit_s*."""
    deadline_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.2)
