"""What a run in the foreground promises, whatever daemon stands behind it.

Subclass `RunContract` and give it a fixture `socket_path`: the fake daemon and the real one are
held to the same class.
"""

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from tests.cli.command import TIMEOUT_S, Axern

SPEC_FILE = str(Path(__file__).parents[2] / "docs/examples/run.yaml")
MEBIBYTE = 1024 * 1024
ALL_BYTES = "".join(f"\\0{byte:03o}" for byte in range(256))
DOUBLE = (
    f"f=$(mktemp); printf %b '{ALL_BYTES}' >$f; i=0; "
    "while [ $i -lt 12 ]; do cat $f $f >$f.2; mv $f.2 $f; i=$((i + 1)); done; "
)
"""Shell words that leave 1 MiB holding every byte value in the file $f."""


def read_until(stream: IO[bytes] | None, mark: bytes) -> bytes:
    """Return what comes on *stream* up to the line that holds *mark*."""
    assert stream is not None
    seen = b""
    while mark not in seen:
        line = stream.readline()
        assert line, seen
        seen += line
    return seen


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds; look again every 20 ms."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class RunContract:
    """Exit codes, exact bytes, cancelling."""

    options: tuple[str, ...] = ()
    """Flags for every run, such as a runtime class."""

    @pytest.fixture
    def axern(self, socket_path: str) -> Axern:
        return Axern(("--socket", socket_path))

    def sh(self, axern: Axern, script: str, *options: str) -> subprocess.CompletedProcess[bytes]:
        return axern.run("run", *self.options, *options, "--", "sh", "-c", script)

    @pytest.mark.parametrize("code", [0, 1, 42, 255])
    def test_the_workloads_code_is_ours(self, axern: Axern, code: int) -> None:
        assert self.sh(axern, f"exit {code}").returncode == code

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
    def test_a_signal_is_128_and_its_number(self, axern: Axern, number: int) -> None:
        assert self.sh(axern, f"sh -c 'kill -{number} $$'; exit $?").returncode == 128 + number

    def test_a_spec_file_is_run(self, axern: Axern) -> None:
        done = axern.run("run", "-f", SPEC_FILE, "--env", "GREETING=good day")
        assert done.returncode == 0, done.stderr
        first, second = done.stdout.decode().splitlines()
        assert first.startswith("good day from ")
        assert second == "/tmp"

    def test_the_id_is_told_on_standard_error(self, axern: Axern) -> None:
        done = self.sh(axern, "echo out; echo err >&2")
        assert done.stdout == b"out\n"
        assert re.search(rb"^Run: [0-9a-f]{32}$", done.stderr, re.MULTILINE)
        assert b"err\n" in done.stderr

    def test_output_is_exact_on_both_streams(self, axern: Axern) -> None:
        done = self.sh(axern, DOUBLE + "cat $f; cat $f >&2; rm $f")
        expected = bytes(range(256)) * (MEBIBYTE // 256)
        assert done.returncode == 0
        assert done.stdout == expected
        assert done.stderr.endswith(expected)

    def test_a_missing_program_is_127(self, axern: Axern) -> None:
        done = axern.run("run", *self.options, "--", "/no/such/program")
        assert done.returncode == 127
        assert b"[runtime_start_error]" in done.stderr
        assert done.stdout == b""

    def test_what_is_not_executable_is_126(self, axern: Axern) -> None:
        done = axern.run("run", *self.options, "-o", "json", "--", "/etc")
        assert done.returncode == 126
        error = json.loads(done.stdout)["error"]
        assert error["code"] == "runtime_start_error"
        assert error["exit_code"] is None

    def test_variables_are_passed(self, axern: Axern) -> None:
        done = axern.run(
            *("run", *self.options, "--env", "A=b=c", "--env", "MINE", "--"),
            *("sh", "-c", 'echo "$A $MINE"'),
            env={"MINE": "of the caller", "PATH": "/usr/bin:/bin"},
        )
        assert done.stdout == b"b=c of the caller\n"

    def test_detached_prints_the_id_alone(self, axern: Axern) -> None:
        done = self.sh(axern, "echo later", "--detach")
        run_id = done.stdout.decode().strip()
        assert re.fullmatch("[0-9a-f]{32}", run_id)
        logs = axern.run("run", "logs", "-f", run_id[:8])
        assert (logs.returncode, logs.stdout) == (0, b"later\n")
        run = axern.json("run", "get", run_id[:8], "-o", "json")["run"]
        assert (run["id"], run["exit_code"]) == (run_id, 0)

    def test_a_cancelled_run_ends(self, axern: Axern) -> None:
        run_id = self.sh(axern, "sleep 600", "--detach").stdout.decode().strip()
        done = axern.run("run", "cancel", "--grace", "100ms", run_id[:12])
        assert done.returncode == 0
        shown = done.stdout.decode().split()
        assert shown in [[run_id, word] for word in ("stopping", "retiring", "cancelled")]
        # A program is told the same, by then perhaps one step further.
        told = axern.json("run", "cancel", run_id, "-o", "json")["run"]["status"]
        assert told in {shown[1], "retiring", "cancelled"}
        assert axern.run("run", "logs", "-f", run_id).returncode == 0
        run = axern.json("run", "get", run_id, "-o", "json")["run"]
        assert run["status"] == "cancelled"
        again = axern.run("run", "cancel", run_id)
        assert (again.returncode, again.stdout.decode()) == (0, f"{run_id} cancelled\n")

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_one_signal_cancels_and_waits(self, axern: Axern, number: int, code: int) -> None:
        script = "trap 'echo ended; exit 3' TERM; echo begun; while :; do sleep 0.1; done"
        with axern.start("run", *self.options, "--", "sh", "-c", script) as process:
            read_until(process.stdout, b"begun")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == code
            assert stdout == b"ended\n"
            assert b"cancelling" in stderr

    def test_a_second_signal_leaves_at_once(self, axern: Axern) -> None:
        script = "trap '' TERM; echo begun; while :; do sleep 0.1; done"
        with axern.start("run", *self.options, "--", "sh", "-c", script) as process:
            run_id = read_until(process.stderr, b"Run:").split()[1].decode()
            read_until(process.stdout, b"begun")
            process.send_signal(signal.SIGINT)
            read_until(process.stderr, b"cancelling")
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 130
            assert time.monotonic() - began < 5
            assert axern.run("run", "logs", "-f", run_id).returncode == 0
            assert axern.json("run", "get", run_id, "-o", "json")["run"]["status"] == "cancelled"

    def test_a_closed_output_ends_us_and_not_the_run(self, axern: Axern) -> None:
        script = "echo first; while [ ! -e $HOLD ]; do echo more; sleep 0.05; done"
        with axern.start(
            "run", *self.options, "--env", "HOLD=/no/such/file", "--", "sh", "-c", script
        ) as process:
            run_id = read_until(process.stderr, b"Run:").split()[1].decode()
            read_until(process.stdout, b"first")
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(timeout=TIMEOUT_S) == 141
            assert process.stderr is not None
            assert b"pipe" not in process.stderr.read().lower()
            assert axern.json("run", "get", run_id, "-o", "json")["run"]["status"] == "running"
            axern.run("run", "cancel", "--grace", "100ms", run_id)

    def test_bad_quantities_are_our_failure(self, axern: Axern) -> None:
        done = axern.run("run", *self.options, "--request-memory", "1G", "--", "true")
        assert done.returncode == 125
        assert b"--request-memory" in done.stderr
        assert b"[invalid_argument]" in done.stderr

    def test_logs_begin_where_they_are_told(self, axern: Axern) -> None:
        run_id = self.sh(axern, "printf abc", "--detach").stdout.decode().strip()
        assert axern.run("run", "logs", "-f", run_id).stdout == b"abc"
        assert axern.run("run", "logs", run_id).stdout == b"abc"
