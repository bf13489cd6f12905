"""Many clients, slow clients, and a daemon without descriptors: the honest are still served."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from axern.api.client import Client
from axern.api.places import Limits
from tests.abuse.attack import answers
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.unit.api.served import read_all, read_answer

pytestmark = pytest.mark.host

HEALTH = b"GET /v2/health HTTP/1.1\r\n\r\n"
LAST = b"GET /v2/health HTTP/1.1\r\nconnection: close\r\n\r\n"
HALVES = (b"", b"GET /v2/hea", b"POST /v2/runs HTTP/1.1\r\nx: y", b"\r\n")
BODY_HALF = b"POST /v2/runs HTTP/1.1\r\ncontent-length: 9\r\n\r\n{"
HALF_OPEN = 500
ASKED = 300
LIMITS = Limits()
# Imports come first: another user may not be able to read them.
CROWD_OF_ONE_USER = """
import os, socket, sys
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(*[int(sys.argv[2])] * 3)
opened = []
for number in range(int(sys.argv[3])):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(30)
    client.connect(sys.argv[1])
    client.sendall(b"GET /v2/health HTTP/1.1\\r\\n\\r\\n")
    opened.append(client)
print([client.recv(65536)[9:12].decode() for client in opened], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(socket_group="nogroup") as made:
        made.start()
        yield made
        assert "Traceback" not in made.log()


def connect(lab: DaemonLab, stack: ExitStack, wire: bytes = b"") -> socket.socket:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    connection.settimeout(60)
    connection.connect(lab.socket)
    connection.sendall(wire)
    return connection


@pytest.mark.host(alone=True)
def test_half_open_clients_keep_no_honest_one_waiting(lab: DaemonLab) -> None:
    over = threading.Event()
    with ExitStack() as stack:
        halves = [
            connect(lab, stack, (*HALVES, BODY_HALF)[number % 5]) for number in range(HALF_OPEN)
        ]
        trickle = threading.Thread(target=drip, args=(halves[1::5] + halves[2::5], over))
        trickle.start()
        stack.callback(trickle.join)
        stack.callback(over.set)
        taken_s = []
        for number in range(ASKED):
            begun = time.monotonic()
            with Client(lab.socket) as client:
                client.request("GET", ("/v2/health", "/v2/node", "/v2/reservations")[number % 3])
            taken_s.append(time.monotonic() - begun)
    taken_s.sort()
    p99_s = taken_s[ASKED * 99 // 100]
    sys.stdout.write(f"p50 {taken_s[ASKED // 2] * 1000:.1f} ms, p99 {p99_s * 1000:.1f} ms\n")
    assert p99_s < 1.0


def drip(clients: list[socket.socket], over: threading.Event) -> None:
    """Send a byte on each connection every second, as long as they are open."""
    while not over.wait(1.0):
        for client in clients:
            with contextlib.suppress(OSError):
                client.send(b"x")


def test_every_connection_up_to_the_cap_is_served_and_the_next_waits(lab: DaemonLab) -> None:
    with ExitStack() as stack:
        crowd = [connect(lab, stack, HEALTH) for _ in range(LIMITS.connections)]
        assert {read_answer(connection).status for connection in crowd} == {200}
        begun = time.monotonic()
        with ExitStack() as refused:
            assert read_answer(connect(lab, refused, HEALTH)).status == 503
        assert time.monotonic() - begun > 0.9
        waits = connect(lab, stack, HEALTH)
        crowd[0].close()
        assert read_answer(waits).status == 200
    assert lab.request("GET", "/v2/health")


def test_one_user_has_a_cap_and_root_none(lab: DaemonLab) -> None:
    over = 3
    arguments = [lab.socket, "65534", str(LIMITS.connections_per_uid + over)]
    with subprocess.Popen(
        [sys.executable, "-c", CROWD_OF_ONE_USER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout
        statuses = process.stdout.readline().decode()
        assert statuses.count("200") == LIMITS.connections_per_uid
        assert statuses.count("503") == over
        with ExitStack() as stack:
            crowd = [connect(lab, stack, HEALTH) for _ in range(LIMITS.connections_per_uid + over)]
            assert {read_answer(connection).status for connection in crowd} == {200}
        process.communicate()


def test_pipelined_and_unread_answers_hold_up_nobody(lab: DaemonLab) -> None:
    with ExitStack() as stack:
        for _ in range(10):
            deaf = connect(lab, stack)
            deaf.settimeout(0.1)
            with contextlib.suppress(TimeoutError):
                deaf.sendall(b"GET /v2/openapi.json HTTP/1.1\r\n\r\n" * 2000)
        many = connect(lab, stack, HEALTH * 1000 + LAST)
        found = [status for status, _ in answers(read_all(many))]
        assert found == [200] * 1001
        assert lab.request("GET", "/v2/health")


def test_clients_never_take_the_last_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -n 128\nexec {sys.executable} "$@"\n', encoding="utf-8")
    limited.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(limited))
    with daemon_lab() as lab, ExitStack() as stack:
        daemon = lab.start()
        assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (128, 128)
        crowd = [connect(lab, stack, HEALTH) for _ in range(200)]
        statuses = [read_answer(connection).status for connection in crowd]
        assert statuses == [200] * 64 + [503] * 136
        body = b'{"command": ["sh", "-c", "exit 3"], "runtime_class": "runc"}'
        wire = b"POST /v2/runs HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body)
        crowd[0].sendall(wire + body)
        made = read_answer(crowd[0])
        assert made.status == 201, made.body
        crowd[1].close()
        lab.wait_status(json.loads(made.body)["run"]["id"], "failed")
        assert "Too many open files" not in lab.log()


def cpu_s(pid: int) -> float:
    """Return how long a process has run on a CPU."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_descriptors_the_daemon_waits_and_its_sandboxes_go_on() -> None:
    with daemon_lab() as lab, ExitStack() as stack:
        daemon = lab.start()
        stays = lab.detach("runc", "sleep", "1000")
        ends = lab.detach("runc", "sh", "-c", "sleep 2; exit 7")
        for run_id in (stays, ends):
            lab.wait_status(run_id, "running")
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (8, limits[1]))
        said = len(lab.log().splitlines())
        used_s, begun = cpu_s(daemon.pid), time.monotonic()
        crowd = [connect(lab, stack, HEALTH) for _ in range(50)]
        while time.monotonic() - begun < 4:
            assert daemon.poll() is None, lab.log()[-4000:]
            time.sleep(0.1)
        used_s = cpu_s(daemon.pid) - used_s
        lines = lab.log().splitlines()[said:]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        assert {read_answer(connection).status for connection in crowd} == {200}
        wait_until(lambda: lab.run(ends)["status"] == "failed", 30)
        assert lab.run(ends)["exit_code"] == 7
        assert lab.run(stays)["status"] == "running"
        sys.stdout.write(f"{used_s:.2f} s of CPU, {len(lines)} lines\n{lines[:20]}\n")
        assert used_s < 3
        assert len(lines) < 200
        assert "Traceback" not in lab.log()
