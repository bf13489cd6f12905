"""Who follows a real daemon is told each event once, though it is killed again and again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from axern.api.client import ApiError, Client
from axern.errors import DaemonUnreachable
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

Json = dict[str, Any]

KILLS = 3
GRANTS = 200
"""Between two kills."""
WORKERS = 3
LEASE = {"requests": {"cpu_milli": 1, "memory_bytes": 1024**2}}
TOO_MUCH = {"requests": {"cpu_milli": 1, "memory_bytes": 2**50}}


class Load:
    """Reserves, is refused and releases as fast as it can; `granted` is what was acknowledged."""

    def __init__(self, lab: DaemonLab) -> None:
        self.granted: list[str] = []
        self.released: list[str] = []
        self.over = threading.Event()
        self._lab = lab
        self._threads = [threading.Thread(target=self._work) for _ in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def has_granted(self, count: int) -> bool:
        return len(self.granted) >= count

    def end(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while not self.over.is_set():
            try:
                with Client(self._lab.socket) as client:
                    self._go_on(client)
            except (ApiError, DaemonUnreachable):
                self.over.wait(0.02)

    def _go_on(self, client: Client) -> None:
        while not self.over.is_set():
            made = client.request("POST", "/v2/reservations", LEASE)["reservation"]["id"]
            self.granted.append(made)
            with pytest.raises(ApiError, match="node memory capacity"):
                client.request("POST", "/v2/reservations", TOO_MUCH)
            client.request("DELETE", f"/v2/reservations/{made}")
            self.released.append(made)


@contextmanager
def following(lab: DaemonLab) -> Iterator[list[Json]]:
    """Follow from the first event on; give what was printed so far."""
    seen: list[Json] = []
    process = lab.popen("events", "-f", "--since", "0", "-o", "ndjson")

    def collect() -> None:
        assert process.stdout is not None
        seen.extend(map(json.loads, process.stdout))

    collecting = threading.Thread(target=collect)
    collecting.start()
    try:
        yield seen
    finally:
        process.terminate()
        collecting.join()
        with process:
            process.wait()


def every(lab: DaemonLab) -> list[Json]:
    done = lab.axern("events", "--since", "0", "-o", "ndjson")
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def killed_under_load(lab: DaemonLab, sandbox: str) -> Load:
    """Kill the daemon again and again, and return what its clients have heard of it."""
    load = Load(lab)
    try:
        for number in range(1, KILLS + 1):
            wait_until(partial(load.has_granted, number * GRANTS), 120)
            lab.kill(lab.processes[-1])
            lab.start()
    finally:
        load.end()
    lab.request("DELETE", f"/v2/runs/{sandbox}?grace_ms=0")
    lab.wait_status(sandbox, "cancelled")
    return load


def test_a_follower_over_kills_under_load() -> None:
    with daemon_lab() as lab:
        lab.start()
        sandbox = lab.detach("runc", "sleep", "600")
        lab.wait_status(sandbox, "running")
        with following(lab) as seen:
            load = killed_under_load(lab, sandbox)
            told = every(lab)
            wait_until(lambda: any(event["sequence"] == told[-1]["sequence"] for event in seen), 60)
        numbers = [event["sequence"] for event in told]
        assert [event["sequence"] for event in seen][: len(numbers)] == numbers
        assert len(set(numbers)) == len(numbers)
        _compare(told, load, sandbox)
        shown = lab.axern("events", "--kind", "grant", "--since", numbers[-40])
        assert shown.returncode == 0, shown.stderr
        gone = lab.axern("events", "--since", "999999999.1", "-o", "json")
        assert (gone.returncode, json.loads(gone.stdout)["error"]["code"]) == (5, "state_conflict")


def _compare(told: list[Json], load: Load, sandbox: str) -> None:
    """Compare the events with what clients were answered."""
    grants = [event["id"] for event in told if event["kind"] == "grant"]
    assert len(set(grants)) == len(grants)
    assert set(load.granted) <= set(grants)
    releases = [event["id"] for event in told if event["kind"] == "release"]
    assert len(set(releases)) == len(releases)
    assert {*load.released, sandbox} <= set(releases)
    adopted = [event for event in told if event["kind"] == "adoption"]
    assert [event["detail"]["ids"] for event in adopted] == [[sandbox]] * KILLS
    refusals = sum(event["count"] for event in told if event["kind"] == "refusal")
    assert 0 < refusals <= len(load.granted) + WORKERS * KILLS
    assert [event["operation"] for event in told].count("daemon-started") == KILLS + 1
