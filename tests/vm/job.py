"""The machine job: boot this checkout as installed, run the machine's tests, bring it all home.

It runs beside other tests, so it is a process of its own: `python -m tests.vm.job FOLDER`. FOLDER
gets `junit-N.xml` and `tests-N.log` for each boot N, `job.log`, `journal.log`, `serial.log`, and at
the very end `result`: empty if every step was made, else what went wrong. Whether tests passed
stands in the JUnit files.

Boot 0 runs what is marked `machine`, in three streams: two processors, and tests that wait. Then
the machine is rebooted, and boot 1 runs what is marked `machine(boot=1)`; in the long form its
power is then cut without a word, and boot 2 runs what is marked so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.vm.guest import WORKTREE, Guest, GuestDied
from tests.vm.image import obtain
from tests.vm.installed import make_disk
from tests.vm.recipe import ROOT

LOGS = ROOT / "build" / "vm"
MARK = "mark.machine"
"""What a test module says in which a test is for the machine."""
LONG = os.environ.get("AXERN_LONG") == "1"
TESTS_LIMIT_S = 5400 if LONG else 2400
"""For all tests of one boot: several times what they take on a host that does nothing else."""

RESULTS = "/var/lib/axern-vm"
UNITS = "axernd.socket axernd.service"
SET_UP = f"axern node setup --filestore-size 2GiB && systemctl enable --quiet {UNITS}"
LEAVE = (
    f"cd {WORKTREE} && systemctl start {UNITS} && "
    f"/opt/tests/bin/python -m tests.machine.leave {RESULTS}/left.json"
)
UNIT, DAEMONS = "test_unit.py", "test_limits_daemon.py"
"""What runs beside the rest in boot 0: the installed service, and daemons of the tests' own."""


def modules(boot: int | None = None) -> list[str]:
    """Return the paths of the modules that have tests for the machine, or for one of its boots."""
    folders = {0: ("host",), None: ("host", "machine")}.get(boot, ("machine",))
    return [
        str(path.relative_to(ROOT))
        for folder in folders
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))
        if MARK in path.read_text(encoding="utf-8")
    ]


def run_tests(guest: Guest, logs: Path, boot: int, name: str, paths: list[str]) -> None:
    """Run the tests in *paths* of boot number *boot* and fetch their JUnit file.

    Raises:
        GuestDied: No result came back.
    """
    junit = f"{RESULTS}/junit-{name}.xml"
    # A folder for each stream: host tests hold a lock in it against each other.
    argv = ["env", "AXERN_REQUIRE=cgroup,quota,systemd", f"AXERN_MACHINE={boot}"]
    argv += [f"TMPDIR=/var/tmp/{name}", "python", "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    for plugin in ("randomly", "xdist", "hypothesispytest"):
        argv += ["-p", f"no:{plugin}"]
    argv += ["--timeout", str(TESTS_LIMIT_S)]
    argv += ["--durations", "0", "--durations-min", "1", f"--junitxml={junit}", *paths]
    guest.must(f"mkdir -p -m 1777 /var/tmp/{name}")
    with open(logs / f"tests-{name}.log", "wb") as log:
        code = guest.run(argv, log, TESTS_LIMIT_S)
    if code not in {0, 1}:  # passed, failed
        raise GuestDied(f"the tests of boot {boot} ended with {code}: see {log.name}")
    fetch(guest, junit, logs / f"junit-{name}.xml")


def first_boot(guest: Guest, logs: Path, note: Callable[[str], None]) -> None:
    """Run the tests of boot 0 in streams, one after setting the node up; raises as they do."""
    mine = modules(0)
    alone = {name: [path for path in mine if path.endswith(name)] for name in (UNIT, DAEMONS)}
    rest = [path for path in mine if path not in (*alone[UNIT], *alone[DAEMONS])]

    def stream(name: str, paths: list[str]) -> None:
        run_tests(guest, logs, 0, f"0-{name}", paths)
        note(f"tests: {name}")

    def unit() -> None:
        guest.must(SET_UP)
        note("node setup")
        stream("unit", alone[UNIT])
        guest.must(LEAVE)
        note("sandboxes that the reboot meets")

    with ThreadPoolExecutor(3) as streams:
        all_of_them = [
            streams.submit(unit),
            streams.submit(stream, "daemons", alone[DAEMONS]),
            streams.submit(stream, "sandboxes", rest),
        ]
        try:
            for each in all_of_them:
                each.result()
        except BaseException:
            guest.stop()  # else the others are waited for
            raise


def fetch(guest: Guest, path: str, target: Path) -> None:
    """Copy a file out of the machine.

    Raises:
        GuestDied: It can't be read.
    """
    with open(target, "wb") as file:
        if guest.ssh(f"cat {path}", stdout=file).returncode != 0:
            raise GuestDied(f"{path} could not be fetched: see {guest.serial_log}")


def steps(
    guest: Guest, logs: Path, note: Callable[[str], None]
) -> list[tuple[str, Callable[[], object]]]:
    """Return what the job does, in order, with a name for each step."""
    base = guest.state / "base.img"
    mine = modules(1)
    cut: list[tuple[str, Callable[[], object]]] = [
        ("sandboxes that the power cut ends", lambda: guest.must(LEAVE)),
        ("power cut", guest.cut_power),
        ("tests after the power cut", lambda: run_tests(guest, logs, 2, "2", mine)),
    ]
    return [
        ("disk with this checkout", lambda: make_disk(guest.image, base)),
        ("start", lambda: guest.start(base)),
        ("tests", lambda: first_boot(guest, logs, note)),
        ("reboot", guest.reboot),
        ("tests after the reboot", lambda: run_tests(guest, logs, 1, "1", mine)),
        *(cut if LONG else ()),
        ("journal", lambda: read_journal(guest, logs)),
        ("control: a machine that dies", lambda: let_it_die(guest)),
    ]


def read_journal(guest: Guest, logs: Path) -> None:
    """Fetch the journals of all boots."""
    with open(logs / "journal.log", "wb") as file:
        guest.ssh("journalctl --no-pager --merge -o short-monotonic", stdout=file)


def let_it_die(guest: Guest) -> None:
    """Kill QEMU under a command that runs inside.

    Raises:
        RuntimeError: Nobody noticed.
    """
    killer = threading.Timer(2, lambda: os.kill(guest.pid() or os.getpid(), signal.SIGKILL))
    killer.start()
    try:
        guest.run(["sleep", "1000"], limit_s=120)
    except GuestDied as noticed:
        if str(guest.serial_log) not in str(noticed):
            raise RuntimeError(f"it names no log: {noticed}") from noticed
        return
    finally:
        killer.join()
    raise RuntimeError("a machine died under its tests, and nobody noticed")


def run_job(logs: Path) -> str:
    """Do the whole job, logs and results to *logs*; return what went wrong, or nothing."""
    began_s = time.monotonic()
    with open(logs / "job.log", "w", encoding="utf-8") as log:

        def note(name: str) -> None:
            cpu_s = guest.cpu_s()
            log.write(f"{time.monotonic() - began_s:6.0f} s {cpu_s:6.0f} s of CPU  {name}\n")
            log.flush()

        guest = Guest(logs / "guest", obtain())
        note("image")
        return taken(guest, logs, note)


def taken(guest: Guest, logs: Path, note: Callable[[str], None]) -> str:
    """Take the steps with *guest*, which is gone afterwards; return what went wrong, or nothing."""
    guest.state.mkdir(parents=True)
    try:
        for name, step in steps(guest, logs, note):
            step()
            note(name)
    except (GuestDied, RuntimeError, subprocess.SubprocessError) as error:
        return f"{error}\n"
    finally:
        if guest.pid() is not None:
            read_journal(guest, logs)
        guest.stop()
        if guest.serial_log.exists():
            shutil.copy(guest.serial_log, logs / "serial.log")
        guest.remove()
    return ""


def end_with(owner: int) -> None:
    """End this process in good order once the process *owner* is gone."""

    def watch() -> None:
        while os.path.exists(f"/proc/{owner}"):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(argv: list[str]) -> int:
    """Run the job in the folder that is named, for the process whose number may follow."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if len(argv) > 1:
        end_with(int(argv[1]))
    logs = Path(argv[0]).resolve()
    logs.mkdir(parents=True, exist_ok=True)
    for old in (*logs.glob("junit-*.xml"), logs / "result"):
        old.unlink(missing_ok=True)
    try:
        result = run_job(logs)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}\n"
        raise
    finally:
        (logs / "result.new").write_text(result, encoding="utf-8")
        os.replace(logs / "result.new", logs / "result")
    sys.stdout.write(result)
    return 1 if result else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [str(LOGS)]))
