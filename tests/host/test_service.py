"""A daemon that a service manager starts: it is told of, handed a socket, and leaks neither."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from axern.api.client import Client
from axern.host.systemd import HANDED_OVER
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
MANAGER = """
import os, sys
for number, given in enumerate(sys.argv[1].split(",")):
    os.dup2(int(given), 3 + number)
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What systemd does between fork and exec: descriptors from 3 on, and the pid that they are for."""


class Manager:
    """A service manager: it listens for the daemon and hears what that says of itself."""

    def __init__(self, lab: DaemonLab, notify: socket.socket, api: socket.socket) -> None:
        self.lab = lab
        self.notify = notify
        self.api = api
        self.heard: list[str] = []

    def start(
        self, *sockets: socket.socket, watchdog_s: float = 3.0, path: str = os.environ["PATH"]
    ) -> subprocess.Popen[bytes]:
        given = [os.dup(made.fileno()) for made in sockets or (self.api,)]
        apart = [os.dup2(number, 100 + index) for index, number in enumerate(given)]
        try:
            return self.lab.spawn(
                through=(sys.executable, "-c", MANAGER, ",".join(map(str, apart))),
                environment={
                    "NOTIFY_SOCKET": self.notify.getsockname(),
                    "WATCHDOG_USEC": str(int(watchdog_s * 1_000_000)),
                    "LISTEN_FDS": str(len(apart)),
                    "LISTEN_FDNAMES": ":".join("api" for _ in apart),
                    "INVOCATION_ID": "0" * 32,
                    "PATH": path,
                },
                pass_fds=tuple(apart),
            )
        finally:
            for number in (*given, *apart):
                os.close(number)

    def hear(self) -> list[str]:
        """Return all that was said so far."""
        while True:
            try:
                self.heard += self.notify.recv(4096, socket.MSG_DONTWAIT).decode().split("\n")
            except BlockingIOError:
                return self.heard

    def ready(self) -> None:
        wait_until(lambda: "READY=1" in self.hear(), 60)


@contextmanager
def managed(lab: DaemonLab) -> Iterator[Manager]:
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as api,
    ):
        notify.bind(f"{lab.base}/notify")
        api.bind(lab.socket)
        os.chmod(lab.socket, 0o660)
        api.listen()
        yield Manager(lab, notify, api)
        os.unlink(lab.socket)


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def test_it_says_when_it_is_ready_alive_and_about_to_end(lab: DaemonLab) -> None:
    with managed(lab) as manager:
        daemon = manager.start()
        manager.ready()
        wait_until(lambda: manager.hear().count("WATCHDOG=1") >= 3, 30)
        assert any(line.startswith("STATUS=0 reservations") for line in manager.heard)
        assert lab.stop(daemon) == 0
        assert "STOPPING=1" in manager.hear()
        assert os.path.exists(lab.socket), "the socket is its manager's"


def test_who_comes_while_it_starts_anew_is_answered(lab: DaemonLab) -> None:
    with managed(lab) as manager:
        first = manager.start()
        manager.ready()
        assert lab.stop(first) == 0
        with Client(lab.socket) as client:
            began_s = time.monotonic()
            second = manager.start()
            assert client.request("GET", "/v2/health")["status"] == "ok"
            assert time.monotonic() - began_s < 60
        assert lab.stop(second) == 0


def test_one_that_stands_still_is_silent(lab: DaemonLab) -> None:
    with managed(lab) as manager:
        daemon = manager.start(watchdog_s=1.5)
        manager.ready()
        wait_until(lambda: "WATCHDOG=1" in manager.hear(), 30)
        daemon.send_signal(signal.SIGSTOP)
        wait_until(lambda: _state(daemon.pid) == "T", 10)
        said = len(manager.hear())
        time.sleep(2)
        assert len(manager.hear()) == said
        daemon.send_signal(signal.SIGCONT)
        wait_until(lambda: "WATCHDOG=1" in manager.hear()[said:], 30)
        assert lab.stop(daemon) == 0


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.parametrize("wrong", ["two", "mode", "elsewhere"])
def test_a_socket_that_is_not_ours_ends_it_for_good(lab: DaemonLab, wrong: str) -> None:
    with managed(lab) as manager, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"{lab.base}/other")
        other.listen()
        sockets = {"two": (manager.api, other), "mode": (manager.api,), "elsewhere": (other,)}
        if wrong == "mode":
            os.chmod(lab.socket, 0o666)  # noqa: S103 - what must be refused
        assert manager.start(*sockets[wrong]).wait(60) == 78
        assert "READY=1" not in manager.hear()
        assert any(line.startswith("STATUS=") for line in manager.heard)
    assert lab.stop(lab.start()) == 0


def test_no_child_finds_what_was_handed_over(tmp_path: Path, runtime: str) -> None:
    """Every program that a run needs says what it got, each process that stays is looked at."""
    seen = tmp_path / "seen"
    wrappers = {name: _spy(tmp_path, name, seen) for name in ("conmon", "runc", "runsc")}
    with daemon_lab(**wrappers) as lab, managed(lab) as manager:
        daemon = manager.start()
        manager.ready()
        run_id = lab.detach(runtime, "sh", "-c", "env >/environment; sleep 600")
        lab.wait_status(run_id, "running")
        inodes = {_inode(manager.api), _inode(manager.notify)}
        root = Path(lab.layout.hierarchies.unified, lab.layout.cgroup_root)
        pids = [int(word) for path in root.rglob("cgroup.procs") for word in _words(path)]
        assert len(pids) >= 2
        for pid in pids:
            assert not _leaked(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")), pid
            assert not inodes & _sockets(pid), pid
        lines = seen.read_bytes().split(b"\n")
        assert {b"SPY=conmon", b"SPY=" + runtime.encode()} <= set(lines)
        assert not _leaked(lines)
        assert _leaked(Path(f"/proc/{daemon.pid}/environ").read_bytes().split(b"\0")), "control"
        assert lab.stop(daemon) == 0


def _leaked(lines: list[bytes]) -> list[bytes]:
    return [line for line in lines if line.partition(b"=")[0].decode() in HANDED_OVER]


def _spy(folder: Path, name: str, seen: Path) -> str:
    """Return a program that writes its environment down and becomes the real *name*."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\n{{ echo SPY={name}; env; }} >>{seen}\nexec /usr/bin/{name} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return str(path)


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def _inode(made: socket.socket) -> int:
    return os.fstat(made.fileno()).st_ino


def _sockets(pid: int) -> set[int]:
    """Return the inodes of the sockets that the process *pid* has open."""
    found = (os.stat(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return {status.st_ino for status in found if stat.S_ISSOCK(status.st_mode)}


@pytest.mark.parametrize("state", ["stopping", "running"])
def test_sandboxes_end_in_order_where_the_host_goes_down(
    lab: DaemonLab, tmp_path: Path, state: str
) -> None:
    """A systemctl of our own says how the host is: the machine of `tests/vm` has a real one."""
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f"#!/bin/sh\necho {state}\n", encoding="utf-8")
    systemctl.chmod(0o755)
    with managed(lab) as manager:
        daemon = manager.start(path=f"{tmp_path}:{os.environ['PATH']}")
        manager.ready()
        ids = [lab.detach(runtime, "sleep", "600") for runtime in ("runc", "runsc")]
        for run_id in ids:
            lab.wait_status(run_id, "running")
        assert lab.stop(daemon) == 0
        down = state == "stopping"
        words = "the host goes down, and sandboxes end" if down else "sandboxes go on"
        assert f"STATUS=stopping; {words}" in manager.hear()
        again = manager.start()
        wait_until(lambda: manager.hear().count("READY=1") == 2, 60)
        for run in map(lab.run, ids):
            assert run["status"] == ("failed" if down else "running")
            assert run["diagnostic_code"] == ("host-shutdown" if down else None)
        assert lab.stop(again) == 0


def test_a_daemon_refuses_to_lose_its_sandboxes(lab: DaemonLab, tmp_path: Path) -> None:
    """Another control group than the one in which they are would take them for gone."""
    daemon = lab.start()
    run_id = lab.detach("runc", "sleep", "600")
    lab.wait_status(run_id, "running")
    assert lab.stop(daemon) == 0
    _configure(lab, lambda text: text.replace("axern-test-", "axern-test-elsewhere-"))
    assert lab.spawn().wait(60) == 78
    assert lab.layout.cgroup_root in lab.log()
    _configure(lab, lambda text: text.replace("axern-test-elsewhere-", "axern-test-"))
    lab.start()
    assert lab.run(run_id)["status"] == "running"


def _configure(lab: DaemonLab, change: Callable[[str], str]) -> None:
    """Rewrite the line of the control group."""
    path = Path(lab.config_path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text(
        "".join(change(line) if line.startswith("cgroup_root") else line for line in lines),
        encoding="utf-8",
    )
