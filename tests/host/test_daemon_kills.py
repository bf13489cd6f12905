"""SIGKILL of a real daemon under eight clients: the next one shows exactly what was answered."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from axern.api.client import Client
from axern.errors import DaemonUnreachable
from ledger.__main__ import main
from tests.conftest import LONG
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

KILLS = 100 if LONG else 4
CLIENTS = 8
LONGEST_S = 0.5
"""How long a daemon may answer before it is killed."""
STOPPED_S = 2.0
RESERVE, RELEASE = "reserve", "release"
SIZE: dict[str, Any] = {
    "requests": {"cpu_milli": 1, "memory_bytes": 1024**2},
    "ttl_ms": 24 * 3_600_000,  # so that none ends by itself meanwhile
}
KEPT = 20
"""How many leases a caller begins with at most: a namespace holds 1,000."""


@dataclass
class Caller:
    """One client: `kept` are the leases that it holds, `asked` what it has no answer to.

    That is `RESERVE` with a request id, or `RELEASE` with the id of a lease, which may be gone.
    """

    name: str
    kept: set[str] = field(default_factory=set)
    asked: tuple[str, str] | None = None
    turns: int = 0
    wrong: Exception | None = None

    def work(self, socket: str) -> None:
        """Reserve, beat, and release all but each tenth, until the daemon is gone."""
        try:
            with Client(socket) as client:
                while True:
                    self._turn(client)
        except DaemonUnreachable:
            return
        except Exception as err:  # noqa: BLE001 - the test shows it
            self.wrong = err

    def _turn(self, client: Client) -> None:
        body = {**SIZE, "request_id": f"{self.name}-{self.turns}"}
        self.asked = (RESERVE, body["request_id"])
        granted = client.request("POST", "/v2/reservations", body)
        found = granted["reservation"]["id"]
        self.kept.add(found)
        self.asked = None
        path = f"/v2/reservations/{found}"
        client.request("POST", f"{path}/heartbeat", {"token": granted["token"]})
        if self.turns % 10:
            self.asked = (RELEASE, found)
            client.request("DELETE", path)
            self.kept.discard(found)
            self.asked = None
        self.turns += 1


def settle(lab: DaemonLab, callers: list[Caller]) -> None:
    """See that the ledger holds what was answered, and ask again for what was not."""
    there = {entry["id"] for entry in lab.reservations()}
    doubtful = {caller.asked[1] for caller in callers if caller.asked}
    kept = set[str]().union(*(caller.kept for caller in callers))
    assert kept - there <= doubtful, "what was answered is lost"
    for caller in callers:
        caller.kept &= there
        what, name = caller.asked or ("", "")
        if what == RESERVE:
            body = {**SIZE, "request_id": name}
            caller.kept.add(lab.request("POST", "/v2/reservations", body)["reservation"]["id"])
        caller.asked = None
        caller.turns += 1
    kept = set[str]().union(*(caller.kept for caller in callers))
    assert there <= kept, "there is what nobody has asked for, or what was released"
    for caller in callers:
        while len(caller.kept) > KEPT:
            lab.request("DELETE", f"/v2/reservations/{caller.kept.pop()}")


def load(lab: DaemonLab, callers: list[Caller], act: Callable[[], None]) -> None:
    """Let the callers work, *act* once each of them was answered, and wait until they end."""
    before = {caller.name: caller.turns for caller in callers}
    threads = [threading.Thread(target=caller.work, args=(lab.socket,)) for caller in callers]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: all(each.turns > before[each.name] or each.wrong for each in callers))
    finally:
        act()
        for thread in threads:
            thread.join()
    assert [caller.wrong for caller in callers if caller.wrong] == []


@pytest.mark.parametrize(("kills", "stopped_s"), [(KILLS, 0.0), (1, STOPPED_S)])
def test_what_was_answered_outlives_kills_under_load(kills: int, stopped_s: float) -> None:
    chance = random.Random(11)
    callers = [Caller(f"caller-{number}") for number in range(CLIENTS)]
    with daemon_lab() as lab:
        for _ in range(kills):
            daemon = lab.start()
            settle(lab, callers)

            def kill(daemon: subprocess.Popen[bytes] = daemon) -> None:
                if stopped_s:
                    daemon.send_signal(signal.SIGSTOP)
                    time.sleep(stopped_s)
                    daemon.send_signal(signal.SIGCONT)
                time.sleep(LONGEST_S * chance.random())  # a random moment is the point here
                lab.kill(daemon)

            load(lab, callers, kill)
        lab.start()
        settle(lab, callers)
        turns = sum(caller.turns for caller in callers)
        assert turns > 3 * kills * CLIENTS, turns
        assert main(["check", f"{lab.layout.state_dir}/ledger"]) == 0


def test_control_an_answer_that_is_not_kept_is_noticed() -> None:
    callers = [Caller("caller-0", kept={"f" * 32})]
    with daemon_lab() as lab:
        lab.start()
        with pytest.raises(AssertionError, match="lost"):
            settle(lab, callers)
        lab.request("POST", "/v2/reservations", SIZE)
        with pytest.raises(AssertionError, match="nobody has asked for"):
            settle(lab, [Caller("caller-1")])
