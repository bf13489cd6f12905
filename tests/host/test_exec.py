"""Commands added to running sandboxes of a real daemon: streams, codes, signals, and their end."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError, Client
from axern.host import process
from axern.runtime import exec_lease
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
MEBIBYTE = 1024**2
STRANGER = 65_534


@pytest.fixture(scope="module")
def shared() -> Iterator[DaemonLab]:
    """One daemon for the tests that leave it as it was."""
    with daemon_lab() as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def runs(shared: DaemonLab) -> dict[str, str]:
    """One run of each runtime that does nothing."""
    return {name: detach(shared, name) for name in ("runc", "runsc")}


@pytest.fixture
def run(runs: dict[str, str], runtime: str) -> str:
    return runs[runtime]


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def detach(lab: DaemonLab, runtime: str) -> str:
    made = lab.detach(runtime, "sleep", "100000")
    lab.wait_status(made, "running")
    return made


def execute(lab: DaemonLab, *words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        lab.argv("exec", *words), input=data, capture_output=True, check=False, timeout=120
    )


def begin(lab: DaemonLab, run: str, *words: str, **body: Any) -> tuple[dict[str, Any], list[int]]:
    with Client(lab.socket) as client:
        asked = {"command": list(words), **body}
        answer, files = client.request_files(f"/v2/runs/{run}/execs", asked)
    return answer["exec"], files


def wait(lab: DaemonLab, run: str, added: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = lab.request("GET", f"/v2/runs/{run}/execs/{added['id']}")["exec"]
    return found


def execs(lab: DaemonLab, run: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.request("GET", f"/v2/runs/{run}")["execs"]
    return found


@contextmanager
def as_stranger() -> Iterator[None]:
    """Be a member of the socket's group who owns nothing."""
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


def ask(lab: DaemonLab, method: str, target: str, token: str | None) -> dict[str, Any]:
    """Ask with a lease's token, as a program of somebody else's would."""
    body = b'{"signal": "USR1"}' if method == "POST" else b""
    lease = "" if token is None else f"X-Axern-Lease: {token}\r\n"
    head = f"{method} {target} HTTP/1.1\r\nHost: a\r\n{lease}Connection: close\r\n"
    with socket.socket(socket.AF_UNIX) as door:
        door.connect(lab.socket)
        door.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: door.recv(65536), b""))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def test_both_outputs_and_the_code_come_back(shared: DaemonLab, run: str) -> None:
    done = execute(shared, run, "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    # And a unique beginning of the id, without the two dashes.
    assert execute(shared, run[:12], "true").returncode == 0


def test_what_is_left_out_is_as_the_run_has_it(shared: DaemonLab, runtime: str) -> None:
    words = ["run", "-d", "--runtime-class", runtime, "--user", "1000:7", "--cwd", "/tmp"]
    words += ["--env", "A=1", "--env", "B=2", "--request-memory", "16MiB", "--", "sleep", "1000"]
    made = shared.axern(*words).stdout.decode().strip()
    shared.wait_status(made, "running")
    script = "id -u; id -g; pwd; echo $A $B $C"
    done = execute(shared, made, "--", "sh", "-c", script)
    assert done.stdout.split() == [b"1000", b"7", b"/tmp", b"1", b"2"]
    flags = ("--user", "5:6", "--cwd", "/", "--env", "B=3", "--env", "C=4")
    done = execute(shared, *flags, made, "--", "sh", "-c", script)
    assert done.stdout.split() == [b"5", b"6", b"/", b"1", b"3", b"4"]


def test_ten_mebibytes_go_through_unharmed_both_ways(shared: DaemonLab, run: str) -> None:
    data = os.urandom(10 * MEBIBYTE)
    done = execute(shared, "-i", run, "--", "cat", data=data)
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_without_the_flag_its_input_is_empty(shared: DaemonLab, run: str) -> None:
    done = execute(shared, run, "--", "wc", "-c", data=b"not for it")
    assert (done.returncode, done.stdout.strip()) == (0, b"0")


def test_who_reads_no_more_and_who_holds_the_output_keep_nobody(
    shared: DaemonLab, run: str
) -> None:
    """Its own end ends the command: not that of our input, nor of what it leaves behind."""
    argv = shared.argv("exec", "-i", run, "--", "head", "-c", "1")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reading:
        assert reading.stdin is not None
        assert reading.stdout is not None
        reading.stdin.write(b"xyz")
        reading.stdin.flush()
        assert (reading.stdout.read(), reading.wait(60)) == (b"x", 0)
    done = execute(shared, run, "--", "sh", "-c", "sleep 100000 & echo left; exit 3")
    assert (done.returncode, done.stdout) == (3, b"left\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [(("nope",), 127), (("/nope",), 127), (("/etc",), 126), (("/etc/passwd",), 126)],
)
def test_a_program_that_cannot_be_started(
    shared: DaemonLab, run: str, words: tuple[str, ...], code: int
) -> None:
    done = execute(shared, run, "--", *words)
    assert (done.returncode, done.stdout) == (code, b"")
    assert words[0].encode() in done.stderr
    assert execs(shared, run) == []


def test_the_runtime_is_quoted_where_it_knows_why(shared: DaemonLab, runs: dict[str, str]) -> None:
    done = execute(shared, "--cwd", "/none", runs["runc"], "--", "true")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr.startswith(b"axern: exec failed: "), done.stderr
    assert b'"/none"' in done.stderr


def test_what_ends_at_once_is_none_that_is_elsewhere(shared: DaemonLab, run: str) -> None:
    """A zombie is in no list of a control group's processes."""
    for _ in range(20):
        added, files = begin(shared, run, "true")
        for file_fd in files:
            os.close(file_fd)
        assert added["status"] == "running", added
        assert wait(shared, run, added)["exit_code"] == 0


def test_our_own_failures_are_125(shared: DaemonLab, run: str) -> None:
    for words in (
        ("-u", "nobody9", run, "--", "true"),
        ("ffffffffffffffff", "--", "true"),
        ("--nonsense", run),
        (run,),
        ("-it", run, "--", "sh"),
    ):
        assert execute(shared, *words).returncode == 125, words


def test_it_is_charged_to_its_sandbox_and_shown(shared: DaemonLab, run: str) -> None:
    added, files = begin(shared, run, "sleep", "100000", stdin=True)
    paths = shared.layout.sandbox(run)
    try:
        place = exec_lease.place(paths, added["id"])
        with open(place.pid_file, encoding="ascii") as file:
            pid = int(file.read())
        monitor = int(Path(place.monitor_pid_file).read_text())
        assert {pid, monitor} <= set(paths.wall.pids())
        for each in (pid, monitor):
            group = process.cgroup_of(each) or ""
            assert group.startswith(f"/{paths.wall.path}/"), group
        shown = [each["id"] for each in execs(shared, run)]
        assert shown == [added["id"]]
        assert shared.request("GET", f"/v2/runs/{run}/execs")["execs"] == execs(shared, run)
        done = shared.axern("reservations", "doctor")
        assert done.returncode == 0, done.stdout
        assert not os.path.exists(place.process)  # argv and environment
    finally:
        shared.request("DELETE", f"/v2/runs/{run}/execs/{added['id']}")
        for file_fd in files:
            os.close(file_fd)
    ended = wait(shared, run, added)
    assert (ended["exit_code"], ended["revoked_by"]) == (137, {"uid": 0})
    assert execs(shared, run) == []
    assert not os.path.exists(place.folder)


def test_its_words_and_variables_stand_nowhere(shared: DaemonLab, run: str) -> None:
    canary = secrets.token_hex(16)
    words = ("sh", "-c", "exec sleep 100000", canary)
    added, files = begin(shared, run, *words, env={"SECRET": canary})
    for top in (shared.layout.state_dir, shared.layout.run_dir):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != "rootfs"]
            for path in (Path(folder) / name for name in names):
                if path.is_file():
                    assert canary.encode() not in path.read_bytes(), path
    assert canary not in shared.log()
    assert canary not in json.dumps(execs(shared, run))
    done = shared.axern("run", "revoke", run)
    assert done.stdout == f"{added['id']} revoked\n".encode(), done
    for file_fd in files:
        os.close(file_fd)


def test_signals_are_passed_on_and_the_second_kills(shared: DaemonLab, run: str) -> None:
    script = "trap 'echo int; exit 9' INT; echo up; while :; do sleep 0.1; done"
    with subprocess.Popen(
        shared.argv("exec", run, "--", "sh", "-c", script), stdout=subprocess.PIPE
    ) as told:
        assert told.stdout is not None
        assert told.stdout.readline() == b"up\n"
        told.send_signal(signal.SIGINT)
        assert (told.stdout.read(), told.wait(60)) == (b"int\n", 9)
    script = "trap 'echo int' INT; echo up; while :; do sleep 0.1; done"
    with subprocess.Popen(
        shared.argv("exec", run, "--", "sh", "-c", script), stdout=subprocess.PIPE
    ) as told:
        assert told.stdout is not None
        assert told.stdout.readline() == b"up\n"
        told.send_signal(signal.SIGINT)
        assert told.stdout.readline() == b"int\n"
        told.send_signal(signal.SIGINT)
        assert told.wait(60) == 130
    wait_until(lambda: execs(shared, run) == [], 30)


def test_a_lease_opens_what_is_its_own_until_it_is_revoked(shared: DaemonLab, run: str) -> None:
    script = "trap : USR1; while :; do sleep 0.1; done"
    added, files = begin(shared, run, "sh", "-c", script)
    other, more = begin(shared, run, "sleep", "100000")
    lease = exec_lease.read(exec_lease.place(shared.layout.sandbox(run), added["id"]))
    assert lease is not None
    assert added["token"] not in repr(lease)
    assert lease.opens(added["token"])
    assert not lease.opens(other["token"])
    assert lease.sandbox_id == run
    assert lease.kind == "exec"
    assert int(lease.attempt.split(":")[1]) in shared.layout.sandbox(run).monitor.pids()
    target = f"/v2/runs/{run}/execs/{added['id']}"
    with as_stranger():
        with pytest.raises(ApiError, match="belongs to uid 0"):
            begin(shared, run, "true")
        for token in (None, "", "0" * 64, other["token"]):
            for method, path in (("DELETE", target), ("GET", target), ("POST", f"{target}/signal")):
                assert ask(shared, method, path, token)["status"] == 403, (method, token)
        assert ask(shared, "POST", f"{target}/signal", added["token"])["exec"]["id"] == added["id"]
        assert ask(shared, "DELETE", target, added["token"])["exec"]["revoked_by"] == {
            "uid": STRANGER
        }
        assert ask(shared, "GET", target, added["token"])["status"] == 403
    assert wait(shared, run, added)["exit_code"] == 137
    shared.request("DELETE", f"/v2/runs/{run}/execs/{other['id']}")
    assert wait(shared, run, other)["exit_code"] == 137
    for file_fd in (*files, *more):
        os.close(file_fd)


def test_what_does_not_run_takes_no_command(lab: DaemonLab) -> None:
    lab.start()
    over = lab.detach("runc", "true")
    lab.wait_empty()
    with pytest.raises(ApiError, match="is over"):
        begin(lab, over, "true")
    with pytest.raises(ApiError, match="no run has the id"):
        begin(lab, "f" * 32, "true")
    done = execute(lab, over, "--", "true")
    assert done.returncode == 125
    assert b"[state_conflict]" in done.stderr


def test_it_ends_with_its_sandbox(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    made = detach(lab, runtime)
    with subprocess.Popen(
        lab.argv("exec", made, "--", "sh", "-c", "echo up; sleep 100000"), stdout=subprocess.PIPE
    ) as added:
        assert added.stdout is not None
        assert added.stdout.readline() == b"up\n"
        lab.request("DELETE", f"/v2/runs/{made}?grace_ms=0")
        assert (added.stdout.read(), added.wait(60)) == (b"", 137)


def test_the_daemon_may_come_and_go_meanwhile(lab: DaemonLab, runtime: str) -> None:
    daemon = lab.start()
    made = detach(lab, runtime)
    with subprocess.Popen(
        lab.argv("exec", "-i", made, "--", "sh", "-c", "cat; exit 5"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as added:
        assert added.stdin is not None
        assert added.stdout is not None
        added.stdin.write(b"one ")
        added.stdin.flush()
        assert added.stdout.read(4) == b"one "
        lab.kill(daemon)
        added.stdin.write(b"two ")
        added.stdin.flush()
        assert added.stdout.read(4) == b"two "  # no daemon is there
        lab.start()
        assert len(execs(lab, made)) == 1
        added.stdin.close()
        assert (added.stdout.read(), added.wait(60)) == (b"", 5)


def test_only_so_many_are_added_to_one_sandbox(lab: DaemonLab) -> None:
    lab.start()
    made = detach(lab, "runc")
    paths = lab.layout.sandbox(made)
    files = []
    for _ in range(64):
        added, ends = begin(lab, made, "sleep", "100000")
        assert added["status"] == "running", added
        files += ends
    with pytest.raises(ApiError, match="64 processes are added"):
        begin(lab, made, "true")
    os.kill(int(Path(exec_lease.places(paths)[0].pid_file).read_text()), signal.SIGKILL)
    wait_until(lambda: len(execs(lab, made)) == 63)
    added, ends = begin(lab, made, "true")
    assert added["status"] == "running"
    for file_fd in files + ends:
        os.close(file_fd)
