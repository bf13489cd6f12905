"""Measures how fast a command answers, beside bare Python, `docker ps` and `podman ps`.

usage: python -m bench.start_up [--rounds N]; needs root, runc, runsc, conmon and busybox-static.
CPU time, the command's own, moves less with what else the machine does. DOCKER_HOST names another
docker daemon than the system's. What can't be measured is said.
"""

from __future__ import annotations

import compileall
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import common
from tests.host.daemon import daemon_lab

BARE = "python -c pass"
SCRIPT = str(Path(sys.executable).with_name("axern"))
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
RESERVATIONS = 20


class Listener:
    """Take connections on a socket, note when, and hang up: how far a command is by then."""

    def __init__(self, path: str) -> None:
        self.arrived_s = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            self.arrived_s = time.perf_counter()
            connection.close()


def to_exit(*argv: str) -> common.Case:
    """Measure a command from its start to its end."""

    def turn() -> dict[str, float]:
        began_s = time.perf_counter()
        pipe = subprocess.DEVNULL
        process = subprocess.Popen(argv, stdout=pipe, stderr=pipe, stdin=pipe, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        took_s = time.perf_counter() - began_s
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, argv
        return {"ms": took_s * 1e3, "cpu_ms": (usage.ru_utime + usage.ru_stime) * 1e3}

    return turn


def to_socket(listener: Listener, *argv: str) -> common.Case:
    """Measure a command from its start until it reaches the socket; there it is turned away."""

    def turn() -> dict[str, float]:
        began_s = time.perf_counter()
        listener.arrived_s = 0.0
        done = subprocess.run(argv, check=False, capture_output=True, env=ENVIRONMENT)
        assert done.returncode == 125, done
        assert listener.arrived_s > began_s
        return {"ms": (listener.arrived_s - began_s) * 1e3}

    return turn


def peers() -> Iterator[tuple[str, common.Case]]:
    """Yield what there is to compare with, and say what is missing."""
    for program in ("docker", "podman"):
        path = shutil.which(program)
        if path is None:
            print(f"{program} ps: not measured: {program} is not installed")
            continue
        done = subprocess.run([path, "ps"], capture_output=True, check=False, env=ENVIRONMENT)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines()[-1]
            print(f"{program} ps: not measured: {why}")
            continue
        yield f"{program} ps", to_exit(path, "ps")


@contextmanager
def cases(folder: str) -> Iterator[dict[str, Callable[[], dict[str, float]]]]:
    """Yield what is measured, while the daemon that it needs runs."""
    listener = Listener(f"{folder}/listener.sock")
    with daemon_lab() as lab, daemon_lab() as down:
        lab.start()
        down.stop(down.start())
        for _ in range(RESERVATIONS):
            lab.detach("runc", "sleep", "600")
        by_config = (SCRIPT, "--config", lab.config_path)
        flags = ("--request-memory", "16MiB", "--env", "A=1")
        found = {
            BARE: to_exit(sys.executable, "-c", "pass"),
            "axern version": to_exit(SCRIPT, "version"),
            "axern reservations list": to_exit(*by_config, "reservations", "list"),
            "the same, no daemon": to_exit(SCRIPT, "--config", down.config_path, "reservations"),
            "axern run --detach, to the socket": to_socket(
                listener,
                *(SCRIPT, "--socket", f"{folder}/listener.sock"),
                *("run", "--detach", *flags, "--", "true"),
            ),
            "axern --help": to_exit(SCRIPT, "--help"),
            **dict(peers()),
        }
        try:
            yield found  # type: ignore[misc]
        finally:
            for row in lab.reservations():
                lab.axern("run", "cancel", "--grace", "0s", row["id"])
            lab.wait_empty()


def main() -> None:
    """Print a table and one line of JSON."""
    options = common.parse(common.arguments(__doc__))
    rounds = 2 if options.quick else options.rounds
    for package in ("axern", "ledger"):
        compileall.compile_dir(package, quiet=2)
    with tempfile.TemporaryDirectory(prefix="axern-bench-") as folder, cases(folder) as measured:
        medians = common.interleave(measured, rounds)
    bare = medians[BARE]
    rows = []
    for name, figures in medians.items():
        cells = [(f"{value:.1f}", f"{value / bare[key]:.2f}") for key, value in figures.items()]
        rows.append((name, *(cells[0]), *(cells[1] if len(cells) > 1 else ("-", "-"))))
    print(common.table(("", "ms", "x bare Python", "CPU ms", "x bare Python"), rows))
    figures_ms = {name: {k: round(v, 1) for k, v in f.items()} for name, f in medians.items()}
    ratios = {
        f"{name}/{key}": value / bare[key]
        for name, figures in medians.items()
        for key, value in figures.items()
    }
    common.report("start_up", figures_ms, ratios)


if __name__ == "__main__":
    main()
