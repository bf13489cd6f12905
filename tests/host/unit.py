"""The installed service as an operator has it: systemctl, the journal, the API, its sandboxes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from axern.api.client import Client
from ledger.errors import AxernError
from tests.host.conftest import wait_until

UNITS = ("axernd.socket", "axernd.service")
DROP_IN = Path("/run/systemd/system/axernd.service.d")
SLOW_S = 300.0
"""An emulated processor, which others may be using."""
SAY = (
    "id -u; mount -t tmpfs none /mnt || echo refused; echo x >/file && cat /file; exec sleep 36000"
)
"""What a sandbox is allowed, and what not, said by the sandbox."""
SAID = ["0", "refused", "x"]


def systemctl(*words: str) -> str:
    """Run systemctl and return what it says."""
    done = subprocess.run(("systemctl", *words), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + journal()
    return done.stdout


def forget_failures() -> None:
    """Let the units start again, as often as they may; one that is not loaded has none."""
    argv = ("systemctl", "reset-failed", *UNITS)
    subprocess.run(argv, capture_output=True, check=False)


def journal(*words: str) -> str:
    argv = ("journalctl", "--no-pager", "-o", "cat", "-u", "axernd.service", "-b", *words)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def shown(name: str) -> str:
    return systemctl("show", "-P", name, "axernd.service").strip()


def main_pid() -> int:
    return int(shown("MainPID"))


def axern(*words: str, code: int | None = 0) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "axern", *words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert code in (None, done.returncode), (done, journal("-n", "50"))
    return done.stdout if code == 0 else done.stdout + done.stderr


def request(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the daemon from within: a process for each question is slow on an emulated processor."""
    with Client("/run/axern/axernd.sock") as client:
        return client.request(method, path, body, timeout_s=60)


def detach(runtime: str, script: str = "exec sleep 36000", **limits: int) -> str:
    body = {
        "command": ["sh", "-c", script],
        "runtime_class": runtime,
        "requests": {"cpu_milli": 10, "memory_bytes": 64 * 1024**2},
        # Small, since the long form has twenty of them on a filestore of 2 GiB.
        "limits": {"ephemeral_storage_bytes": 16 * 1024**2, **limits},
    }
    made: list[str] = []

    def is_taken() -> bool:
        try:
            made.append(str(request("POST", "/v2/runs", body)["run"]["id"]))
        except AxernError as error:
            if error.code != "busy":  # as while a limit is still being proved, after a start
                raise
        return bool(made)

    wait_until(is_taken, SLOW_S)
    return made[0]


def run_of(run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = request("GET", f"/v2/runs/{run_id}")["run"]
    return found


def status(run_id: str) -> str:
    return str(run_of(run_id)["status"])


def running(run_id: str) -> None:
    """Wait until a run is running; one that ended instead is shown."""
    wait_until(lambda: status(run_id) not in {"reserved", "starting"}, SLOW_S)
    assert status(run_id) == "running", (request("GET", f"/v2/runs/{run_id}"), journal("-n", "30"))


def processes() -> dict[str, set[int]]:
    """Return by sandbox the processes of its workload; of gVisor's, those that nobody traces.

    What gVisor has traced stands for a thread of its guest, and comes and goes.
    """
    root = Path("/sys/fs/cgroup", cgroup_root(), "sandboxes")
    return {
        wall.name: {
            int(pid)
            for path in wall.rglob("cgroup.procs")
            for pid in _words(path)
            if not _is_traced(pid)
        }
        for wall in root.iterdir()
        if wall.is_dir()
    }


def _is_traced(pid: str) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True  # gone, as what is traced may be
    return "\nTracerPid:\t0\n" not in status


def cgroup_root() -> str:
    return Path("/run/axern/cgroup_root").read_text(encoding="utf-8").strip()


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def drop_in(*lines: str) -> None:
    """Change the service for this boot, in the section of the service."""
    DROP_IN.mkdir(parents=True, exist_ok=True)
    (DROP_IN / "test.conf").write_text("\n".join(("[Service]", *lines, "")), encoding="utf-8")
    systemctl("daemon-reload")


def undo_drop_in() -> None:
    if (DROP_IN / "test.conf").exists():
        (DROP_IN / "test.conf").unlink()
        systemctl("daemon-reload")
