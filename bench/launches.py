"""Measures launches a second at width 8 beside the raw runtime, and admissions while they go on.

A launch is a run of `true` from the request to its exit, reserved, buried and released; beside it
`xargs -P 8` starts the bare runtime, each container in a bundle and control group of its own. The
admissions are those of 8 clients through the API, on an idle host and beside eight launch loops.

usage: python -m bench.launches [--quick] [--rounds N] [--launches N]
"""

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from axern.api.client import Client
from bench import common
from bench.monitor_cost import VOLATILE, Bench
from bench.peers import daemon
from bench.peers.daemon import DaemonPeer
from bench.peers.load import Load
from bench.run_true import by_api, run_argv

WIDTH = 8
CLIENTS = 8
RUNTIMES = ("runc", "runsc")
SETTLE_S = 1.0
"""So long the loops run before admissions are measured beside them."""


def bundles(raw: Bench, base: str, count: int) -> list[str]:
    """Make *count* bundles of `true`, which share a root file system and no control group."""
    template = raw.raw_bundle(base)
    config = json.loads(Path(template, "config.json").read_text(encoding="utf-8"))
    config["root"]["path"] = f"{template}/rootfs"
    made = []
    for number in range(count):
        folder = f"{base}/bundle-{number}"
        os.mkdir(folder)
        config["linux"]["cgroupsPath"] = f"/{raw.layout.cgroup_root}/raw-{number}"
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        made.append(folder)
    return made


def by_xargs(raw: Bench, runtime: str, folders: list[str]) -> Mapping[str, float]:
    """Run every bundle by the bare runtime, `WIDTH` at a time."""
    options = ["--network=none", "--ignore-cgroups"] if runtime == "runsc" else []
    argv = [runtime, f"--root={raw.layout.run_dir}/raw-{runtime}", *options, "run", "--bundle"]
    lines = []
    for folder in folders:
        raw.serial += 1
        lines.append(f"{folder} raw-{raw.serial:06d}\n")
    began_s = time.perf_counter()
    subprocess.run(
        ["xargs", "-P", str(WIDTH), "-n", "2", *argv],
        input="".join(lines).encode(),
        check=True,
        capture_output=True,
    )
    return {"launches_s": len(folders) / (time.perf_counter() - began_s)}


def launch_by_api(peer: DaemonPeer, runtime: str) -> None:
    """Run `true` to its exit, on a connection of its own."""
    with Client(peer.lab.socket) as client:
        by_api(client, runtime)


def launch_by_command(peer: DaemonPeer, runtime: str) -> None:
    """Run `true` to its exit as a user does."""
    subprocess.run(run_argv(peer.lab, runtime), check=True, capture_output=True)


def by_axern(peer: DaemonPeer, runtime: str, count: int, *, command: bool) -> Mapping[str, float]:
    """Launch *count* runs, `WIDTH` at a time, by the API or by the command line."""
    launch = partial(launch_by_command if command else launch_by_api, peer)
    began_s = time.perf_counter()
    with ThreadPoolExecutor(WIDTH) as pool:
        list(pool.map(launch, [runtime] * count))
    took_s = time.perf_counter() - began_s
    peer.lab.wait_empty()
    return {"launches_s": count / took_s}


@contextmanager
def launching(peer: DaemonPeer) -> Iterator[list[int]]:
    """Keep eight loops of launches going; yield the list to which each launch adds its loop."""
    stop = threading.Event()
    done: list[int] = []

    def loop(number: int) -> None:
        while not stop.is_set():
            launch_by_api(peer, "runc")
            done.append(number)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(WIDTH)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLE_S)
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        peer.lab.wait_empty()


def idle_turn(peer: DaemonPeer, load: Load, seconds: float) -> Mapping[str, float]:
    """Measure admissions while nothing is launched."""
    return {**load.turn(peer.target, CLIENTS, seconds), "launches_s": 0.0}


def busy_turn(peer: DaemonPeer, load: Load, seconds: float) -> Mapping[str, float]:
    """Measure admissions beside the loops, and how many launches there were meanwhile."""
    with launching(peer) as done:
        before, began_s = len(done), time.perf_counter()
        figures = load.turn(peer.target, CLIENTS, seconds)
        launched, took_s = len(done) - before, time.perf_counter() - began_s
    return {**figures, "launches_s": launched / took_s}


def show(
    launches: Mapping[str, Mapping[str, float]], admissions: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Print both tables and return the ratios."""
    ratios, rows = {}, []
    for name, figure in launches.items():
        raw = launches[f"{name.partition(',')[0]}, xargs -P {WIDTH}"]
        ratios[f"{name} to xargs"] = figure["launches_s"] / raw["launches_s"]
        rows.append((name, f"{figure['launches_s']:.1f}", f"{ratios[f'{name} to xargs']:.2f}"))
    print(common.table((f"width {WIDTH}", "launches/s", "x xargs"), rows))
    names = ("ops_s", "p50_us", "p99_us", "launches_s")
    beside = [(case, *(f"{made[key]:,.0f}" for key in names)) for case, made in admissions.items()]
    print(common.table((f"{CLIENTS} clients", "ops/s", "p50 µs", "p99 µs", "launches/s"), beside))
    idle, busy = admissions.values()
    ratios["reserve p50, launching to idle"] = busy["p50_us"] / idle["p50_us"]
    print(f"reserve p50, launching to idle: {busy['p50_us'] / idle['p50_us']:.2f}")
    return ratios


def main() -> None:
    """Print two tables and one line of JSON."""
    parser = common.arguments(__doc__)
    parser.add_argument("--launches", type=int, default=64, help="in one turn")
    options = common.parse(parser)
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, options.seconds)
    count = WIDTH if options.quick else options.launches
    base = tempfile.mkdtemp(prefix="axern-bench-", dir=options.directory)
    run_dir = tempfile.mkdtemp(prefix="axern-bench-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    raw, load = Bench(base, run_dir), Load(base)
    try:
        folders = bundles(raw, base, count)
        with daemon.peer(f"{base}/daemon", load, launch_workers=WIDTH) as peer:
            turns: dict[str, common.Case] = {}
            for name in RUNTIMES:
                turns[f"{name}, xargs -P {WIDTH}"] = partial(by_xargs, raw, name, folders)
                turns[f"{name}, API"] = partial(by_axern, peer, name, count, command=False)
                turns[f"{name}, axern run"] = partial(by_axern, peer, name, count, command=True)
            launches = common.interleave(turns, rounds)
            admissions = common.interleave(
                {
                    "idle": partial(idle_turn, peer, load, seconds),
                    f"{WIDTH} launch loops": partial(busy_turn, peer, load, seconds),
                },
                rounds,
            )
    finally:
        raw.layout.dismantle()
        for folder in (base, run_dir):
            shutil.rmtree(folder)
    ratios = show(launches, admissions)
    figures = {
        name: {key: round(value, 1) for key, value in figure.items()}
        for name, figure in (launches | admissions).items()
    }
    common.report("launches", figures, ratios)


if __name__ == "__main__":
    main()
