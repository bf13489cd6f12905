"""The life that each golden ledger has had: every table, every phase, an archive, an open journal.

It is lived by the program of a schema's time: `python -m tests.unit.ledger.golden_life DIR` in a
checkout of it, with this file. What it wrote is never written again.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ledger import codec, transitions
from ledger.admission import AdmissionPolicy
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.facts import Facts
from ledger.postings import change
from ledger.reservation import EXTERNAL, RUN, CgroupIdentity, Owner, ProcessIdentity
from ledger.resources import OptionalResources, Resources
from ledger.rights import ROOT
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import Change, Put, State
from ledger.store import Ledger
from ledger.tables import CLAIMS, NAMESPACES, SERVICES, TICKETS, Claim, Namespace, Service, Ticket
from ledger.transitions import Proposal

GIB = 1024**3
Operation = Callable[[State], Change]
START = Now("6f1e0000-boot", 1_000_000, 1_500_000, 1_700_000_000_000)
LEASE, QUEUED, STARTING, RUNNING, STOPPING, RETIRING, GONE, WAITING = (
    f"{n:032x}" for n in range(1, 9)
)
INNER = f"{9:032x}"


def _proposal(key: str, namespace: str, *, lease: bool = False, gpu: bool = False) -> Proposal:
    gpu_bytes = GIB if gpu else 0
    requests = Resources(250, GIB // 4, GIB // 2, gpu_bytes, 1)
    return Proposal(
        id=key,
        namespace=namespace,
        owner=Owner(EXTERNAL if lease else RUN, 1000, "née Ω"),
        spec=ResourceSpec(OptionalResources(250, GIB // 4)),
        resolved=ResolvedSpec(requests, OptionalResources(None, GIB)),
        digest=key * 2,
        enforced=not lease,
        runtime=None if lease else "runc",
        requires=("runtime/runc",),
        request_id=f"request-{key[-1]}",
        owner_process=ProcessIdentity(START.boot_id, 17, 99) if lease else None,
        ttl_ms=600_000 if lease else None,
        max_lifetime_ms=86_400_000 if lease else None,
        token_sha256="a" * 64 if lease else None,
    )


class _Life:
    """A ledger and its clock, which moves a second a commit."""

    def __init__(self, path: Path) -> None:
        self.now = START
        self.ledger = Ledger.open(path, START, node_id="golden-node", segment_bytes=8192)

    def do(self, *operations: Operation) -> None:
        now = self.now
        self.now = replace(
            now,
            monotonic_ms=now.monotonic_ms + 1000,
            boottime_ms=now.boottime_ms + 1000,
            wall_ms=now.wall_ms + 1000,
        )
        batch = self.ledger.stage(operations, now)
        self.ledger.flush(batch)
        self.ledger.publish(batch)
        assert not [outcome for outcome in batch.outcomes if isinstance(outcome, Exception)]

    def put(self, table: str, key: str, row: object) -> None:
        self.do(lambda view: change(view, table, (Put(table, key, row),)))  # type: ignore[arg-type]

    def reserve(self, *proposals: Proposal) -> None:
        now = self.now
        facts = Facts(now.wall_ms % 1000 + 7, now.monotonic_ms, ("runtime/runc",), 90 * GIB, 0, GIB)
        operations: list[Operation] = [
            lambda view, wanted=wanted: transitions.reserve(  # type: ignore[misc]
                view, wanted, facts, now, AdmissionPolicy()
            )
            for wanted in proposals
        ]
        self.do(*operations)


def live(path: Path) -> None:
    """Live that life in *path*, and leave the ledger as a killed daemon leaves it."""
    life = _Life(path)
    host = Resources(8000, 16 * GIB, 100 * GIB, 0, 64)
    node = node_of(host, Resources(0, GIB, GIB, 0, 0), "1.5", (("GPU-7f", 16 * GIB),))
    life.do(lambda view: transitions.observe_node(view, node))
    quota = OptionalResources(4000, None, None, 8 * GIB, 20)
    life.put(NAMESPACES, "team-a", Namespace("team-a", quota, START.wall_ms))
    claim = Claim("claim-1", "team-a", Resources(2000, 4 * GIB, 0, 0, 4), Resources(), False, 5)
    life.put(CLAIMS, "claim-1", claim)
    life.put(SERVICES, "web", Service("web", "team-a", 3, 2, START.wall_ms))
    held = Resources(500, GIB, 0, 0, 1)
    life.put(TICKETS, "t-1", Ticket("t-1", "default", 1000, held, held, 1, 6, None, 9_999_999))
    life.reserve(_proposal(LEASE, "default", lease=True), _proposal(GONE, "default"))
    life.ledger.checkpoint()
    life.reserve(*(_proposal(key, "team-a") for key in (QUEUED, STARTING, RUNNING)))
    life.reserve(_proposal(STOPPING, "default", gpu=True), _proposal(RETIRING, "team-a"))
    if codec.SCHEMA >= 6:
        small = ResolvedSpec(Resources(100, GIB // 8), OptionalResources())
        inner = replace(_proposal(INNER, "default", lease=True), resolved=small, parent_id=LEASE)
        life.reserve(inner)
    monitor, group = ProcessIdentity(START.boot_id, 42, 7), CgroupIdentity(START.boot_id, "/a", 3)
    for key in (STARTING, RUNNING, STOPPING, RETIRING, GONE):
        life.do(lambda view, key=key: transitions.start(view, key))  # type: ignore[misc]
    for key in (RUNNING, STOPPING, RETIRING):
        life.do(
            lambda view, key=key: transitions.run(  # type: ignore[misc]
                view, key, monitor, group, START.wall_ms, 5_000_000
            )
        )
    life.ledger.checkpoint()
    life.do(lambda view: transitions.stop(view, STOPPING, "asked", "uid:1000"))
    for key in (RETIRING, GONE):
        life.do(lambda view, key=key: transitions.retire(view, key, "exit", GIB))  # type: ignore[misc]
    life.do(lambda view: transitions.release(view, GONE, "nothing is left", "uid:0"))
    life.do(lambda view: transitions.renew(view, LEASE, 900_000, life.now))
    life.do(lambda view: transitions.persist_beats(view, {LEASE: 1_020_000}))
    with contextlib.suppress(ImportError):  # since schema 2
        standing = importlib.import_module("ledger.standing")
        wish = standing.Wish(ROOT, "new disks")
        life.do(lambda view: standing.drain(view, wish, life.now))
    with contextlib.suppress(ImportError):  # since schema 3
        namespaces = importlib.import_module("ledger.namespaces")
        edits = {"minimum": {"cpu_milli": 100}, "ratios": {"memory_bytes": "1.5"}}
        life.do(lambda view: namespaces.update(view, "team-a", edits, "uid:0"))
    with contextlib.suppress(ImportError):  # since schema 4
        tickets = importlib.import_module("ledger.tickets")
        host = importlib.import_module("ledger.claims").Host(None, life.now, AdmissionPolicy())
        wish = tickets.Wish(60_000, 7)
        large = replace(_proposal(WAITING, "team-a", lease=True), request_id="request-8")
        life.do(lambda view: tickets.enter(view, large, wish, host, "it is full"))
        life.do(lambda view: tickets.pause(view, "uid:0", life.now))
    with contextlib.suppress(AttributeError):  # since schema 5
        networks = importlib.import_module("ledger.tables")
        network = networks.Network("bridge", (("tcp", 8080, 80),))
        life.put(networks.NETWORKS, RUNNING, network)
    life.ledger.close(checkpoint=False)


if __name__ == "__main__":
    live(Path(sys.argv[1]))
    sys.stdout.write(f"schema {codec.SCHEMA}\n")
