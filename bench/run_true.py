"""Measures `axern run` of `true`, to the command line's exit, beside runtimes and other daemons.

Beside it run the raw runtimes, `ctr run` and `docker run`; the rows between show an HTTP client
that is running already, and `python -c pass`, which is what any command written in Python starts
with. Then a daemon that notes when each step is passed tells where the time of a run goes. Needs
root, runc, runsc, conmon and busybox-static; containerd and docker take part where they are
installed, as daemons of the benchmark's own.

usage: python -m bench.run_true [--quick] [--rounds N]
"""

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from axern.api.client import Client
from bench import common
from bench.monitor_cost import VOLATILE, Bench
from bench.peers import containers, service, traced
from bench.peers.tools import Missing
from tests.host.daemon import DaemonLab, daemon_lab

LEAST_ROUNDS = 20
SMALL = {"cpu_milli": 10, "memory_bytes": 16 * 1024**2}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
CGROUP = f"axern-bench-peers-{os.getpid()}"
BEGUN, ANSWERED = "begun", "answered"
STEPS = {
    "request": "the command starts, and its request is read",
    "launch.spec": "spec written, durably",
    "launch.reserved": "admission, durably",
    "launch.starting": "`starting` committed",
    "launch.cgroup": "folders and cgroups",
    "launch.rootfs": "root file system mounted",
    "launch.bundle": "bundle written",
    "launch.created": "monitor and runtime create",
    "launch.start": "runtime starts",
    "launch.running": "`running` committed",
    "bury.exit_record": "exit seen, record written durably",
    "bury.begin": "`retiring` committed",
    "bury.killed": "walls removed",
    "bury.monitor": "the monitor has gone",
    "bury.folders": "mounts and folders removed",
    "bury.proved": "proof that nothing is left",
    "bury.released": "release committed",
    ANSWERED: "answer, and the command's exit",
}
"""What has happened by each note, since the one before it."""


def timed(call: Callable[[], object]) -> Mapping[str, float]:
    """Return how long *call* takes."""
    began_s = time.perf_counter()
    call()
    return {"ms": (time.perf_counter() - began_s) * 1e3}


def quietly(argv: list[str]) -> None:
    """Run *argv*, which must succeed."""
    subprocess.run(argv, check=True, capture_output=True, env=ENVIRONMENT)


def run_argv(lab: DaemonLab, runtime: str) -> list[str]:
    """Return the command that runs `true` as a user does."""
    flags = ("--runtime-class", runtime, "--request-cpu", "10m", "--request-memory", "16MiB")
    return lab.argv("run", *flags, "--", "true")


def by_api(client: Client, runtime: str) -> None:
    """Run `true` through a connection that is open already, to the exit event."""
    body = {"command": ["true"], "runtime_class": runtime, "requests": SMALL}
    run_id = client.request("POST", "/v2/runs", body)["run"]["id"]
    for event in client.events(f"/v2/runs/{run_id}/stream"):
        if event.name == "exit":
            assert json.loads(event.data)["run"]["exit_code"] == 0


@contextmanager
def peers(folder: str, rootfs: str) -> Iterator[dict[str, common.Case]]:
    """Yield the turns of containerd and docker, and say which of them can't have any."""
    made: dict[str, common.Case] = {}
    serial = iter(range(1, 1_000_000))
    with ExitStack() as stack:
        stack.callback(containers.remove_cgroups, CGROUP)
        name = "ctr run"
        try:
            socket = stack.enter_context(containers.containerd(folder))
            ctr = partial(containers.ctr_argv, socket, rootfs, cgroup=CGROUP)
            containers.try_out(ctr(name="try"))
            made[name] = lambda: timed(lambda: quietly(ctr(name=f"true-{next(serial)}")))
            name = "docker run"
            docker = stack.enter_context(containers.docker(folder, socket, CGROUP))
            containers.import_image(docker, rootfs)
            argv = containers.docker_argv(docker)
            containers.try_out(argv)
            made[name] = lambda: timed(lambda: quietly(argv))
        except Missing as missing:
            print(f"{name}: not measured: {missing}")
        yield made


def cases(lab: DaemonLab, client: Client, raw: Bench, bundle: str) -> dict[str, common.Case]:
    """Return the turns of bare Python, the runtimes and the product."""
    made: dict[str, common.Case] = {
        "python -c pass": lambda: timed(lambda: quietly([sys.executable, "-c", "pass"]))
    }
    for runtime in ("runc", "runsc"):
        made[f"raw {runtime} run"] = partial(_raw, raw, runtime, bundle)
        made[f"{runtime} by the API"] = partial(timed, partial(by_api, client, runtime))
        made[f"axern run, {runtime}"] = partial(timed, partial(quietly, run_argv(lab, runtime)))
    return made


def _raw(raw: Bench, runtime: str, bundle: str) -> Mapping[str, float]:
    return {"ms": raw.raw(runtime, bundle)}


def steps(rounds: int) -> dict[str, dict[str, float]]:
    """Return by runtime what each step of a run takes in ms, by a daemon that takes notes."""
    with daemon_lab() as lab:
        trace = f"{lab.base}/trace"
        through = (sys.executable, "-m", "bench.peers.traced")
        process = lab.spawn(through=through, environment={traced.VARIABLE: trace})
        service.wait_for(process, lab.socket, f"{lab.base}/axernd.log")
        lab.request("GET", "/v2/node")
        made = {}
        for runtime in ("runc", "runsc"):
            turn = {runtime: partial(traced_turn, run_argv(lab, runtime), trace)}
            turn[runtime]()  # the first finds nothing warm
            made[runtime] = common.interleave(turn, rounds)[runtime]
        lab.wait_empty()
    return made


def traced_turn(argv: list[str], trace: str) -> Mapping[str, float]:
    """Run *argv* and return what each of `STEPS` took in ms."""
    Path(trace).write_bytes(b"")
    began_ns = time.monotonic_ns()
    quietly(argv)
    passed = {BEGUN: began_ns, ANSWERED: time.monotonic_ns()}
    for line in Path(trace).read_text(encoding="ascii").splitlines():
        name, _, at_ns = line.partition(" ")
        passed[name] = int(at_ns)
    names = [BEGUN, *STEPS]
    return {after: (passed[after] - passed[before]) / 1e6 for before, after in pairwise(names)}


def show(medians: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Print the comparison and return each row's ratio to its raw runtime."""
    ratios, rows = {}, []
    for name, figure in medians.items():
        runtime = "runsc" if "runsc" in name else "runc"
        ratios[name] = figure["ms"] / medians[f"raw {runtime} run"]["ms"]
        rows.append((name, f"{figure['ms']:.1f}", f"{ratios[name]:.2f}"))
    print(common.table(("", "ms", "x raw"), rows))
    return ratios


def show_steps(account: Mapping[str, Mapping[str, float]]) -> None:
    """Print where the time goes."""
    rows = [
        (words, *(f"{figure[name]:.1f}" for figure in account.values()))
        for name, words in STEPS.items()
    ]
    total = ("sum of the medians", *(f"{sum(f.values()):.1f}" for f in account.values()))
    print(common.table(("steps of axern run", *(f"{r} ms" for r in account)), [*rows, total]))


def main() -> None:
    """Print two tables and one line of JSON."""
    options = common.parse(common.arguments(__doc__))
    rounds = 1 if options.quick else max(options.rounds, LEAST_ROUNDS)
    for package in ("axern", "ledger"):
        compileall.compile_dir(package, quiet=2)
    base = tempfile.mkdtemp(prefix="axern-bench-", dir=options.directory)
    run_dir = tempfile.mkdtemp(prefix="axern-bench-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    raw = Bench(base, run_dir)
    try:
        bundle = raw.raw_bundle(base)
        with peers(base, raw.rootfs) as beside, daemon_lab() as lab:
            lab.start()
            with Client(lab.socket) as client:
                client.health()
                turns = cases(lab, client, raw, bundle) | beside
                common.interleave(turns, 1)  # the first of each finds nothing warm
                medians = common.interleave(turns, rounds)
            lab.wait_empty()
        account = steps(rounds)
    finally:
        raw.layout.dismantle()
        for folder in (base, run_dir):
            shutil.rmtree(folder)
    ratios = show(medians)
    for peer in beside:
        ratios[f"axern run, runc to {peer}"] = (
            medians["axern run, runc"]["ms"] / medians[peer]["ms"]
        )
    show_steps(account)
    figures = {name: round(figure["ms"], 1) for name, figure in medians.items()}
    rounded = {r: {n: round(ms, 2) for n, ms in f.items()} for r, f in account.items()}
    common.report("run_true", {"ms": figures, "steps_ms": rounded}, ratios)


if __name__ == "__main__":
    main()
