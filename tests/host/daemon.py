"""A real daemon on temporary folders, its command line, and the proof that nothing is left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axern import config
from axern.api.client import Client
from axern.errors import DaemonUnreachable
from axern.failpoint import VARIABLE
from axern.host import cgroup, filestore
from axern.runtime.configured import layout_of
from axern.runtime.layout import Layout
from tests.host.conftest import VOLATILE, Lab, command_lines, wait_until

START_LIMIT_S = 300.0


@dataclass(slots=True)
class DaemonLab:
    """One ledger and one set of folders; daemons come and go on them."""

    base: str
    layout: Layout
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def config_path(self) -> str:
        """The configuration that daemon and command line share."""
        return f"{self.base}/axern.toml"

    @property
    def socket(self) -> str:
        """The API socket."""
        return f"{self.layout.run_dir}/axernd.sock"

    def spawn(
        self,
        failpoint: str | None = None,
        *,
        through: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a daemon and return at once; it dies at *failpoint* if one is named.

        It is started by the program *through*, which becomes it.
        """
        dying = {VARIABLE: failpoint} if failpoint else {}
        argv = [sys.executable, "-m", "axern.daemon", "--config", self.config_path]
        with open(f"{self.base}/axernd.log", "ab") as log:
            process = subprocess.Popen(
                [*through, *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **dying, **(environment or {})},
                pass_fds=pass_fds,
            )
        self.processes.append(process)
        return process

    def start(self, failpoint: str | None = None) -> subprocess.Popen[bytes]:
        """Start a daemon and wait until it answers."""
        process = self.spawn(failpoint)

        def answers() -> bool:
            assert process.poll() is None, self.log()
            try:
                with Client(self.socket) as client:
                    client.health()
            except DaemonUnreachable:
                return False
            return True

        wait_until(answers, START_LIMIT_S)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End a daemon as a crash would."""
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """End a daemon in good order and return its exit code."""
        process.send_signal(signal.SIGTERM)
        return process.wait(START_LIMIT_S)

    def forget_generations(self) -> None:
        """Lose what this boot knows of ledgers, as a boot does."""
        for path in Path(self.layout.run_dir).glob("*.generation"):
            path.unlink()

    def log(self) -> str:
        """Return what every daemon has said."""
        with open(f"{self.base}/axernd.log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the daemon."""
        with Client(self.socket) as client:
            return client.request(method, path, body)

    def argv(self, *arguments: str) -> list[str]:
        """Return the command line of `axern` for these folders."""
        return [sys.executable, "-m", "axern", "--config", self.config_path, *arguments]

    def axern(self, *arguments: str, limit_s: float = 120) -> subprocess.CompletedProcess[bytes]:
        """Run `axern` to its end."""
        return subprocess.run(
            self.argv(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=limit_s,
        )

    def popen(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `axern` with both outputs in pipes."""
        return subprocess.Popen(
            self.argv(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def detach(self, runtime: str, *argv: str) -> str:
        """Start a small detached run and return its id."""
        done = self.axern(
            "run",
            "--detach",
            "--runtime-class",
            runtime,
            "--request-cpu",
            "10m",
            "--request-memory",
            "16MiB",
            "--",
            *argv,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def run(self, run_id: str) -> dict[str, Any]:
        """Return a run's JSON object."""
        found: dict[str, Any] = self.request("GET", f"/v2/runs/{run_id}")["run"]
        return found

    def reservations(self) -> list[dict[str, Any]]:
        """Return the ledger's entries as the daemon tells them."""
        found: list[dict[str, Any]] = self.request("GET", "/v2/reservations")["reservations"]
        return found

    def wait_status(self, run_id: str, *statuses: str, limit_s: float = 60) -> dict[str, Any]:
        """Wait until a run has one of *statuses*."""
        wait_until(lambda: self.run(run_id)["status"] in statuses, limit_s)
        return self.run(run_id)

    def wait_empty(self, limit_s: float = 60) -> None:
        """Wait until the ledger has no entry."""
        wait_until(lambda: not self.reservations(), limit_s)

    def leftovers(self) -> list[str]:
        """Name what is left of any sandbox: mounts, folders, cgroups, processes."""
        found = Lab(self.layout, "").leftovers()
        mine = (self.base.encode(), self.layout.run_dir.encode())
        daemons = {process.pid for process in self.processes}
        return found + [
            f"process {pid}: {words!r}"
            for pid, words in command_lines()
            if any(path in words for path in mine)
            and pid not in daemons
            and b"axern.toml" not in words
        ]


@contextmanager
def daemon_lab(**keys: Any) -> Iterator[DaemonLab]:
    """Make folders and a configuration; afterwards end everything and prove that nothing is left.

    *keys* are added to the configuration.
    """
    base = tempfile.mkdtemp(prefix="axern-test-")
    run_dir = tempfile.mkdtemp(prefix="axern-test-", dir=VOLATILE)
    for folder in (base, run_dir):
        os.chmod(folder, 0o711)  # noqa: S103 - a sandbox's root must reach its folder below it
    settings = {
        "state_dir": f"{base}/state",
        "run_dir": run_dir,
        "cgroup_root": f"axern-test-{os.getpid()}-{secrets.token_hex(4)}",
        "cgroup_enforcement": "disabled_dev",
        "stop_grace": "2s",
        "tick": "1s",
        **keys,
    }
    path = f"{base}/axern.toml"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    lab = DaemonLab(base, layout_of(config.load(path)))
    try:
        yield lab
        _end(lab)
        left = lab.leftovers()
        assert left == [], (left, lab.log()[-4000:])
    finally:
        for process in lab.processes:
            if process.poll() is None:
                lab.kill(process)
        _remove(lab)


def _end(lab: DaemonLab) -> None:
    """Cancel what runs, through a daemon of its own if none is there, and stop that."""
    alive = [process for process in lab.processes if process.poll() is None]
    daemon = alive[0] if alive else lab.start()
    for entry in lab.reservations():
        if entry["owner"]["kind"] == "run":
            lab.request("DELETE", f"/v2/runs/{entry['id']}?grace_ms=0")
        else:
            lab.request("DELETE", f"/v2/reservations/{entry['id']}")
    lab.wait_empty()
    assert lab.stop(daemon) == 0, lab.log()[-4000:]


def _remove(lab: DaemonLab) -> None:
    """Remove all of it, also where a failed test left something running."""
    layout = lab.layout
    root = cgroup.Cgroup(layout.hierarchies, layout.cgroup_root)
    root.kill()
    root.wait_empty(10)
    layout.dismantle()
    for folder in (lab.base, layout.run_dir):
        filestore.remove_tree(folder)
