"""Measures durable admissions in process, beside SQLite and the bare flush on the same disk.

One admission is a reserve or a release, each durable before its caller goes on. The ledger does
all it does for the daemon (gates, postings, request id, group commit); SQLite does a guarded
counter update and an insert, in the form that was fastest: WAL, synchronous=FULL, one process a
client. The floor is one write and one fdatasync into space that was written before.

usage: python -m bench.durable_admissions [--quick] [--rounds N] [--seconds S] [--entries N]
"""

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial

from bench import common
from bench.common import figures, interleave, report, table
from bench.peers import floor
from bench.peers.sqlite import SqlitePeer
from ledger import transitions
from ledger.admission import AdmissionPolicy
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.committer import Committer
from ledger.facts import Facts
from ledger.reservation import RUN, Owner
from ledger.resources import OptionalResources, Resources
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.state import Change, State
from ledger.store import Ledger
from ledger.transitions import Proposal

MANY = 32
POLICY = AdmissionPolicy(entry_cap=10**6, namespace_entry_cap=10**6)
PLENTY = Resources(10**9, 2**50, 2**50, 0, 4096)
WANTED = ResolvedSpec(Resources(500, 2**29, 2**28, 0, 1), OptionalResources(1000, 2**30, 2**28))


def clock() -> Now:
    """Read the clocks as the daemon does."""
    monotonic_ms = time.monotonic_ns() // 10**6
    boottime_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6
    return Now("bench", monotonic_ms, boottime_ms, time.time_ns() // 10**6)


class LedgerPeer:
    """The ledger with a committer in front of it, and callers as tasks of one event loop."""

    def __init__(self, directory: str, entries: int) -> None:
        self.serial = itertools.count()
        self.facts = Facts(0, 0)
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger.open(os.path.join(directory, "ledger"), clock())
        node = node_of(PLENTY, Resources(), "1")
        self.ledger.commit(lambda view: transitions.observe_node(view, node), clock())
        for start in range(0, entries, 500):
            count = min(500, entries - start)
            batch = self.ledger.stage([self.reserve()[1] for _ in range(count)], clock())
            self.ledger.flush(batch)
            self.ledger.publish(batch)

    def reserve(self) -> tuple[str, Callable[[State], Change]]:
        """Return a new id, and the operation that reserves for it."""
        key = f"rsv-{next(self.serial):032x}"
        proposal = Proposal(
            id=key,
            namespace="default",
            owner=Owner(RUN, 1000, "bench"),
            spec=ResourceSpec(limits=WANTED.limits),
            resolved=WANTED,
            digest="0" * 64,
            enforced=True,
            runtime="runc",
            ttl_ms=600_000,
        )

        def operation(view: State) -> Change:
            now = clock()
            return transitions.reserve(view, proposal, self.facts_at(now), now, POLICY)

        return key, operation

    def facts_at(self, now: Now) -> Facts:
        """Observe the host once a second, as the daemon does."""
        if now.monotonic_ms - self.facts.observed_monotonic_ms >= 1000:
            sequence = self.facts.sequence + 1
            self.facts = Facts(sequence, now.monotonic_ms, storage_free_bytes=2**50)
        return self.facts

    def turn(self, callers: int, seconds: float) -> dict[str, float]:
        """Let *callers* reserve and release in closed loops."""
        return self.loop.run_until_complete(self._turn(callers, seconds))

    async def _turn(self, callers: int, seconds: float) -> dict[str, float]:
        committer = Committer(self.ledger, clock)
        latencies: list[float] = []
        end = time.perf_counter() + seconds

        async def call() -> None:
            while (started := time.perf_counter()) < end:
                key, operation = self.reserve()
                await committer.submit(operation)
                latencies.append(time.perf_counter() - started)
                await committer.submit(
                    partial(transitions.release, reservation_id=key, evidence="")
                )

        started = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        wall_s = time.perf_counter() - started
        await committer.close()
        return figures(latencies, 2 * len(latencies), wall_s)

    def close(self) -> None:
        """Stop cleanly."""
        self.ledger.close()
        self.loop.close()


def main() -> None:
    """Measure all, interleaved, and print a table and one JSON line."""
    parser = common.arguments(__doc__)
    parser.add_argument("--entries", type=int, default=1000, help="reservations beforehand")
    options = common.parse(parser)
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    with tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as directory:
        ledger = LedgerPeer(directory, options.entries)
        sqlite = SqlitePeer(os.path.join(directory, "peer.sqlite"))
        sqlite.fill(options.entries)
        medians = interleave(
            {
                "ledger, 1 caller": partial(ledger.turn, 1, seconds),
                "SQLite, 1 process": partial(sqlite.turn, 1, seconds),
                f"ledger, {MANY} callers": partial(ledger.turn, MANY, seconds),
                f"SQLite, {MANY} processes": partial(sqlite.turn, MANY, seconds),
                "floor: write + fdatasync": partial(
                    floor.turn, os.path.join(directory, "floor"), seconds
                ),
            },
            rounds,
        )
        entries = ledger.ledger.state.entry_count()
        ledger.close()
        assert entries == options.entries, "every reserve was released"
    print(f"durable reserve and release, {options.entries} entries beforehand, {rounds} rounds")
    names = ["ops_s", "p50_us", "p99_us"]
    rows = [[case, *(f"{made[name]:,.0f}" for name in names)] for case, made in medians.items()]
    print(table(["", "ops/s", "p50 µs", "p99 µs"], rows))
    one, sqlite_one, many, sqlite_many, bare = medians.values()
    ratios = {
        "ledger_to_sqlite_1": one["ops_s"] / sqlite_one["ops_s"],
        "ledger_to_sqlite_32": many["ops_s"] / sqlite_many["ops_s"],
        "ledger_p50_to_floor_p50": one["p50_us"] / bare["p50_us"],
        "ledger_32_to_floor": many["ops_s"] / bare["ops_s"],
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    rounded = {
        case: {name: round(value) for name, value in made.items()} for case, made in medians.items()
    }
    report("durable_admissions", rounded, ratios)


if __name__ == "__main__":
    main()
