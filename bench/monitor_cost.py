"""Measures what conmon costs beside a raw runtime, and whether its log loses a byte or an exit.

usage: python -m bench.monitor_cost [--quick] [--rounds N]

Needs root, runc, runsc, conmon and busybox-static.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from axern.host import cgroup
from axern.records import Unpacker
from axern.runtime import (
    bundle,
    launch,
    monitor,
    output,
    rootfs,
    segments,
    teardown,
    template,
)
from axern.runtime.layout import Layout
from axern.runtime.oci import SandboxSpec
from bench import common

VOLATILE = "/dev/shm"  # noqa: S108 - a tmpfs, as /run is in production
ROUNDS = 15
STREAM_BYTES = 1 << 20
ROTATED_BYTES = 16 << 20
ENDINGS = {
    "newline in the same write": ("printf 'abc\\n'", b"abc\n"),
    "newline in a write of its own": ("printf abc; sleep 0.1; printf '\\n'", b"abc\n"),
    "no newline at the end": ("printf 'a\\nbc'", b"a\nbc"),
    "NUL bytes": ("printf 'a\\0\\0b\\n\\0'", b"a\0\0b\n\0"),
    "only newlines": ("printf '\\n\\n\\n'", b"\n\n\n"),
    "nothing": ("true", b""),
}


class Bench:
    """Sandboxes in roots of their own, buried one after another."""

    def __init__(self, base: str, run_dir: str) -> None:
        self.layout = Layout(
            state_dir=f"{base}/state",
            run_dir=run_dir,
            filestore=f"{base}/filestore",
            templates=f"{base}/templates",
            cgroup_root=f"axern-bench-{os.getpid()}",
            hierarchies=cgroup.find_hierarchies(),
        )
        self.layout.prepare()
        self.rootfs = template.make_busybox(self.layout.templates).rootfs
        self.serial = 0

    def spec(self, runtime: str, script: str) -> SandboxSpec:
        """Return the next sandbox, which runs *script*."""
        self.serial += 1
        return SandboxSpec(
            sandbox_id=f"bench-{self.serial:06d}",
            runtime=runtime,
            argv=("sh", "-c", script),
            env=(),
            cwd="/",
            rootfs=self.rootfs,
            rootfs_readonly=False,
            lane=0,
            hostname="bench",
        )

    def run(self, runtime: str, script: str) -> tuple[dict[str, float], int, dict[str, bytes]]:
        """Run *script* and return milliseconds of each step, the exit code and both outputs."""
        spec = self.spec(runtime, script)
        paths = self.layout.sandbox(spec.sandbox_id)
        marks = [time.perf_counter()]
        launch.create(spec, self.layout)
        marks.append(time.perf_counter())
        launch.start(spec, self.layout)
        marks.append(time.perf_counter())
        while (ended := monitor.read_exit(paths)) is None:
            time.sleep(0.0005)
        marks.append(time.perf_counter())
        outputs = written(paths.log)
        marks_before_bury = time.perf_counter()
        teardown.bury(runtime, self.layout, spec.sandbox_id)
        marks_after_bury = time.perf_counter()
        names = ("create", "start", "exit seen")
        steps = {n: (b - a) * 1e3 for n, a, b in zip(names, marks, marks[1:], strict=False)}
        steps["to seen exit"] = (marks[3] - marks[0]) * 1e3
        steps["bury"] = (marks_after_bury - marks_before_bury) * 1e3
        return steps, ended.exit_code, outputs

    def raw(self, runtime: str, folder: str) -> float:
        """Run `true` in the foreground by the bare runtime and return milliseconds."""
        self.serial += 1
        options = ["--network=none", "--ignore-cgroups"] if runtime == "runsc" else []
        argv = [runtime, f"--root={self.layout.run_dir}/raw-{runtime}", *options, "run"]
        began = time.perf_counter()
        subprocess.run(
            [*argv, f"raw-{self.serial:06d}"], cwd=folder, stdin=subprocess.DEVNULL, check=True
        )
        return (time.perf_counter() - began) * 1e3

    def raw_bundle(self, base: str) -> str:
        """Make a bundle as `runc spec` does, with a root file system of its own."""
        folder = f"{base}/raw-bundle"
        os.makedirs(folder)
        shutil.copytree(self.rootfs, f"{folder}/rootfs", symlinks=True)
        subprocess.run(["runc", "spec"], cwd=folder, check=True)
        with open(f"{folder}/config.json", encoding="utf-8") as file:
            config = json.load(file)
        config["process"] |= {"terminal": False, "args": ["/bin/true"]}
        config["mounts"] = [m for m in config["mounts"] if m["type"] != "cgroup"]
        config["linux"]["cgroupsPath"] = f"/{self.layout.cgroup_root}/raw"
        with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
            json.dump(config, file)
        return folder

    def raw_in_our_bundle(self, runtime: str) -> float:
        """Run `true` by the bare runtime in a bundle as Axern makes it; return milliseconds."""
        spec = self.spec(runtime, "exec true")
        paths = self.layout.sandbox(spec.sandbox_id)
        driver = launch.runtime_for(runtime, self.layout)
        rootfs.create_folders(spec, paths, maps_ids=driver.maps_ids)
        rootfs.mount(spec, paths, maps_ids=driver.maps_ids)
        config = bundle.build(spec, paths, maps_ids=driver.maps_ids)
        bundle.write(config, paths.config)
        options = driver.create_options(paths.overlay, enforced=False)
        argv = [driver.binary, *options, "run", "--bundle", paths.bundle, spec.sandbox_id]
        began = time.perf_counter()
        subprocess.run(argv, stdin=subprocess.DEVNULL, check=True)
        ended = time.perf_counter()
        teardown.bury(runtime, self.layout, spec.sandbox_id)
        return (ended - began) * 1e3


def measure_cost(bench: Bench, base: str, rounds: int) -> dict[str, dict[str, float]]:
    """Interleave raw runs and monitored runs of `true`; return medians in milliseconds."""
    folder = bench.raw_bundle(base)
    figures: dict[str, dict[str, list[float]]] = {"runc": {}, "runsc": {}}
    for round_number in range(rounds + 1):
        for runtime, columns in figures.items():
            steps = {
                "raw run": bench.raw(runtime, folder),
                "our bundle": bench.raw_in_our_bundle(runtime),
                **bench.run(runtime, "exec true")[0],
            }
            for name, value in steps.items():
                if round_number:
                    columns.setdefault(name, []).append(value)
    medians = {
        runtime: {name: round(statistics.median(values), 1) for name, values in columns.items()}
        for runtime, columns in figures.items()
    }
    for row in medians.values():
        row["ratio"] = round(row["to seen exit"] / row["raw run"], 2)
    return medians


def check_bytes(bench: Bench) -> dict[str, bool]:
    """Send awkward endings and 1 MiB of noise through both outputs; say which came back whole."""
    noise = os.urandom(STREAM_BYTES)
    noise_path = f"{bench.rootfs}/noise"
    with open(noise_path, "wb") as file:
        file.write(noise)
    results: dict[str, bool] = {}
    for runtime in ("runc", "runsc"):
        for name, (script, expected) in ENDINGS.items():
            _, code, outputs = bench.run(runtime, f"({script}); ({script}) >&2; exit 7")
            whole = code == 7 and outputs == {"stdout": expected, "stderr": expected}
            results[f"{runtime}: {name}"] = whole
        began = time.perf_counter()
        _, code, outputs = bench.run(runtime, "cat /noise & cat /noise >&2; wait; exit 7")
        digests = {hashlib.sha256(data).digest() for data in outputs.values()}
        whole = code == 7 and digests == {hashlib.sha256(noise).digest()}
        results[f"{runtime}: 1 MiB of noise on both at once"] = whole
        print(f"{runtime}: 2 MiB through the monitor in {time.perf_counter() - began:.2f} s")
    os.unlink(noise_path)
    return results


def check_exits(bench: Bench, count: int) -> dict[str, bool]:
    """Run *count* very short workloads each; say whether every code arrived."""
    outcome: dict[str, bool] = {}
    for runtime in ("runc", "runsc"):
        codes = [bench.run(runtime, f"exit {n % 256}")[1] for n in range(count)]
        outcome[f"{runtime}: {count} exit codes"] = codes == [n % 256 for n in range(count)]
    return outcome


def check_rotation(bench: Bench) -> dict[str, bool]:
    """Name and lay out the log's files while they are written; count the lines."""
    lines = 200_000
    spec = bench.spec("runc", f"seq {lines}")
    log = bench.layout.sandbox(spec.sandbox_id).log
    launch.create(spec, bench.layout, log_max_bytes=ROTATED_BYTES)
    launch.start(spec, bench.layout)
    while monitor.read_exit(bench.layout.sandbox(spec.sandbox_id)) is None:
        segments.settle(log, ROTATED_BYTES, is_live=True)
        time.sleep(0.002)
    segments.settle(log, ROTATED_BYTES, is_live=False)
    kept, files = written(log)["stdout"], len(segments.survey(log))
    teardown.bury("runc", bench.layout, spec.sandbox_id)
    expected = b"".join(b"%d\n" % (n + 1) for n in range(lines))
    return {f"runc: {lines} lines over {files} files": kept == expected}


def written(log: str) -> dict[str, bytes]:
    """Return both outputs whose log is *log*."""
    outputs = {"stdout": b"", "stderr": b""}
    unpacker, position = Unpacker(), output.BEGINNING
    while (piece := output.read(log, position)).after != position:
        for part in unpacker.unpack(piece.text):
            outputs[part.stream] += part.data
        position = piece.after
    return outputs


def resident_kib(bench: Bench) -> int:
    """Return the resident memory of one idle monitor, in KiB."""
    spec = bench.spec("runc", "sleep 60")
    created = launch.create(spec, bench.layout)
    launch.start(spec, bench.layout)
    with open(f"/proc/{created.monitor.pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    teardown.bury("runc", bench.layout, spec.sandbox_id)
    return int(line.split()[1])


def main() -> None:
    """Print a table and one line of JSON."""
    options = common.parse(common.arguments(__doc__))
    rounds = 1 if options.quick else max(options.rounds, ROUNDS)
    base = tempfile.mkdtemp(prefix="axern-bench-")
    run_dir = tempfile.mkdtemp(prefix="axern-bench-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    bench = Bench(base, run_dir)
    try:
        costs = measure_cost(bench, base, rounds)
        checks = check_bytes(bench) | check_exits(bench, 4 * rounds) | check_rotation(bench)
        memory_kib = resident_kib(bench)
    finally:
        bench.layout.dismantle()
        for folder in (base, run_dir):
            shutil.rmtree(folder)
    names = list(costs["runc"])
    print("\nmilliseconds  " + "".join(f"{name:>14}" for name in names))
    for runtime, columns in costs.items():
        print(f"{runtime:<14}" + "".join(f"{columns[name]:>14}" for name in names))
    print(f"\nidle monitor: {memory_kib} KiB resident")
    for name, whole in checks.items():
        print(f"{'whole' if whole else 'LOST':<6}{name}")
    print(json.dumps({"costs_ms": costs, "checks": checks, "monitor_rss_kib": memory_kib}))
    assert all(checks.values())


if __name__ == "__main__":
    main()
