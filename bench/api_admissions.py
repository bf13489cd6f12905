"""Measures durable admissions through the public API, beside SQLite, Redis, PostgreSQL and etcd.

One admission is a reserve or a release, each durable before its client goes on. All are asked over
unix sockets by the same compiled load generator, but for SQLite, whose clients are processes. Each
reservation is guarded by counters of what is used and keeps as much as the ledger writes about one.
After the turns of each size the daemon is killed under load, and a new one must have exactly what
was acknowledged. Needs root; installs peers that are missing by apt, and never as services.

usage: python -m bench.api_admissions [--quick] [--rounds N] [--sizes 0,1000] [--clients 1,32]
"""

import os
import tempfile
from collections.abc import Mapping
from functools import partial

from bench import common
from bench.peers import field, floor
from bench.peers.field import DAEMON, Field

FLOOR = "floor: write + fdatasync"
FLAT_AT = 32
"""Clients at whom one size is compared with another."""
BATCHED_AT = 1000
"""Existing entries at which batches are measured."""
KILLED_AFTER_S = 1.0

Medians = Mapping[str, Mapping[str, float]]


def numbers(text: str) -> list[int]:
    """Return the numbers in *text*, in order."""
    return sorted(int(word) for word in text.split(","))


def cases(
    found: Field, clients: list[int], seconds: float, *, batches: bool = False
) -> dict[str, common.Case]:
    """Return who takes turns: everybody with each number of clients, and *batches* too."""
    made: dict[str, common.Case] = {
        f"{name} x{count}": partial(turn, count, seconds)
        for count in clients
        for name, turn in found.turns.items()
    }
    for name, turn in found.batches.items() if batches else ():
        for count in clients:
            if count <= FLAT_AT:  # more would be more operations than the daemon lets wait
                made[f"{name} x{count}"] = partial(turn, count, seconds)
    return made


def ratios(place: str, medians: Medians) -> dict[str, float]:
    """Return the daemon's operations a second to each peer's, and its p50 to the floor's."""
    made = {}
    for name, figure in medians.items():
        kind, _, count = name.rpartition(" x")
        mine = f"{DAEMON}, batches of 64" if kind.endswith("of 64") else DAEMON
        if kind and kind != mine:
            made[f"{place}/to {name}"] = medians[f"{mine} x{count}"]["ops_s"] / figure["ops_s"]
    if f"{DAEMON} x1" in medians:
        alone = medians[f"{DAEMON} x1"]["p50_us"]
        for name in {FLOOR, "Redis x1"} & medians.keys():
            made[f"{place}/p50 x1 to {name}"] = alone / medians[name]["p50_us"]
    return made


def flatness(figures: Mapping[int, Medians]) -> dict[str, float]:
    """Return the daemon's operations a second at each size to those at the smallest."""
    name = f"{DAEMON} x{FLAT_AT}"
    found = {size: medians[name]["ops_s"] for size, medians in figures.items() if name in medians}
    return {
        f"{size}/{name} to {min(found)} entries": v / found[min(found)] for size, v in found.items()
    }


def show(place: str, medians: Medians) -> None:
    """Print the table of one size or disk."""
    names = ("ops_s", "p50_us", "p99_us", "max_us")
    rows = [[case, *(f"{made[name]:,.0f}" for name in names)] for case, made in medians.items()]
    print(common.table([place, "ops/s", "p50 µs", "p99 µs", "max µs"], rows))


def tell(bench: str, figures: Mapping[str, Medians], more: Mapping[str, float]) -> None:
    """Print the ratios of each place, *more* of them, and the JSON line."""
    made = {k: v for place, medians in figures.items() for k, v in ratios(place, medians).items()}
    made.update(more)
    for name, ratio in made.items():
        print(f"{name}: {ratio:.2f}")
    rounded = {
        f"{place}/{case}": {name: round(value) for name, value in figure.items()}
        for place, medians in figures.items()
        for case, figure in medians.items()
    }
    common.report(bench, rounded, made)


def main() -> None:
    """Measure each size in turn, print its table, and one JSON line in the end."""
    parser = common.arguments(__doc__)
    parser.add_argument("--sizes", default="0,1000,10000,100000", help="existing entries")
    parser.add_argument("--clients", default="1,32,256", help="at the same time")
    parser.add_argument("--peers", default=",".join(field.PEERS), help="(%(default)s)")
    options = common.parse(parser)
    rounds, seconds = (1, 0.3) if options.quick else (options.rounds, options.seconds)
    sizes = [0, 1000] if options.quick else numbers(options.sizes)
    clients = [1, 32] if options.quick else numbers(options.clients)
    figures: dict[int, Medians] = {}
    with tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - a peer that is not root has its folder below it
        with field.contestants(folder, options.peers.split(",")) as found:
            for size in sizes:
                found.fill(size - max(figures, default=0))
                turns = cases(found, clients, seconds, batches=size == BATCHED_AT)
                turns[FLOOR] = partial(floor.turn, os.path.join(folder, "floor"), seconds)
                figures[size] = common.interleave(turns, rounds)
                show(f"{size:,} entries", figures[size])
                killed = found.daemon.kill_under_load(FLAT_AT, KILLED_AFTER_S)
                print(f"killed under load: all {killed['acknowledged']} acknowledged are there\n")
    tell(
        "api_admissions",
        {str(size): medians for size, medians in figures.items()},
        flatness(figures),
    )


if __name__ == "__main__":
    main()
