"""All that take part: each is started in a folder of its own, filled, and given its turns."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from bench.peers import daemon, etcd, postgres, redis
from bench.peers.daemon import DaemonPeer
from bench.peers.load import BATCH, Load
from bench.peers.sqlite import SqlitePeer
from bench.peers.tools import Missing

PEERS = ("sqlite", "redis", "postgres", "etcd")
DAEMON = "axern"

Turn = Callable[[int, float], Mapping[str, float]]
"""Clients and seconds; returns the figures of one turn."""


@dataclass(slots=True)
class Field:
    """The daemon, and by name who can take a turn, alone or with batches, and who can be filled."""

    daemon: DaemonPeer
    turns: dict[str, Turn] = field(default_factory=dict)
    batches: dict[str, Turn] = field(default_factory=dict)
    fills: list[Callable[[int], None]] = field(default_factory=list)

    def fill(self, count: int) -> None:
        """Add *count* reservations that stay to each."""
        if count:
            for each in self.fills:
                each(count)


@contextmanager
def contestants(
    folder: str, peers: Collection[str], environment: Mapping[str, str] | None = None
) -> Iterator[Field]:
    """Run the daemon and *peers*, each in *environment*; say who can't be measured here."""
    environment = environment or {}
    load = Load(folder)
    with ExitStack() as stack:
        product = stack.enter_context(daemon.peer(folder, load, environment))
        found = Field(product)
        found.turns[DAEMON] = product.turn
        found.batches[f"{DAEMON}, batches of {BATCH}"] = product.batch_turn
        found.fills.append(product.fill)
        for name in PEERS:
            if name not in peers:
                continue
            own = f"{folder}/{name}"
            os.mkdir(own)
            try:
                _ADD[name](stack, found, load, own, environment)
            except Missing as missing:
                print(f"{name}: not measured: {missing}")
        yield found


def _add_sqlite(
    _: ExitStack, found: Field, __: Load, folder: str, environment: Mapping[str, str]
) -> None:
    peer = SqlitePeer(f"{folder}/peer.sqlite", environment)
    found.turns["SQLite"] = peer.turn
    found.fills.append(peer.fill)


def _add_redis(
    stack: ExitStack, found: Field, load: Load, folder: str, environment: Mapping[str, str]
) -> None:
    single, pipelined = stack.enter_context(redis.peer(folder, environment))
    found.turns["Redis"] = partial(load.turn, single)
    found.batches[f"Redis, pipelines of {BATCH}"] = partial(load.turn, pipelined)
    found.fills.append(partial(load.fill, single))


def _add_postgres(
    stack: ExitStack, found: Field, load: Load, folder: str, environment: Mapping[str, str]
) -> None:
    target = stack.enter_context(postgres.peer(folder, environment))
    found.turns["PostgreSQL"] = partial(load.turn, target)
    found.fills.append(partial(load.fill, target))


def _add_etcd(
    stack: ExitStack, found: Field, load: Load, folder: str, environment: Mapping[str, str]
) -> None:
    if environment:
        raise Missing("it flushes without the C library, so that no shim slows it")
    guarded, bare = stack.enter_context(etcd.peer(folder))
    found.turns["etcd"] = partial(load.turn, guarded)
    found.turns["etcd, no guard"] = partial(load.turn, bare)
    found.fills.append(partial(load.fill, bare))


_ADD: dict[str, Callable[[ExitStack, Field, Load, str, Mapping[str, str]], None]] = {
    "sqlite": _add_sqlite,
    "redis": _add_redis,
    "postgres": _add_postgres,
    "etcd": _add_etcd,
}
