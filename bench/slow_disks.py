"""Measures durable admissions through the API on disks whose flush takes 2 and 10 ms longer.

A library preloaded into the daemon, SQLite, Redis and PostgreSQL lets each fsync and fdatasync take
that much longer; etcd calls the kernel itself and takes no part. Load and peers are those of
bench.api_admissions, with 1,000 reservations beforehand.

usage: python -m bench.slow_disks [--quick] [--rounds N] [--slower-us 2000,10000] [--clients 1,32]
"""

import os
import tempfile

from bench import common
from bench.api_admissions import FLAT_AT, Medians, cases, numbers, show, tell
from bench.peers import field
from bench.peers.field import DAEMON
from bench.peers.tools import slow_disk

ENTRIES = 1000


def shared(figures: dict[str, Medians]) -> dict[str, float]:
    """Return how many clients share a flush: what many get to what one gets, on each disk."""
    many, one = f"{DAEMON} x{FLAT_AT}", f"{DAEMON} x1"
    return {
        f"{place}/{many} to x1": medians[many]["ops_s"] / medians[one]["ops_s"]
        for place, medians in figures.items()
        if {many, one} <= medians.keys()
    }


def main() -> None:
    """Measure each disk in turn, print its table, and one JSON line in the end."""
    parser = common.arguments(__doc__)
    parser.add_argument("--slower-us", default="2000,10000", help="for each flush (%(default)s)")
    parser.add_argument("--clients", default="1,32,256", help="at the same time (%(default)s)")
    parser.add_argument("--peers", default="sqlite,redis,postgres", help="(%(default)s)")
    options = common.parse(parser)
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    clients = [1, 32] if options.quick else numbers(options.clients)
    figures: dict[str, Medians] = {}
    for slower_us in numbers(options.slower_us):
        place = f"+{slower_us / 1000:g} ms a flush"
        with tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as folder:
            os.chmod(folder, 0o755)  # noqa: S103 - a peer that is not root has its folder below it
            environment = slow_disk(folder, slower_us)
            with field.contestants(folder, options.peers.split(","), environment) as found:
                found.fill(ENTRIES)
                figures[place] = common.interleave(cases(found, clients, seconds), rounds)
        for case, figure in figures[place].items():
            if case.endswith(" x1"):
                assert figure["p50_us"] > slower_us, f"{case} was not slowed"
        show(place, figures[place])
    tell("slow_disks", figures, shared(figures))


if __name__ == "__main__":
    main()
