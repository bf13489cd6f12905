"""A test machine for people: `python -m tests.vm start|run|pytest|shell|reset|log|stop`.

There is one machine for each checkout; `start` takes about a minute when the image is in the cache.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.vm.guest import Guest, GuestDied
from tests.vm.image import obtain
from tests.vm.recipe import ROOT


def own_guest() -> Guest:
    """Return this checkout's machine, which may not run yet."""
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:10]
    folder = Path(tempfile.gettempdir()) / f"axern-vm-{os.getuid()}-{name}"
    return Guest(folder, obtain())


def started(guest: Guest) -> Guest:
    """Return *guest* running, on a new disk if it did not run yet."""
    if guest.pid() is None:
        shutil.rmtree(guest.state, ignore_errors=True)
        sys.stderr.write("starting a machine (about a minute)\n")
        guest.start()
    guest.wait_ready()
    return guest


def main(argv: list[str]) -> int:
    """Do what the words say and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.vm", description=__doc__)
    words = parser.add_subparsers(dest="word", required=True)
    words.add_parser("start", help="start it; nothing to do if it runs")
    words.add_parser("stop", help="end it and remove its disk")
    words.add_parser("reset", help="cut its power and start it again on the same disk")
    words.add_parser("log", help="print where its console's log is")
    words.add_parser("shell", help="open a shell in it")
    words.add_parser("run", help="run a program in it, in the checkout")
    words.add_parser("pytest", help="run pytest in it with these arguments")
    options, rest = parser.parse_known_args(argv)
    rest = rest[1:] if rest[:1] == ["--"] else rest
    guest = own_guest()
    match options.word:
        case "stop":
            guest.remove()
            return 0
        case "log":
            sys.stdout.write(f"{guest.serial_log}\n")
            return 0
        case "reset":
            guest.stop()
            guest.power_on()
            return 0
    started(guest).sync()
    match options.word:
        case "shell":
            ssh = guest.ssh_argv("-t")
            line = "cd /axern; PATH=/opt/tests/bin:$PATH exec bash -l"
            return subprocess.run([*ssh, line], check=False).returncode
        case "run":
            return guest.run(rest)
        case "pytest":
            there = ["env", "AXERN_MACHINE=any", "AXERN_REQUIRE=cgroup,quota,systemd"]
            there += ["python", "-m", "pytest", "-p", "no:cacheprovider"]
            return guest.run([*there, *rest])
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GuestDied as gone:
        sys.stderr.write(f"{gone}\n")
        sys.exit(1)
