"""Measures what heartbeats cost: writes to the ledger a second, and CPU of the daemon.

A write is a commit, of however many beats; beats wait in memory and are written together. The rows:
a daemon that hears nothing, 1,000 owners that beat every 30 s, 10,000 that beat every 10 s with a
request each, and the same in batches of 250.

usage: python -m bench.heartbeats [--quick] [--rounds N] [--seconds S]
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import psutil

from axern.api.client import Client
from bench import common
from bench.peers import daemon
from bench.peers.daemon import TOKEN, DaemonPeer
from bench.peers.load import Load

LEAST_SECONDS = 30.0
"""Two intervals at which the daemon writes down what it has heard."""
BATCH = 250
PAUSE_S = 0.05
"""Beats due within it are sent behind each other."""

Send = Callable[[Client, Iterator[str]], int]


def one_request(client: Client, ids: Iterator[str]) -> int:
    """Beat for one owner; return 1."""
    client.request("POST", f"/v2/reservations/{next(ids)}/heartbeat", {"token": TOKEN})
    return 1


def one_batch(client: Client, ids: Iterator[str]) -> int:
    """Beat for the next `BATCH` owners in one request; return how many."""
    chosen = itertools.islice(ids, BATCH)
    beats = [{"heartbeat": {"id": key, "token": TOKEN}} for key in chosen]
    answer = client.request("POST", "/v2/batch", {"mode": "all", "operations": beats})
    return len(answer["results"])


def turn(
    peer: DaemonPeer, ids: Sequence[str], every_s: float, send: Send | None, seconds: float
) -> Mapping[str, float]:
    """Let each of *ids* beat every *every_s* for *seconds*, evenly; None sends nothing."""
    process = psutil.Process(peer.pid)
    turning = itertools.cycle(ids)
    writes, cpu_s, began_s = peer.node()["generation"], _cpu_s(process), time.monotonic()
    sent = 0
    with Client(peer.lab.socket) as client:
        while (passed_s := time.monotonic() - began_s) < seconds:
            while send is not None and sent < passed_s * len(ids) / every_s:
                sent += send(client, turning)
            time.sleep(PAUSE_S)
    wall_s = time.monotonic() - began_s
    used_s = _cpu_s(process) - cpu_s
    return {
        "beats_s": sent / wall_s,
        "writes_s": (peer.node()["generation"] - writes) / wall_s,
        "cpu_percent": 100 * used_s / wall_s,
        "cpu_us_a_beat": 1e6 * used_s / sent if sent else 0.0,
    }


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def main() -> None:
    """Print a table and one line of JSON."""
    options = common.parse(common.arguments(__doc__))
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, LEAST_SECONDS)
    entries = 1_000 if options.quick else 10_000
    with (
        tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as folder,
        daemon.peer(folder, Load(folder)) as peer,
    ):
        peer.fill(entries)
        ids = sorted(peer.filled)
        few = ids[: entries // 10]
        medians = common.interleave(
            {
                "nobody beats": partial(turn, peer, ids, 10, None, seconds),
                f"{len(few):,} every 30 s": partial(turn, peer, few, 30, one_request, seconds),
                f"{entries:,} every 10 s": partial(turn, peer, ids, 10, one_request, seconds),
                f"{entries:,} every 10 s, batches of {BATCH}": partial(
                    turn, peer, ids, 10, one_batch, seconds
                ),
            },
            rounds,
        )
    rows = [(name, *(f"{value:,.1f}" for value in made.values())) for name, made in medians.items()]
    print(common.table((f"{entries:,} entries", "beats/s", "writes/s", "CPU %", "µs a beat"), rows))
    rounded = {name: {k: round(v, 2) for k, v in made.items()} for name, made in medians.items()}
    common.report("heartbeats", rounded, {})


if __name__ == "__main__":
    main()
