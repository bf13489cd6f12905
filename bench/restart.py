"""Measures a daemon's start, its memory and the loading of its ledger, by what the ledger holds.

*loads* is the ledger's reader on its files, with every sum, chain and account verified, in a
process of its own; beside it `json.loads` of the same checkpoint with an index by id. *starts* is a
daemon's whole start to its first answer, self-tests of the runtimes included, after a clean stop
and after SIGKILL, with the journal of some work still to be read.

usage: python -m bench.restart [--quick] [--rounds N] [--sizes 0,10000,100000]
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial

import psutil

from bench import common
from bench.api_admissions import Medians, numbers
from bench.peers import daemon
from bench.peers.daemon import DaemonPeer
from bench.peers.load import Load

WORKERS, WORK_S = 32, 1.0
"""What is done before a kill."""
BY_READER = """
import json, sys, time
from ledger import reader
began_s = time.perf_counter()
rows = list(reader.read(sys.argv[1]).state.reservations())
print(json.dumps([time.perf_counter() - began_s, len(rows)]))
"""
BY_JSON = """
import json, sys, time
began_s = time.perf_counter()
with open(sys.argv[1] + "/ledger.json", encoding="utf-8") as file:
    rows = dict(json.loads(file.read())["tables"]["reservations"])
print(json.dumps([time.perf_counter() - began_s, len(rows)]))
"""


def loads(program: str, ledger_dir: str, entries: int) -> Mapping[str, float]:
    """Let a new process load the ledger by *program*; it must find *entries*."""
    argv = [sys.executable, "-c", program, ledger_dir]
    done = subprocess.run(argv, check=True, capture_output=True, cwd=os.getcwd())
    seconds, found = json.loads(done.stdout)
    assert found == entries, (found, entries)
    return {"ms": seconds * 1e3}


def starts(peer: DaemonPeer, *, killed: bool) -> Mapping[str, float]:
    """Start the daemon anew after a clean stop or a kill; return the time and its memory."""
    if killed:
        peer.turn(WORKERS, WORK_S)
        peer.lab.kill(peer.process)
    else:
        peer.stop()
    took_s = peer.start()
    assert peer.node()["entries"] == len(peer.filled)
    return {"ms": took_s * 1e3, "rss_bytes": psutil.Process(peer.pid).memory_info().rss}


def cases(peer: DaemonPeer) -> dict[str, common.Case]:
    """Return the turns at the size that the ledger has now, whose checkpoint is complete."""
    entries = len(peer.filled)
    return {
        "start, after a clean stop": partial(starts, peer, killed=False),
        "load: the ledger's reader": partial(loads, BY_READER, peer.ledger_dir, entries),
        "load: json.loads": partial(loads, BY_JSON, peer.ledger_dir, entries),
        "start, after SIGKILL": partial(starts, peer, killed=True),
    }


def ratios(figures: Mapping[int, Medians]) -> dict[str, float]:
    """Return the reader's time to that of json.loads, and what an entry takes of memory."""
    made = {
        f"{size}/reader to json.loads": medians["load: the ledger's reader"]["ms"]
        / medians["load: json.loads"]["ms"]
        for size, medians in figures.items()
        if size
    }
    rss = {size: m["start, after a clean stop"]["rss_bytes"] for size, m in figures.items()}
    least = min(rss)
    for size in rss.keys() - {least}:
        made[f"{size}/bytes an entry"] = (rss[size] - rss[least]) / (size - least)
    return made


def main() -> None:
    """Print a table for each size, the ratios and one line of JSON."""
    parser = common.arguments(__doc__)
    parser.add_argument("--sizes", default="0,10000,100000", help="existing entries")
    options = common.parse(parser)
    sizes = [0, 1000] if options.quick else numbers(options.sizes)
    rounds = 1 if options.quick else options.rounds
    figures: dict[int, Medians] = {}
    with (
        tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as folder,
        daemon.peer(folder, Load(folder)) as peer,
    ):
        for size in sizes:
            if more := size - len(peer.filled):
                peer.fill(more)
            figures[size] = common.interleave(cases(peer), rounds)
            rows = [
                (name, f"{made['ms']:,.1f}", f"{made.get('rss_bytes', 0) / 1e6:,.1f}")
                for name, made in figures[size].items()
            ]
            print(common.table((f"{size:,} entries", "ms", "RSS MB"), rows))
    made = ratios(figures)
    for name, ratio in made.items():
        print(f"{name}: {ratio:,.2f}")
    rounded = {
        f"{size}/{name}": {key: round(value, 1) for key, value in figure.items()}
        for size, medians in figures.items()
        for name, figure in medians.items()
    }
    common.report("restart", rounded, made)


if __name__ == "__main__":
    main()
