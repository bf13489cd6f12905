"""Measures `axern run` of `true`, to the command line's exit, beside the raw runtimes.

usage: python bench/run_true.py [ROUNDS]; needs root, runc, runsc, conmon and busybox-static.
The rows between show where the time goes: an HTTP client that is running already, and `python -c
pass`, which is what any command written in Python starts with.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial

from axern.api.client import Client
from bench.monitor_cost import VOLATILE, Bench
from tests.host.daemon import DaemonLab, daemon_lab

ROUNDS = 20
SMALL = {"cpu_milli": 10, "memory_bytes": 16 * 1024**2}


def milliseconds(call: Callable[[], object]) -> float:
    """Return how long *call* takes."""
    began_s = time.perf_counter()
    call()
    return (time.perf_counter() - began_s) * 1e3


def by_command(lab: DaemonLab, runtime: str, environment: dict[str, str]) -> None:
    """Run `true` as a user does."""
    flags = ("--runtime-class", runtime, "--request-cpu", "10m", "--request-memory", "16MiB")
    argv = lab.argv("run", *flags, "--", "true")
    subprocess.run(argv, check=True, capture_output=True, env=environment)


def by_api(client: Client, runtime: str) -> None:
    """Run `true` through a connection that is open already, to the exit event."""
    body = {"command": ["true"], "runtime_class": runtime, "requests": SMALL}
    run_id = client.request("POST", "/v2/runs", body)["run"]["id"]
    for event in client.events(f"/v2/runs/{run_id}/stream"):
        if event.name == "exit":
            assert json.loads(event.data)["run"]["exit_code"] == 0


def measure(lab: DaemonLab, raw: Bench, bundle: str, rounds: int) -> dict[str, float]:
    """Interleave all forms and return the median of each in milliseconds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    python = [sys.executable, "-c", "pass"]
    figures: dict[str, list[float]] = {}
    with Client(lab.socket) as client:
        client.health()
        for round_number in range(rounds + 1):
            row = {"python -c pass": milliseconds(lambda: subprocess.run(python, check=True))}
            for runtime in ("runc", "runsc"):
                row[f"raw {runtime} run"] = raw.raw(runtime, bundle)
                row[f"{runtime} by the API"] = milliseconds(partial(by_api, client, runtime))
                row[f"axern run, {runtime}"] = milliseconds(
                    partial(by_command, lab, runtime, environment)
                )
            if round_number:
                for name, value in row.items():
                    figures.setdefault(name, []).append(value)
    return {name: round(statistics.median(values), 1) for name, values in figures.items()}


def main() -> None:
    """Print a table and one line of JSON."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    for package in ("axern", "ledger"):
        compileall.compile_dir(package, quiet=2)
    base = tempfile.mkdtemp(prefix="axern-bench-")
    os.chmod(base, 0o711)  # noqa: S103 - a sandbox's root must reach its own folder below it
    run_dir = tempfile.mkdtemp(prefix="axern-bench-", dir=VOLATILE)
    os.chmod(run_dir, 0o711)  # noqa: S103 - the same
    raw = Bench(base, run_dir)
    try:
        bundle = raw.raw_bundle(base)
        with daemon_lab() as lab:
            lab.start()
            medians = measure(lab, raw, bundle, rounds)
            lab.wait_empty()
    finally:
        raw.layout.dismantle()
        for folder in (base, run_dir):
            shutil.rmtree(folder)
    print(f"{'':<18}{'ms':>8}{'x raw':>8}")
    ratios: dict[str, float] = {}
    for name, value in medians.items():
        runtime = "runsc" if "runsc" in name else "runc"
        ratios[name] = round(value / medians[f"raw {runtime} run"], 2)
        print(f"{name:<18}{value:>8}{ratios[name] if name != 'python -c pass' else '':>8}")
    print(json.dumps({"medians_ms": medians, "ratios": ratios}))


if __name__ == "__main__":
    main()
