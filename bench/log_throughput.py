"""Measures output through `axern run` beside what its monitor alone can log, and a bare runtime.

- *conmon*: monitor and runtime write the log, and nobody reads it: the floor, since every byte of
  a run goes through its log.
- *axern run*: the same through daemon and command line into `cat`, from the first request to the
  exit.
- *runc run*: the bare runtime into `cat`, without a log.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial

from axern.runtime import launch, monitor, teardown
from bench import common
from bench.monitor_cost import VOLATILE, Bench
from tests.host.daemon import DaemonLab, daemon_lab

_NO_ROTATION_BYTES = 1 << 40
_FLAGS = ("--runtime-class", "runc", "--request-cpu", "10m", "--request-memory", "16MiB")


def lines(size_bytes: int) -> bytes:
    """Return text in lines of 80 bytes."""
    return (b"x" * 79 + b"\n") * (size_bytes // 80)


def by_monitor(bench: Bench, name: str) -> Mapping[str, float]:
    """Log the file; return seconds from the workload's start to its recorded exit."""
    spec = bench.spec("runc", f"exec cat /{name}")
    paths = bench.layout.sandbox(spec.sandbox_id)
    began_s = time.perf_counter()
    launch.create(spec, bench.layout, log_max_bytes=_NO_ROTATION_BYTES)
    launch.start(spec, bench.layout)
    while monitor.read_exit(paths) is None:
        time.sleep(0.001)
    ended_s = time.perf_counter()
    teardown.bury("runc", bench.layout, spec.sandbox_id)
    os.unlink(paths.log)
    shutil.rmtree(paths.run_folder)
    return {"seconds": ended_s - began_s}


def by_axern(lab: DaemonLab, name: str) -> Mapping[str, float]:
    """Run `cat` of the file as a user does, into a pipe."""
    began_s = time.perf_counter()
    into_cat(lab.argv("run", *_FLAGS, "--", "cat", f"/{name}"))
    return {"seconds": time.perf_counter() - began_s}


def by_runc(bench: Bench, folder: str, name: str) -> Mapping[str, float]:
    """Run `cat` of the file by the bare runtime, into a pipe."""
    with open(f"{folder}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    config["process"]["args"] = ["/bin/cat", f"/{name}"]
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    bench.serial += 1
    argv = ["runc", f"--root={bench.layout.run_dir}/raw-runc", "run", f"raw-{bench.serial:06d}"]
    began_s = time.perf_counter()
    into_cat(argv, folder)
    return {"seconds": time.perf_counter() - began_s}


def into_cat(argv: list[str], folder: str | None = None) -> None:
    """Run *argv* with its output in a pipe to `cat`; both must end well."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        argv, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, cwd=folder
    ) as process:
        subprocess.run(["cat"], stdin=process.stdout, stdout=quiet, check=True)
    assert process.returncode == 0, process.returncode


def main() -> None:
    """Print a table and one line of JSON."""
    options = common.arguments(__doc__)
    options.add_argument("--megabytes", type=int, default=200, help="size of the output")
    chosen = common.parse(options)
    size_bytes = (10 if chosen.quick else chosen.megabytes) * 1_000_000
    base = tempfile.mkdtemp(prefix="axern-bench-", dir=chosen.directory)
    run_dir = tempfile.mkdtemp(prefix="axern-bench-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    raw = Bench(base, run_dir)
    try:
        with daemon_lab() as lab:
            lab.start()
            template = f"{lab.layout.templates}/busybox/rootfs"
            contents = {"lines": lines(size_bytes), "noise": random.randbytes(size_bytes)}
            for name, content in contents.items():
                for rootfs in (raw.rootfs, template):
                    with open(f"{rootfs}/{name}", "wb") as file:
                        file.write(content)
            contents.clear()
            bundle = raw.raw_bundle(base)
            cases: dict[str, common.Case] = {}
            for name in ("lines", "noise"):
                cases[f"{name}: conmon"] = partial(by_monitor, raw, name)
                cases[f"{name}: axern run | cat"] = partial(by_axern, lab, name)
                cases[f"{name}: runc run | cat"] = partial(by_runc, raw, bundle, name)
            figures = common.interleave(cases, 1 if chosen.quick else chosen.rounds)
            lab.wait_empty()
    finally:
        raw.layout.dismantle()
        for folder in (base, run_dir):
            shutil.rmtree(folder)
    rows, ratios = [], {}
    for name, figure in figures.items():
        seconds = figure["seconds"]
        ratio = seconds / figures[f"{name.partition(':')[0]}: conmon"]["seconds"]
        ratios[name] = ratio
        speed = f"{size_bytes / seconds / 1e6:.0f}"
        rows.append((name, f"{seconds:.2f}", speed, f"{ratio:.2f}"))
    print(common.table(("", "s", "MB/s", "x conmon"), rows))
    common.report("log_throughput", figures, ratios)


if __name__ == "__main__":
    main()
