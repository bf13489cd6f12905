"""What a daemon must survive: a wrong configuration, clients that stall, babble or crowd."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from axern.api.client import Client
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        made.start()
        yield made


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('colour = "red"', "colour"),
        ("tick = 5", "tick"),
        (f'socket = "/tmp/{"s" * 120}"', "socket"),
        ('socket = "/proc/no/such"', "socket"),
    ],
)
def test_a_mistake_in_the_configuration_ends_with_78(line: str, named: str) -> None:
    with daemon_lab() as lab:
        with open(lab.config_path, encoding="utf-8") as file:
            good = file.read()
        key = line.partition(" ")[0]
        kept = [each for each in good.splitlines() if not each.startswith(key)]
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write("\n".join([*kept, line, ""]))
        assert lab.spawn().wait(60) == 78
        assert named in lab.log()
        assert "Traceback" not in lab.log()
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write(good)


def test_a_disk_that_refuses_is_told_in_one_line() -> None:
    with daemon_lab() as lab:
        path = f"{lab.base}/file"
        with open(path, "x", encoding="utf-8"), open(lab.config_path, encoding="utf-8") as file:
            kept = file.read()
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write(kept.replace(f"{lab.base}/state", f"{path}/state"))
        assert lab.spawn().wait(60) == 1
        first = lab.log().splitlines()[0]
        assert first == f"ERROR axernd: {path}/state: Not a directory"
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write(kept)


def test_a_configuration_that_others_may_change_is_refused() -> None:
    with daemon_lab() as lab:
        os.chmod(lab.config_path, 0o666)  # noqa: S103 - the point of the test
        assert lab.spawn().wait(60) == 78
        assert "may be changed by others" in lab.log()
        os.chmod(lab.config_path, 0o600)


def open_stream(lab: DaemonLab, run_id: str) -> socket.socket:
    """Follow a run without reading on."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(lab.socket)
    connection.sendall(f"GET /v2/runs/{run_id}/stream HTTP/1.1\r\n\r\n".encode())
    assert connection.recv(64).startswith(b"HTTP/1.1 200")
    return connection


@pytest.mark.parametrize("script", ["sleep 100", "yes | head -c 20000000; sleep 100"])
def test_a_stop_does_not_wait_for_streams(script: str) -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        run_id = lab.detach("runc", "sh", "-c", f"echo ready; {script}")
        lab.wait_status(run_id, "running")
        with open_stream(lab, run_id), open_stream(lab, run_id):
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(15) == 0, lab.log()
        assert "Traceback" not in lab.log()
        lab.start()
        assert lab.run(run_id)["status"] == "running"


def test_clients_that_say_nothing_keep_nobody_waiting(lab: DaemonLab) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.connect(lab.socket)
            client.sendall(b"POST /v2/runs HTTP/1.1\r\ncontent-length: 10\r\n\r\n{")
        assert lab.request("GET", "/v2/health")["status"] == "ok"


def test_a_client_that_leaves_a_long_stream_leaves_nothing_to_do(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sleep", "600")
    lab.wait_status(run_id, "running")
    record = b"2026-01-31T12:00:00.000000000+00:00 stdout F a line\n"
    with open(lab.layout.sandbox(run_id).log, "ab") as log:
        log.write(record * 1_000_000)
    open_stream(lab, run_id).close()
    slowest_s = 0.0
    for _ in range(20):
        begun_s = time.monotonic()
        with Client(lab.socket) as client:
            client.health()
        slowest_s = max(slowest_s, time.monotonic() - begun_s)
        time.sleep(0.02)
    assert slowest_s < 1
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    lab.wait_empty()


def test_a_full_file_table_is_survived() -> None:
    with daemon_lab(tick="100ms", facts_every="50ms") as lab:
        daemon = lab.start()
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        assert before[0] == before[1]
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (40, before[1]))
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                client.connect(lab.socket)
            told = ("the host can't be observed", "this tick came to nothing")
            wait_until(lambda: any(words in lab.log() for words in told), 30)
        wait_until(lambda: lab.request("GET", "/v2/health")["status"] == "ok", 30)
        assert daemon.poll() is None
        assert lab.request("POST", "/v2/reservations", {})["token"]


def test_no_bytes_end_the_daemon(lab: DaemonLab) -> None:
    for wire in (
        b"\x00" * 4096,
        b"GET /v2/health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b'POST /v2/runs HTTP/1.1\r\ncontent-length: 13\r\n\r\n{"\\ud800": 1}',
        b"GET /v2/runs/%00%ff%0a HTTP/1.1\r\nconnection: close\r\n\r\n",
        b"POST /v2/runs HTTP/1.1\r\ncontent-length: 2000000\r\n\r\n" + b"x" * 2_000_000,
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(lab.socket)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(wire)
            assert connection.recv(12) == b"HTTP/1.1 400"
    assert lab.request("GET", "/v2/health")["status"] == "ok"
    assert "Traceback" not in lab.log()


def test_a_run_folder_has_one_daemon() -> None:
    with daemon_lab() as lab:
        first = lab.start()
        with open(lab.config_path, encoding="utf-8") as file:
            good = file.read()
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write(good.replace("/state", "/other"))
        assert lab.spawn().wait(60) == 75
        assert f"is used by axernd, process {first.pid}" in lab.log()
        with open(lab.config_path, "w", encoding="utf-8") as file:
            file.write(good)
        assert lab.request("GET", "/v2/health")["status"] == "ok"


def test_a_served_socket_is_not_taken() -> None:
    with daemon_lab() as lab, daemon_lab(socket=lab.socket) as thief:
        lab.start()
        assert thief.spawn().wait(60) == 78
        assert "somebody serves on it" in thief.log()
        assert lab.request("GET", "/v2/health")["status"] == "ok"
        with open(thief.config_path, encoding="utf-8") as file:
            lines = [line for line in file if not line.startswith("socket")]
        with open(thief.config_path, "w", encoding="utf-8") as file:
            file.writelines(lines)


def test_a_lost_ledger_is_damage_and_no_beginning() -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        run_id = lab.detach("runc", "sleep", "100")
        lab.wait_status(run_id, "running")
        lab.stop(daemon)
        folder = f"{lab.layout.state_dir}/ledger"
        os.rename(folder, f"{folder}.away")
        daemon = lab.start()
        told = lab.request("GET", "/v2/health")["ledger"]
        assert told["state"] == "untrusted"
        assert "there is no ledger in" in told["reason"]
        assert lab.stop(daemon) == 0
        os.rename(f"{folder}.away", folder)
        lab.start()
        assert lab.run(run_id)["status"] == "running"


def test_a_run_without_its_folder_can_be_seen_and_ended() -> None:
    with daemon_lab() as lab:
        lab.start()
        run_id = lab.detach("runc", "sleep", "100")
        lab.wait_status(run_id, "running")
        os.rename(f"{lab.layout.runs}/{run_id}", f"{lab.base}/away")
        assert lab.run(run_id)["status"] == "running"
        assert lab.axern("run", "cancel", run_id, "--grace", "0s").returncode == 0
        lab.wait_empty()


def test_a_root_that_holds_the_daemon_is_refused(lab: DaemonLab) -> None:
    for rootfs in ("/", lab.base, lab.layout.sandboxes):
        done = lab.axern("run", "--rootfs", rootfs, "--", "true")
        assert done.returncode == 125
        assert b"lie in each other" in done.stderr


WHY = re.compile("has it in version 1|cgroup_enforcement is disabled_dev")
"""What the host lacks, or where it lacks nothing, what the configuration says."""


def test_a_refusal_says_why_a_capability_is_absent(lab: DaemonLab) -> None:
    done = lab.axern("run", "--limit-memory", "64MiB", "--", "true")
    assert b"limit/memory/runsc is absent: " in done.stderr
    assert WHY.search(done.stderr.decode())
    done = lab.axern("run", "--request-gpu-memory", "1GiB", "--", "true")
    assert b"gpu is absent: " in done.stderr


def test_an_older_ledger_is_refused_while_what_it_does_not_know_runs() -> None:
    with daemon_lab() as lab:
        lab.stop(lab.start())
        folder = f"{lab.layout.state_dir}/ledger"
        shutil.copytree(folder, f"{folder}.old")
        daemon = lab.start()
        run_id = lab.detach("runc", "sleep", "100")
        lab.wait_status(run_id, "running")
        lab.stop(daemon)
        os.rename(folder, f"{folder}.new")
        shutil.copytree(f"{folder}.old", folder)
        lab.forget_generations()
        daemon = lab.start()
        told = lab.request("GET", "/v2/health")["ledger"]
        assert told["state"] == "untrusted"
        assert "it is an older one" in told["reason"]
        assert lab.stop(daemon) == 0
        shutil.rmtree(folder)
        os.rename(f"{folder}.new", folder)
        lab.start()
        assert lab.run(run_id)["status"] == "running"


def test_what_a_power_cut_brought_back_is_buried_and_foreign_names_are_left() -> None:
    with daemon_lab() as lab:
        for name in ("lost+found", "0" * 32):
            os.makedirs(f"{lab.layout.filestore}/{name}/upper")
        os.makedirs(f"{lab.layout.runs}/lost+found")
        lab.start()
        assert os.listdir(lab.layout.filestore) == ["lost+found"]
        assert os.listdir(lab.layout.runs) == ["lost+found"]
        os.removedirs(f"{lab.layout.filestore}/lost+found/upper")
        os.makedirs(lab.layout.filestore, exist_ok=True)


def test_a_full_file_table_ends_no_life() -> None:
    with daemon_lab(tick="100ms", facts_every="50ms") as lab:
        daemon = lab.start()
        run_id = lab.detach("runc", "sleep", "100")
        lab.wait_status(run_id, "running")
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (0, before[1]))
        wait_until(lambda: f"sandbox {run_id}: its exit file" in lab.log(), 30)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        wait_until(lambda: lab.request("GET", "/v2/health")["status"] == "ok", 30)
        assert lab.run(run_id)["status"] == "running"


def test_a_record_that_cannot_be_written_is_waited_for_quietly(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sleep", "100")
    lab.wait_status(run_id, "running")
    blocked = f"{lab.layout.runs}/{run_id}/exit.json.new"
    os.makedirs(f"{blocked}/in-the-way")
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    try:
        wait_until(lambda: lab.log().count("its run's record") >= 1, 30)
        # Tried twice a second, told once.
        assert lab.log().count("its run's record") < 5
    finally:
        shutil.rmtree(blocked)
    lab.wait_status(run_id, "cancelled")
    lab.wait_empty()


def test_the_daemon_loads_no_openssl(lab: DaemonLab) -> None:
    with open(f"/proc/{lab.processes[-1].pid}/maps", encoding="utf-8") as file:
        maps = file.read()
    assert "_asyncio" in maps
    assert "libssl" not in maps
