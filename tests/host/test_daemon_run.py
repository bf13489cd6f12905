"""The main job, as a user does it: `axern run` against a real daemon and real runtimes."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Iterator

import pytest

from axern.runtime import template
from tests.host.conftest import digest_tree, wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")


@pytest.fixture(scope="module")
def served() -> Iterator[DaemonLab]:
    with daemon_lab() as lab:
        lab.start()
        yield lab


def test_the_command_of_the_readme(served: DaemonLab, runtime: str) -> None:
    done = served.axern(
        "run",
        "--runtime-class",
        runtime,
        "--request-cpu",
        "500m",
        "--request-memory",
        "256MiB",
        "--",
        "sh",
        "-c",
        "echo hello; echo complaint >&2; exit 7",
    )
    assert done.returncode == 7
    assert done.stdout == b"hello\n"
    assert b"complaint\n" in done.stderr
    assert b"Run: " in done.stderr
    assert b"not enforced" in done.stderr
    served.wait_empty()
    assert served.leftovers() == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("true",), 0),
        (("sh", "-c", "exit 7"), 7),
        (("/nowhere/at-all",), 127),
        (("no-such-program",), 127),
        (("/etc/passwd",), 126),
    ],
)
def test_exit_codes(served: DaemonLab, runtime: str, command: tuple[str, ...], code: int) -> None:
    done = served.axern("run", "--runtime-class", runtime, *SMALL, "--", *command)
    assert done.returncode == code, done.stderr
    run_id = done.stderr.split(b"Run: ")[1].split()[0].decode()
    assert served.run(run_id)["exit_code"] == (None if code in (126, 127) else code)


def test_a_killed_workload_gives_137(served: DaemonLab, runtime: str) -> None:
    process = served.popen("run", "--runtime-class", runtime, *SMALL, "--", "sleep", "100")
    wait_until(lambda: [e["phase"] for e in served.reservations()] == ["running"])
    run_id = served.reservations()[0]["id"]
    assert served.axern("run", "cancel", run_id, "--grace", "0s").returncode == 0
    process.communicate(timeout=60)
    assert process.returncode == 137
    served.wait_empty()


def test_own_failures_exit_125_and_leave_nothing(served: DaemonLab) -> None:
    before = set(os.listdir(served.layout.runs))
    for flags in (
        ("--request-memory", "1024TiB"),
        ("--limit-memory", "64MiB"),
        ("--rootfs", "/no/such/folder"),
        ("--template", "unknown"),
        ("--request-cpu", "2", "--limit-cpu", "1"),
    ):
        done = served.axern("run", *flags, "--", "true")
        assert done.returncode in (2, 125), done.stderr
    assert set(os.listdir(served.layout.runs)) == before
    assert served.reservations() == []


def test_an_explicit_limit_is_refused_where_nothing_is_enforced(served: DaemonLab) -> None:
    done = served.axern("run", "--limit-memory", "64MiB", "-o", "json", "--", "true")
    assert done.returncode == 125
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "node_selection_error"
    (reason,) = error["reasons"]
    assert reason.startswith("capability limit/memory/runsc is absent: ")


def test_two_megabytes_of_binary_come_through_apart(served: DaemonLab, runtime: str) -> None:
    script = (
        "head -c 1048576 /dev/urandom > /a; head -c 1048576 /dev/urandom > /b;"
        "cat /a & cat /b >&2; wait; sha256sum /a /b > /sums; cat /sums >&2"
    )
    done = served.axern("run", "--runtime-class", runtime, *SMALL, "--", "sh", "-c", script)
    assert done.returncode == 0
    assert len(done.stdout) == 1024**2
    assert hashlib.sha256(done.stdout).hexdigest().encode() in done.stderr
    talk, _, binary = done.stderr.partition(b"not enforced")
    assert talk
    binary = binary[binary.index(b"\n") + 1 :]
    payload = binary[: 1024**2]
    assert hashlib.sha256(payload).hexdigest().encode() in done.stderr[-300:]


def test_ctrl_c_cancels_and_leaves_nothing(served: DaemonLab, runtime: str) -> None:
    process = served.popen("run", "--runtime-class", runtime, *SMALL, "--", "sleep", "100")
    wait_until(lambda: [e["phase"] for e in served.reservations()] == ["running"])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    served.wait_empty()
    assert served.leftovers() == []


def test_a_term_ignoring_workload_is_killed_after_the_grace(
    served: DaemonLab, runtime: str
) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 1; done"
    run_id = served.detach(runtime, "sh", "-c", script)
    wait_until(lambda: b"ready" in served.axern("run", "logs", run_id).stdout)
    done = served.axern("run", "cancel", run_id, "--grace", "200ms")
    assert done.returncode == 0
    run = served.wait_status(run_id, "cancelled")
    assert run["exit_code"] == 137
    served.wait_empty()


def test_twenty_at_once_leave_nothing(served: DaemonLab) -> None:
    lower = template.find(served.layout.templates, "busybox")
    assert lower is not None
    before = digest_tree(lower.rootfs)

    def one(number: int) -> int:
        runtime = ("runc", "runsc")[number % 2]
        script = f"echo {number} > /written; rm -rf /etc/passwd /bin/ls; exit {number}"
        argv = ("run", "--runtime-class", runtime, *SMALL, "--", "sh", "-c", script)
        return served.axern(*argv, limit_s=240).returncode

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        codes = list(pool.map(one, range(20)))
    assert codes == list(range(20))
    served.wait_empty()
    assert served.leftovers() == []
    assert digest_tree(lower.rootfs) == before


def test_a_run_is_seen_from_every_side_while_it_runs(served: DaemonLab) -> None:
    run_id = served.detach("runc", "sleep", "100")
    served.wait_status(run_id, "running")
    table = served.axern("reservations").stdout.decode()
    assert run_id[:12] in table
    assert "running" in table
    listed = json.loads(served.axern("reservations", "list", "--format", "json").stdout)
    assert [entry["id"] for entry in listed["reservations"]] == [run_id]
    assert listed["reservations"][0]["enforced"] is False
    assert json.loads(served.axern("run", "get", run_id[:6], "-o", "json").stdout)["run"]
    capacity = json.loads(served.axern("node", "capacity", "-o", "json").stdout)
    assert "dimensions" in json.dumps(capacity)
    assert served.axern("run", "cancel", run_id).returncode == 0
    served.wait_empty()


def test_a_read_only_root_refuses_writes_and_charges_no_storage(
    served: DaemonLab, runtime: str
) -> None:
    argv = ("run", "--runtime-class", runtime, "--rootfs-readonly", *SMALL, "--")
    done = served.axern(*argv, "sh", "-c", "echo x > /x || exit 9; exit 0")
    assert done.returncode == 9, done.stderr


def test_an_admins_own_root_is_used_and_left_as_it_was(served: DaemonLab, runtime: str) -> None:
    lower = template.find(served.layout.templates, "busybox")
    assert lower is not None
    mine = f"{served.base}/mine-{runtime}"
    shutil.copytree(lower.rootfs, mine, symlinks=True)
    with open(f"{mine}/mark", "w", encoding="utf-8") as file:
        file.write("mine\n")
    before = digest_tree(mine)
    argv = ("run", "--runtime-class", runtime, "--rootfs", mine, *SMALL, "--")
    done = served.axern(*argv, "sh", "-c", "cat /mark; echo x > /mark; rm -rf /etc; cat /mark")
    assert (done.returncode, done.stdout) == (0, b"mine\nx\n"), done.stderr
    assert digest_tree(mine) == before


def test_environment_and_folder_reach_the_workload(served: DaemonLab, runtime: str) -> None:
    argv = ("run", "--runtime-class", runtime, *SMALL, "--env", "A=b c", "--cwd", "/tmp", "--")
    done = served.axern(*argv, "sh", "-c", 'echo "$A $(pwd)"; cat /etc/hosts; hostname')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"b c /tmp\n")
    assert b"localhost" in done.stdout


def test_a_retried_request_id_finds_the_same_run(served: DaemonLab) -> None:
    body = {"request_id": "again", "command": ["true"], "runtime_class": "runc"}
    first = served.request("POST", "/v2/runs", body)["run"]
    second = served.request("POST", "/v2/runs", body)["run"]
    assert first["id"] == second["id"]
    served.wait_empty()
    assert served.request("POST", "/v2/runs", body)["run"]["id"] == first["id"]
    done = served.axern("run", "--request-id", "again", "--", "false")
    assert done.returncode == 125
    assert b"request_id_conflict" in done.stderr
