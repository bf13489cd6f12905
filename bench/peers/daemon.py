"""The product as a peer: a real daemon on a temporary ledger, asked through its public API.

Every lease takes one of the node's 4,095 sandbox slots. So that there can be more reservations,
what a ledger is filled with is written by the ledger's own code while no daemon runs, and takes no
slot; all that is measured takes one.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from axern.api.client import Client
from axern.daemon.observer import read_now
from axern.daemon.parts import sha256_of
from bench.peers import service
from bench.peers.load import (
    BATCH,
    CPU_MILLI,
    ID,
    MEMORY_BYTES,
    STORAGE_BYTES,
    Load,
    Target,
    finish,
)
from ledger import reader, transitions
from ledger.admission import AdmissionPolicy
from ledger.clock import Now
from ledger.facts import Facts
from ledger.reservation import EXTERNAL, Owner
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.transitions import Proposal
from tests.host.daemon import DaemonLab, daemon_lab

DAY_MS = 86_400_000
TOKEN = "bench"  # noqa: S105 - of leases that hold nothing
_ENTRY_CAP = 10**6
_GROUP = 500
_KEPT = 7
"""Reservations that each client keeps in the run that is killed, so that there is much to lose."""
_KEEPING_LIMIT_S = 120

REQUEST = {
    "requests": {
        "cpu_milli": CPU_MILLI,
        "memory_bytes": MEMORY_BYTES,
        "ephemeral_storage_bytes": STORAGE_BYTES,
    },
    "ttl_ms": 3_600_000,
}
_FILLED = ResolvedSpec(Resources(CPU_MILLI, MEMORY_BYTES, STORAGE_BYTES, 0, 0), OptionalResources())


class DaemonPeer:
    """A daemon and the ledger below it; `fill` and `restart` end it and start another."""

    def __init__(self, lab: DaemonLab, load: Load, environment: Mapping[str, str]) -> None:
        self.lab = lab
        self.filled: set[str] = set()
        self._load = load
        self._environment = dict(environment)
        self._serial = 0
        self.start()
        self.target, self.batches = targets(lab.socket)

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self.process.pid

    @property
    def ledger_dir(self) -> str:
        """The ledger's folder."""
        return f"{self.lab.layout.state_dir}/ledger"

    def start(self) -> float:
        """Start a daemon; return how long it took till it answered, in seconds."""
        began_s = time.perf_counter()
        self.process = self.lab.spawn(environment=self._environment)
        service.wait_for(self.process, self.lab.socket, f"{self.lab.base}/axernd.log")
        self.node()
        return time.perf_counter() - began_s

    def stop(self) -> None:
        """Stop it in good order."""
        assert self.lab.stop(self.process) == 0, self.lab.log()[-2000:]

    def node(self) -> dict[str, Any]:
        """Return what the daemon says of its node."""
        found: dict[str, Any] = self.lab.request("GET", "/v2/node")["node"]
        return found

    def turn(self, clients: int, seconds: float) -> Mapping[str, float]:
        """Let *clients* reserve and release; nothing of theirs may be left."""
        return self._turn(self.target, clients, seconds)

    def batch_turn(self, clients: int, seconds: float) -> Mapping[str, float]:
        """Let *clients* reserve and release 64 at a time."""
        return self._turn(self.batches, clients, seconds)

    def _turn(self, target: Target, clients: int, seconds: float) -> Mapping[str, float]:
        figures = self._load.turn(target, clients, seconds)
        entries = self.node()["entries"]
        assert entries == len(self.filled), f"{entries} entries, and {len(self.filled)} are ours"
        return figures

    def fill(self, count: int, ttl_ms: int = DAY_MS) -> None:
        """Add *count* leases that stay for *ttl_ms*, all of them with the token `TOKEN`."""
        self.stop()
        ids = [f"{number:032x}" for number in range(self._serial, self._serial + count)]
        self._serial += count
        now = read_now()  # for all alike, so that they end at the same moment
        self._write(partial(_reserve, key=key, ttl_ms=ttl_ms, now=now) for key in ids)
        self.filled.update(ids)
        self.start()

    def empty(self) -> None:
        """Release all that it was filled with, and leave the daemon ended."""
        self.stop()
        left = [row.id for row in reader.read(self.ledger_dir).state.reservations()]
        self._write(partial(transitions.release, reservation_id=key, evidence="") for key in left)
        self.filled.clear()

    def _write(self, operations: Iterable[Callable[[State], Change]]) -> None:
        waiting = list(operations)
        run_dir = self.lab.layout.run_dir
        with Ledger.open(
            self.ledger_dir, read_now(), holder="bench", remember_in=run_dir
        ) as ledger:
            for start in range(0, len(waiting), _GROUP):
                if ledger.wants_checkpoint:
                    ledger.checkpoint()
                batch = ledger.stage(waiting[start : start + _GROUP], read_now())
                ledger.flush(batch)
                ledger.publish(batch)

    def checkpoint(self) -> float:
        """Write the whole ledger once, with no daemon about, and return the seconds it took."""
        self.stop()
        run_dir = self.lab.layout.run_dir
        with Ledger.open(
            self.ledger_dir, read_now(), holder="bench", remember_in=run_dir
        ) as ledger:
            began_s = time.perf_counter()
            ledger.checkpoint()
            took_s = time.perf_counter() - began_s
        self.start()
        return took_s

    def kill_under_load(self, clients: int, after_s: float) -> dict[str, int]:
        """Kill the daemon under load, start another, and compare with what was acknowledged.

        Args:
            clients: How many reserve and release.
            after_s: How long they go on once they keep half of what they will, in seconds.
        Returns:
            How many reservations were acknowledged and kept, and how many requests had no answer.
        """
        state = f"{self.lab.base}/acknowledged"
        process = self._load.begin(self.target, clients, 600, hold=_KEPT, state=state)
        deadline_s = time.monotonic() + _KEEPING_LIMIT_S
        while self.node()["entries"] - len(self.filled) < clients * _KEPT // 2:
            assert time.monotonic() < deadline_s, "the clients get nothing to keep"
            time.sleep(0.1)
        time.sleep(after_s)
        assert process.poll() is None, process.communicate()
        self.lab.kill(self.process)
        finish(process)
        told: dict[str, set[str]] = {"held": set(), "asked": set(), "leaving": set()}
        for line in Path(state).read_text(encoding="ascii").splitlines():
            word, _, key = line.partition(" ")
            told[word].add(key)
        self.start()
        rows = {row.id: row.owner.name for row in reader.read(self.ledger_dir).state.reservations()}
        assert self.node()["entries"] == len(rows)
        wrong = contradictions(told, rows, self.filled)
        assert not wrong, wrong
        self._release(rows.keys() - self.filled)
        return {"acknowledged": len(told["held"]), "unanswered": clients}

    def _release(self, keys: Iterable[str]) -> None:
        with Client(self.lab.socket) as client:
            for key in keys:
                client.request("DELETE", f"/v2/reservations/{key}")


def contradictions(
    told: Mapping[str, AbstractSet[str]], names: Mapping[str, str], filled: AbstractSet[str]
) -> list[str]:
    """Name what a ledger has lost, and what it has that nobody was promised or asked for.

    *told* is what the load generator wrote: ids that are `held`, ids that were `leaving` and names
    that were `asked` for when the daemon died. *names* are those of all entries, by id.
    """
    kept = told["held"] | filled
    lost = [f"{key} is lost" for key in kept - names.keys()]
    more = names.keys() - kept - told["leaving"]
    return lost + [f"{key} was not asked for" for key in more if names[key] not in told["asked"]]


def targets(socket: str) -> tuple[Target, Target]:
    """Return the targets for single reservations and for batches of 64."""
    name = ID.decode()
    reserve = {"name": name, **REQUEST}
    single = Target(
        "http",
        socket,
        request("POST", "/v2/reservations", reserve),
        request("DELETE", f"/v2/reservations/{name}"),
    )
    batch = Target(
        "http",
        socket,
        request("POST", "/v2/batch", _batch({"reserve": reserve})),
        request("POST", "/v2/batch", _batch({"release": {"id": name}})),
    )
    return single, batch


def request(method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
    """Return a request of HTTP/1.1 as it goes over the socket."""
    head = f"{method} {path} HTTP/1.1\r\nHost: axern\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    content = json.dumps(body, separators=(",", ":"))
    kind = "Content-Type: application/json\r\n"
    return f"{head}{kind}Content-Length: {len(content)}\r\n\r\n{content}".encode()


def _batch(operation: Mapping[str, Any]) -> dict[str, Any]:
    return {"mode": "all", "operations": [operation] * BATCH}


def _reserve(view: State, *, key: str, ttl_ms: int, now: Now) -> Change:
    proposal = Proposal(
        id=key,
        namespace="default",
        owner=Owner(EXTERNAL, os.geteuid(), ""),
        spec=ResourceSpec(),
        resolved=_FILLED,
        digest="0" * 64,
        enforced=False,
        ttl_ms=ttl_ms,
        max_lifetime_ms=DAY_MS,
        token_sha256=sha256_of(TOKEN),
    )
    policy = AdmissionPolicy(_ENTRY_CAP, _ENTRY_CAP, facts_stale_after_ms=DAY_MS)
    return transitions.reserve(view, proposal, Facts(0, now.monotonic_ms), now, policy)


@contextmanager
def peer(
    folder: str, load: Load, environment: Mapping[str, str] | None = None, **keys: Any
) -> Iterator[DaemonPeer]:
    """Run a daemon whose state is in *folder*; afterwards prove that nothing is left of it.

    *keys* are added to its configuration.
    """
    settings = {
        "state_dir": f"{folder}/state",
        "cpu_overcommit_ratio": "1000000",
        "max_sandboxes": 4095,
        "entry_cap": _ENTRY_CAP,
        "namespace_entry_cap": _ENTRY_CAP,
        "lease_ttl": "24h",
        "stale_after": "24h",
        "legacy_window": "24h",
        "tick": "10s",
        **keys,
    }
    with daemon_lab(**settings) as lab:
        made = DaemonPeer(lab, load, environment or {})
        try:
            yield made
        finally:
            if made.process.poll() is None:
                made.empty()
