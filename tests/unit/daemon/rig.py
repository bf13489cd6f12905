"""The daemon's parts around a real ledger and a clock by hand, without a host beneath them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from axern.api.messages import Later, Peer, Request, Response
from axern.daemon import parts as parts_module
from axern.daemon.condition import Condition, of_writer
from axern.daemon.handlers import Handlers, error_response
from axern.daemon.log_keeper import LogKeeper
from axern.daemon.memory_gate import MemoryGate
from axern.daemon.run_index import RunIndex
from axern.daemon.runs import RunStore
from axern.host.capabilities import (
    ADMISSION_ONLY,
    AVAILABLE,
    PROBE_FAILED,
    Capability,
    Snapshot,
)
from axern.host.cgroup import Hierarchies
from axern.runtime.layout import Layout
from axern.settings import Settings
from ledger import invariants
from ledger.committer import Committer
from ledger.errors import AxernError
from ledger.facts import Facts
from ledger.heartbeats import Heartbeats
from ledger.reservation import RUN, Owner, Reservation
from ledger.store import Ledger
from ledger.tables import Node
from ledger.testing import ManualClock, small_node, small_proposal

ROOT = Peer(1, 0, 0)
USER = Peer(2, 1000, 1000)
OTHER = Peer(3, 1001, 1001)


@dataclass(slots=True)
class FakeLife:
    """What the loop sees of a sandbox's life."""

    reservation_id: str
    resting: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    evidence: str | None = None
    stop_reason: str | None = None
    ending: bool = False


@dataclass(slots=True)
class FakeLives:
    """Notes what it is asked for."""

    lives: dict[str, FakeLife] = field(default_factory=dict)
    stopped: list[tuple[str, str, str, int]] = field(default_factory=list)

    def begin(self, reservation_id: str) -> FakeLife:
        return self.lives.setdefault(reservation_id, FakeLife(reservation_id))

    def find(self, reservation_id: str) -> FakeLife | None:
        return self.lives.get(reservation_id)

    def all(self) -> tuple[FakeLife, ...]:
        return tuple(self.lives.values())

    def stop(self, reservation_id: str, reason: str, by: str, grace_ms: int) -> None:
        self.stopped.append((reservation_id, reason, by, grace_ms))


class FakeMemory(MemoryGate):
    """Decides as the real one, and takes back at once what the test lets it."""

    def __init__(self) -> None:
        self.in_use: int | None = None
        self.can_give = 0
        self.asked: list[int] = []
        self.trouble: list[Exception] = []
        super().__init__(None, 1_000)

    def reclaim(self, amount_bytes: int) -> None:
        self.asked.append(amount_bytes)
        if self.trouble:
            raise self.trouble.pop()
        self.in_use = (self.in_use or 0) - min(amount_bytes, self.can_give)


@dataclass(slots=True)
class FakeObserver:
    """Says of the host what the test wants."""

    clock: ManualClock
    node: Node = field(default_factory=small_node)
    facts: Facts | None = None
    readings: int = 0
    second: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: list[Exception] = field(default_factory=list)
    capabilities: tuple[str, ...] = ("runtime/runc",)
    memory: FakeMemory = field(default_factory=FakeMemory)

    def observe(self, rows: Iterable[Reservation] = ()) -> tuple[Facts, Node]:
        if self.trouble:
            raise self.trouble.pop()
        self.readings += 1
        if self.readings > 1:
            self.second.set()
        self.facts = Facts(
            self.readings,
            self.clock.now.monotonic_ms,
            self.capabilities,
            sandboxes_memory_bytes=self.memory.in_use,
        )
        return self.facts, self.node


def capability(key: str, message: str, *, present: bool) -> Capability:
    """Return what is known of one capability."""
    code = AVAILABLE if present else PROBE_FAILED
    return Capability(key, key, ADMISSION_ONLY, present, code, message, None)


@dataclass(slots=True)
class FakeCapabilities:
    """What is known of the host is what the test says; `lost` are keys that fell, by policy."""

    items: tuple[Capability, ...] = (
        capability("runtime/runc", "/usr/bin/runc 1.1.5", present=True),
        capability("limit/memory/runc", "not here", present=False),
    )
    lost: dict[str, frozenset[str]] = field(default_factory=dict)
    sweeps: int = 0

    def snapshot(self) -> Snapshot:
        return Snapshot(1, self.items)

    def fallen(self, loss: str) -> frozenset[str]:
        return self.lost.get(loss, frozenset())

    async def settle(self, keys: tuple[str, ...]) -> Snapshot:
        assert keys is not None
        return self.snapshot()

    async def sweep(self, heed: Callable[[], None] | None = None) -> None:
        self.sweeps += 1
        if heed is not None:
            heed()


async def answered(handlers: Handlers, request: Request) -> Response:
    """Return the answer to *request* as the server gets it, by the short way where that goes."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    try:
        if handlers.short_way.take(request, reply.set_result):
            assert not reply.done()  # the server is not ready for it
            answer = await reply
            response = answer if isinstance(answer, Response) else await answer
        else:
            response = await handlers(request)
            if isinstance(response, Later):
                response = await response.answer
    except AxernError as error:
        response = error_response(error, request.id)
    assert isinstance(response, Response)
    return response


@dataclass(slots=True)
class Rig:
    """The parts, and requests to them."""

    parts: parts_module.Parts
    clock: ManualClock
    lives: FakeLives
    observer: FakeObserver
    capabilities: FakeCapabilities
    ledger: Ledger

    async def ask(
        self,
        method: str,
        target: str,
        body: dict[str, Any] | None = None,
        peer: Peer = ROOT,
        **headers: str,
    ) -> tuple[int, dict[str, Any]]:
        """Send one request through the routes; an error comes back as its document."""
        path, _, query = target.partition("?")
        pairs = dict(part.split("=", 1) for part in query.split("&") if part)
        data = b"" if body is None else json.dumps(body).encode()
        request = Request("request", method, path, pairs, headers, data, peer)
        response = await answered(Handlers(self.parts), request)
        return response.status, json.loads(response.body)

    async def charge_run(self, number: int, ttl_ms: int | None = None) -> str:
        """Reserve for a sandbox without launching it; return its id."""
        proposal = dataclasses.replace(
            small_proposal(number, ttl_ms=ttl_ms),
            owner=Owner(RUN, USER.uid),
            runtime="runc",
            max_lifetime_ms=ttl_ms,
        )
        await self.parts.reserve(proposal)
        return proposal.id

    async def commit(self, operation: Callable[..., object], **arguments: Any) -> object:
        """Commit one transition."""
        return await self.parts.committer.submit(cast("Any", partial(operation, **arguments)))


@contextlib.asynccontextmanager
async def rig(folder: Path, **keys: Any) -> AsyncIterator[Rig]:
    """Open a ledger in *folder*; afterwards its invariants must hold."""
    clock = ManualClock()
    settings = Settings.model_validate(
        {
            "cgroup_enforcement": "disabled_dev",
            "state_dir": str(folder),
            "run_dir": str(folder / "run"),
            **keys,
        }
    )
    layout = Layout(
        state_dir=str(folder),
        run_dir=str(folder / "run"),
        filestore=str(folder / "filestore"),
        templates=str(folder / "templates"),
        cgroup_root="axern",
        hierarchies=Hierarchies("/nowhere", ()),
    )
    for path in (layout.runs, layout.templates, layout.exits):
        os.makedirs(path, mode=0o700, exist_ok=True)
    ledger = Ledger.open(folder / "ledger", clock.now, node_id="node-1")
    committer = Committer(ledger, clock)
    lives, observer = FakeLives(), FakeObserver(clock)
    capabilities = FakeCapabilities()
    runs = RunStore(layout.runs)
    keeper = LogKeeper(cast("Any", None), settings.log_max_bytes)
    parts = parts_module.Parts(
        settings=settings,
        layout=layout,
        ledger=ledger,
        committer=committer,
        runs=runs,
        run_index=RunIndex(runs),
        lives=cast("Any", lives),
        observer=cast("Any", observer),
        capabilities=cast("Any", capabilities),
        heartbeats=Heartbeats({}),
        watcher=cast("Any", None),
        keeper=keeper,
        clock=clock,
        node_id=ledger.node_id,
        condition=Condition(partial(of_writer, ledger, committer, settings.ledger_dir), clock),
    )
    try:
        yield Rig(parts, clock, lives, observer, capabilities, ledger)
        assert invariants.check(ledger.state.all_rows(), ledger.state.balances()) == []
    finally:
        await keeper.close()
        await committer.close()
        ledger.close()


def with_capacity(node: Node, **amounts: int) -> Node:
    """Return *node* with other capacities."""
    return dataclasses.replace(
        node,
        capacity=dataclasses.replace(node.capacity, **amounts),
        effective_allocatable=dataclasses.replace(node.effective_allocatable, **amounts),
    )


def play(folder: Path, scenario: Callable[[Rig], Coroutine[Any, Any, None]], **keys: Any) -> None:
    """Run *scenario* on a rig in *folder*."""

    async def scene() -> None:
        async with rig(folder, **keys) as made:
            await scenario(made)

    asyncio.run(scene())


def journal_text(folder: Path) -> str:
    """Return all that the ledger in *folder* has written."""
    paths = sorted((folder / "ledger").rglob("journal-*"))
    return "".join(path.read_text(encoding="utf-8").rstrip("\x00") for path in paths)
