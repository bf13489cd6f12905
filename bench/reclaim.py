"""Measures how long leases that expire all at once take to be reclaimed, and who waits meanwhile.

Beforehand the ledger is filled with leases of one deadline, and 8 clients reserve and release all
the time, in windows of half a second: those before the deadline say what is usual, and the worst of
those in which entries vanish is what reclaiming costs others. Its time, from the first entry gone
to the last, is compared with that of writing the whole ledger once.

usage: python -m bench.reclaim [--quick] [--rounds N]
"""

import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial

from bench import common
from bench.peers import daemon
from bench.peers.daemon import DaemonPeer
from bench.peers.load import Load

CLIENTS = 8
WINDOW_S = 0.5
LOOK_EVERY_S = 0.02
TTL_S = 30.0
"""Long enough to fill the ledger, to start a daemon on it, and to see what is usual."""
LIMIT_S = 120.0


class Watch:
    """Notes when the first and the last of the leases has gone."""

    def __init__(self, peer: DaemonPeer, entries: int) -> None:
        self._peer = peer
        self._entries = entries
        self.began_s = self.ended_s = 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        deadline_s = time.monotonic() + TTL_S + LIMIT_S
        while not self.ended_s and time.monotonic() < deadline_s:
            entries, now_s = self._peer.node()["entries"], time.monotonic()
            if not self.began_s and entries < self._entries:
                self.began_s = now_s
            if self.began_s and entries <= CLIENTS:
                self.ended_s = now_s
            time.sleep(LOOK_EVERY_S)

    def is_on(self) -> bool:
        """Tell whether it still looks."""
        return self._thread.is_alive()


def turn(peer: DaemonPeer, load: Load, entries: int) -> Mapping[str, float]:
    """Fill the ledger, wait for the deadline under load, and return what came of it in ms."""
    peer.fill(entries, ttl_ms=int(TTL_S * 1e3))
    peer.filled.clear()  # they go by themselves
    snapshot_s = peer.checkpoint()
    watch = Watch(peer, entries)
    usual: list[Mapping[str, float]] = []
    meanwhile: list[Mapping[str, float]] = []
    while watch.is_on():
        began_s = time.monotonic()
        figures = load.turn(peer.target, CLIENTS, WINDOW_S)
        touched = watch.began_s and (not watch.ended_s or watch.ended_s >= began_s)
        (meanwhile if touched else usual).append(figures)
    assert watch.ended_s, f"not all had gone {LIMIT_S} s after their deadline"
    assert usual, "the deadline came before the first window"
    took_s = watch.ended_s - watch.began_s
    return {
        "reclaim_ms": took_s * 1e3,
        "snapshot_ms": snapshot_s * 1e3,
        "usual_p99_ms": common.percentile([made["p99_us"] for made in usual], 50) / 1e3,
        "worst_p99_ms": max((made["p99_us"] for made in meanwhile), default=0.0) / 1e3,
        "worst_max_ms": max((made["max_us"] for made in meanwhile), default=0.0) / 1e3,
    }


def main() -> None:
    """Print a table and one line of JSON."""
    options = common.parse(common.arguments(__doc__))
    rounds = 1 if options.quick else options.rounds
    entries = 1_000 if options.quick else 10_000
    with tempfile.TemporaryDirectory(prefix="axern-bench-", dir=options.directory) as folder:
        load = Load(folder)
        with daemon.peer(folder, load, tick="1s") as peer:
            name = f"{entries:,} leases expire"
            medians = common.interleave({name: partial(turn, peer, load, entries)}, rounds)
    figures = medians[name]
    rows = [(key, f"{value:,.1f}") for key, value in figures.items()]
    print(common.table((name, "ms"), rows))
    made = {
        "reclaim to one snapshot": figures["reclaim_ms"] / figures["snapshot_ms"],
        "worst p99 to the usual": figures["worst_p99_ms"] / figures["usual_p99_ms"],
    }
    for key, ratio in made.items():
        print(f"{key}: {ratio:.2f}")
    common.report("reclaim", {key: round(value, 1) for key, value in figures.items()}, made)


if __name__ == "__main__":
    main()
