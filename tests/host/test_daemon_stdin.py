"""Standard input through a real daemon: every byte, in order, once; its end, and only then."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from axern.api.client import ApiError
from axern.runtime import standard_input
from axern.runtime.standard_input import Taken
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")
MEBIBYTE = 1024**2
LONG = bool(os.environ.get("AXERN_LONG"))


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def argv(lab: DaemonLab, runtime: str, *words: str) -> list[str]:
    return lab.argv("run", "-i", "--runtime-class", runtime, *SMALL, *words)


Start = Callable[..., tuple[subprocess.Popen[bytes], str]]


@pytest.fixture
def start(lab: DaemonLab) -> Iterator[Start]:
    """Start interactive runs, each with its id once that is told, and close their pipes."""
    with ExitStack() as stack:

        def begin(runtime: str, *words: str) -> tuple[subprocess.Popen[bytes], str]:
            process = subprocess.Popen(
                argv(lab, runtime, "--", *words),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert line.startswith("Run: "), line
            return process, line.split()[1]

        yield begin


def test_every_byte_arrives_in_order_and_then_the_end(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    for size in (0, 1, (200 if LONG else 3) * MEBIBYTE):
        data = os.urandom(size)
        done = subprocess.run(
            argv(lab, runtime, "--", "md5sum"), input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[0].decode() == hashlib.md5(data).hexdigest()  # noqa: S324


def test_a_workload_that_reads_no_more_ends_at_once(
    lab: DaemonLab, start: Start, runtime: str
) -> None:
    lab.start()
    process, _ = start(runtime, "head", "-c", "1")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"xyz")
    process.stdin.flush()  # and stays open: the run ends all the same
    assert process.stdout.read() == b"x"
    assert process.wait(60) == 0


@pytest.mark.parametrize("late", ["", "sleep 3; "])
def test_a_user_that_is_not_root_opens_it_anew(lab: DaemonLab, runtime: str, late: str) -> None:
    """Also behind its end, where nobody is left who writes."""
    lab.start()
    done = subprocess.run(
        argv(lab, runtime, "--user", "1000:1000", "--", "sh", "-c", f"{late}cat </dev/stdin"),
        input=b"hello",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"hello")


def test_without_the_flag_it_is_empty(lab: DaemonLab, runtime: str) -> None:
    lab.start()
    words = lab.argv("run", "--runtime-class", runtime, *SMALL, "--", "wc", "-c")
    done = subprocess.run(words, input=b"not for it", capture_output=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"0")


def test_a_daemon_that_dies_is_no_end_of_the_input(
    lab: DaemonLab, start: Start, runtime: str
) -> None:
    daemon = lab.start()
    process, run_id = start(runtime, "sh", "-c", "cat; echo end")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one ")
    process.stdin.flush()
    assert process.stdout.read(4) == b"one "
    lab.kill(daemon)
    lab.start()
    process.stdin.write(b"two ")
    process.stdin.flush()
    assert process.stdout.read(4) == b"two "
    assert lab.run(run_id)["status"] == "running"
    process.stdin.close()
    assert process.stdout.read() == b"end\n"
    assert process.wait(60) == 0


def test_who_holds_the_input_is_no_finding_and_no_workload(lab: DaemonLab, start: Start) -> None:
    daemon = lab.start()
    process, run_id = start("runc", "sh", "-c", "echo up; read line")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    done = lab.axern("reservations", "doctor")
    assert (done.returncode, done.stdout[:25]) == (0, b"ledger and host agree: no"), done
    lab.kill(daemon)
    paths = lab.layout.sandbox(run_id)
    for pid in paths.workload.pids():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: os.path.exists(paths.exit_file), 30)
    assert paths.stdin_holder.is_populated()
    # It has ended, so that it needs no force.
    done = lab.axern("reservations", "release", run_id)
    assert done.returncode == 0, done
    process.kill()
    process.communicate()


def test_what_may_be_lost_ends_the_run_and_is_told(lab: DaemonLab, start: Start) -> None:
    lab.start()
    process, run_id = start("runc", "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")
    assert process.stdin is not None
    assert process.stderr is not None
    lab.wait_status(run_id, "running")
    paths = lab.layout.sandbox(run_id)
    standard_input.write_taken(paths, Taken(0, doubtful=True))  # as a daemon killed in a write
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.wait(60) == 125
    assert b"nobody knows how much" in process.stderr.read()
    assert lab.run(run_id)["diagnostic_code"] == "stdin-lost"
    process.stdin.close()


def test_a_client_that_vanishes_ends_nothing_and_a_repeat_is_taken_once(
    lab: DaemonLab, start: Start
) -> None:
    lab.start()
    process, run_id = start("runc", "cat")
    process.kill()
    process.communicate()
    lab.wait_status(run_id, "running")

    def hand(data: bytes, offset: int, *, end: str = "false") -> dict[str, object]:
        target = f"/v2/runs/{run_id}/stdin?offset={offset}&end={end}"
        from axern.api.client import Client

        with Client(lab.socket) as client:
            found: dict[str, object] = client.request("POST", target, data)["stdin"]
            return found

    assert hand(b"abc", 0) == {"taken": 3, "closed": False}
    assert hand(b"abc", 0) == {"taken": 3, "closed": False}
    assert hand(b"bcde", 1) == {"taken": 5, "closed": False}
    with pytest.raises(ApiError, match="taken up to 5, not 6"):
        hand(b"x", 6)
    with pytest.raises(ApiError, match="at most 262144 bytes"):
        hand(b"x" * 262_145, 5)
    assert hand(b"", 5, end="true") == {"taken": 5, "closed": True}
    assert hand(b"", 5, end="true")["closed"] is True
    lab.wait_status(run_id, "succeeded")
    assert lab.axern("run", "logs", run_id).stdout == b"abcde"
    assert hand(b"more", 5) == {"taken": 5, "closed": True}


def test_a_full_pipe_is_an_answer_and_a_cancel_ends_it(lab: DaemonLab, start: Start) -> None:
    lab.start()
    process, run_id = start("runc", "sleep", "600")
    assert process.stdin is not None
    paths = lab.layout.sandbox(run_id)

    def is_full() -> bool:
        taken = standard_input.read_taken(paths)
        return taken is not None and taken.offset >= MEBIBYTE

    process.stdin.write(b"x" * (MEBIBYTE + 64 * 1024))
    process.stdin.flush()
    wait_until(is_full)
    lab.wait_status(run_id, "running")  # the pipe takes input before the workload is there
    lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
    assert process.wait(60) == 137
    process.stdin.close()
