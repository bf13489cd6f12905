"""`axern run` with the fake daemon: the contract, refusals, broken connections, no daemon."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import TIMEOUT_S, Axern
from tests.cli.contract import DOUBLE, MEBIBYTE, RunContract, read_until, wait_for
from tests.cli.fake import FakeDaemon

REFUSAL = {
    "code": "node_memory_capacity_exhausted",
    "diagnostic_code": "admission-blocked",
    "admission_summary": "node memory capacity exhausted",
    "retryable": True,
    "retry_after_s": 12,
    "generation": 4711,
    "message": "node memory: requested 4GiB, committed 28GiB of 30GiB, short by 2GiB",
    "hint": "ask for less",
    "shortfalls": [{"gate": "node", "dimension": "memory_bytes", "short_by": 2147483648}],
    "reasons": [],
}


class TestWithTheFakeDaemon(RunContract):
    @pytest.fixture
    def socket_path(self, fake: FakeDaemon) -> str:
        return fake.path


def test_a_refusal_is_125_with_its_code(axern: Axern, fake: FakeDaemon) -> None:
    fake.refusal = (507, REFUSAL)
    done = axern.run("run", "--", "true")
    assert done.returncode == 125
    assert done.stdout == b""
    assert done.stderr.decode().splitlines() == [
        f"axern: refused: {REFUSAL['message']} [node_memory_capacity_exhausted]",
        "  hint: ask for less",
    ]


def test_a_refusal_in_json_is_the_whole_structure(axern: Axern, fake: FakeDaemon) -> None:
    fake.refusal = (507, REFUSAL)
    for words in (["run", "-o", "json", "--", "true"], ["run", "-d", "--output=json", "true"]):
        done = axern.run(*words)
        assert done.returncode == 125
        assert json.loads(done.stdout) == {"error": REFUSAL}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("ttl_ms: it must be at least 1 ms", "--ttl: it must be at least 1 ms"),
        (
            "requests.memory_bytes must be at most limits.memory_bytes: request 2GiB",
            "--request-memory must be at most --limit-memory: request 2GiB",
        ),
        ("command.1: it must be a text", "COMMAND 1: it must be a text"),
        ("labels.: it must be a text", "--label: it must be a text"),
        ("other: it must be a text", "other: it must be a text"),
    ],
)
def test_fields_are_told_as_flags(axern: Axern, fake: FakeDaemon, message: str, shown: str) -> None:
    error = {"code": "invalid_argument", "retryable": False, "message": message, "hint": None}
    fake.refusal = (400, error)
    done = axern.run("run", "-o", "json", "--", "true")
    assert json.loads(done.stdout) == {"error": error | {"message": shown}}
    assert done.stderr.decode() == f"axern: {shown} [invalid_argument]\n"


def test_what_is_sent(axern: Axern, fake: FakeDaemon) -> None:
    axern.run(
        *"run --request-cpu 1.5 --limit-cpu 2 --request-memory 512MiB --limit-memory 1GiB".split(),
        *"--request-ephemeral-storage 10MiB --limit-ephemeral-storage 20MiB".split(),
        *"--request-gpu-memory 1GiB --namespace team-a --cwd /tmp --ttl 1h30m".split(),
        *"--template busybox --rootfs-readonly --runtime-class runc --request-id r1".split(),
        *"--env A=1 --env A=2 --rootfs below --timeout 90s --user nobody:5".split(),
        *"--require example.com/disk=nvme --require example.com/x".split(),
        *"--label team=search --label a/b= --label team=web --".split(),
        *("echo", "--", "--help"),
        cwd="/",
    )
    posted = [body for method, _, body in fake.requests if method == "POST"]
    assert posted == [
        {
            "request_id": "r1",
            "namespace": "team-a",
            "command": ["echo", "--", "--help"],
            "env": {"A": "2"},
            "cwd": "/tmp",
            "template": "busybox",
            "rootfs": "/below",
            "rootfs_readonly": True,
            "runtime_class": "runc",
            "requests": {
                "cpu_milli": 1500,
                "memory_bytes": 512 * MEBIBYTE,
                "ephemeral_storage_bytes": 10 * MEBIBYTE,
                "gpu_memory_bytes": 1024 * MEBIBYTE,
            },
            "limits": {
                "cpu_milli": 2000,
                "memory_bytes": 1024 * MEBIBYTE,
                "ephemeral_storage_bytes": 20 * MEBIBYTE,
            },
            "ttl_ms": 5_400_000,
            "timeout_ms": 90_000,
            "user": "nobody:5",
            "labels": {"team": "web", "a/b": ""},
            "stdin": False,
            "oom_kill_one": False,
            "require": ["example.com/disk=nvme", "example.com/x"],
            "network": "none",
            "publish": [],
        }
    ]


def test_what_is_left_out_is_not_sent(axern: Axern, fake: FakeDaemon) -> None:
    axern.run("run", "true")
    (body,) = [body for _, _, body in fake.requests if body]
    assert body["requests"] == body["limits"] == body["env"] == {}
    assert len(body.pop("request_id")) == 32
    unset = {name for name, value in body.items() if value is None}
    assert unset == {"template", "rootfs", "runtime_class", "ttl_ms", "timeout_ms", "user"}


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["echo", "-n", "hi"], ["echo", "-n", "hi"]),
        (["--cwd", "/", "echo", "--cwd", "x"], ["echo", "--cwd", "x"]),
        (["--", "get", "x"], ["get", "x"]),
        (["--", "--", "x"], ["--", "x"]),
        (["echo", "a", "--", "b"], ["echo", "a", "--", "b"]),
        (["--", "echo", "[bold]", ""], ["echo", "[bold]", ""]),
    ],
)
def test_where_the_command_begins(
    axern: Axern, fake: FakeDaemon, words: list[str], command: list[str]
) -> None:
    axern.run("run", *words)
    assert [body["command"] for _, _, body in fake.requests if body] == [command]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--"],
        ["--detach"],
        ["lst"],
        ["cancle", "abcd"],
        ["--bogus", "--", "true"],
        ["--request-cpu", "1e3", "--", "true"],
        ["--ttl", "5", "--", "true"],
        ["--env", "=x", "--", "true"],
        ["--label", "team", "--", "true"],
        ["--label", "=x", "--", "true"],
        ["--timeout", "1", "--", "true"],
        ["--timeout"],
        ["--rootfs", "", "--", "true"],
        ["--request-id=", "--", "true"],
        ["--env", "A=1", "--env", "", "--", "true"],
        ["--env-file", "/no/such/file", "--", "true"],
        ["--", "echo", "\udcff"],
        ["-i", "--detach", "--", "true"],
        ["-i", "--env-file", "-", "--", "true"],
        ["-f", "-", "--env-file", "-"],
        ["--env", "A=\udcff", "--", "true"],
        ["--env", "\udcff=A", "--", "true"],
        ["--env", "NO_SUCH_VARIABLE", "--", "true"],
    ],
)
def test_our_own_failures_are_125(axern: Axern, fake: FakeDaemon, words: list[str]) -> None:
    done = axern.run("run", *words)
    assert done.returncode == 125
    assert done.stdout == b""
    assert b"axern run" in done.stderr or b"[invalid_argument]" in done.stderr
    assert b"Traceback" not in done.stderr
    assert fake.runs == {}


def test_a_command_behind_a_flag_is_a_program_and_the_error_says_so(
    axern: Axern, fake: FakeDaemon
) -> None:
    done = axern.run("run", "-o", "json", "prune")
    assert done.returncode == 127
    hint = "behind a flag 'prune' is a program; the command stands first, as in: axern run list"
    assert json.loads(done.stdout)["error"]["hint"] == hint
    assert hint in done.stderr.decode()
    other = axern.run("run", "--", "no-such-program")
    assert (other.returncode, b"hint" in other.stderr) == (127, False)


def test_unenforced_resources_are_told_once(axern: Axern, fake: FakeDaemon) -> None:
    fake.enforced = False
    assert axern.run("run", "true").stderr.count(b"not enforced") == 1
    fake.enforced = True
    assert b"not enforced" not in axern.run("run", "true").stderr


def test_a_lost_answer_runs_nothing_twice(axern: Axern, fake: FakeDaemon) -> None:
    fake.lose_answers = 2
    done = axern.run("run", "--", "echo", "once")
    assert (done.returncode, done.stdout) == (0, b"once\n")
    posted = [body for _, _, body in fake.requests if body]
    assert len(posted) == 3
    assert posted[0] == posted[1] == posted[2]
    assert len(fake.runs) == 1


def test_broken_streams_are_resumed_without_loss(axern: Axern, fake: FakeDaemon) -> None:
    fake.cut_streams = [0, 1, 5, 20, 700, 100_000, 2_000_000]
    done = axern.run("run", "--", "sh", "-c", DOUBLE + "cat $f; cat $f >&2; rm $f; exit 5")
    expected = bytes(range(256)) * (MEBIBYTE // 256)
    assert done.returncode == 5
    assert done.stdout == expected
    assert done.stderr.partition(b"\n")[2] == expected
    assert fake.cut_streams == []


def test_a_restarted_daemon_is_found_again(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start("run", "--", "sh", "-c", "echo a; sleep 3; echo b") as process:
        read_until(process.stdout, b"a")
        fake.stop()
        read_until(process.stderr, b"trying again")
        fake.start()
        stdout, _ = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, stdout) == (0, b"b\n")


def test_a_signal_reaches_a_daemon_that_was_away(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start("run", "--", "sh", "-c", "echo a; exec sleep 600") as process:
        read_until(process.stdout, b"a")
        fake.stop()
        read_until(process.stderr, b"trying again")
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, b"cancelling")
        fake.start()
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130
        assert [run.view["status"] for run in fake.runs.values()] == ["cancelled"]


def test_a_signal_before_the_id_is_not_forgotten(axern: Axern, fake: FakeDaemon) -> None:
    fake.may_answer.clear()
    with axern.start("run", "--", "sleep", "600") as process:
        wait_for(lambda: any(method == "POST" for method, _, _ in fake.requests), "no POST")
        process.send_signal(signal.SIGINT)
        read_until(process.stderr, b"cancelling")
        fake.may_answer.set()
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert [run.view["status"] for run in fake.runs.values()] == ["cancelled"]


def test_two_signals_leave_even_without_a_daemon(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start("run", "--", "sh", "-c", "echo a; exec sleep 600") as process:
        read_until(process.stdout, b"a")
        fake.stop()
        process.send_signal(signal.SIGTERM)
        read_until(process.stderr, b"cancelling")
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 143
    assert b"it may go on" in stderr


def test_a_slow_reader_does_not_keep_a_signal_back(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start("run", "--", "sh", "-c", "exec cat /dev/zero") as process:
        wait_for(lambda: any(run.log for run in fake.runs.values()), "no output")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: all(run.over for run in fake.runs.values()), "not cancelled")
        assert process.poll() is None  # it still hands over what was written
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130


def test_following_logs_is_left_with_a_word(axern: Axern, fake: FakeDaemon) -> None:
    run_id = axern.run("run", "-d", "--", "sh", "-c", "echo ab; exec sleep 600").stdout.decode()
    with axern.start("run", "logs", "-f", run_id.strip()) as process:
        read_until(process.stdout, b"ab")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    # Between writing a piece and noting it, a signal makes the next call repeat it; none is lost.
    assert re.search(rb"run logs -f --from [03] ", stderr)
    assert [run.over for run in fake.runs.values()] == [False]


def test_an_ignored_signal_stays_ignored(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start(
        *("run", "--", "sh", "-c", "echo a; sleep 0.5; exit 4"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    ) as process:
        read_until(process.stdout, b"a")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 4


def test_closed_descriptors_stay_out_of_the_way(axern: Axern, fake: FakeDaemon) -> None:
    command = 'exec "$@" <&- >&- 2>&-'
    words = axern.argv("run", "--", "sh", "-c", "echo out; echo err >&2; exit 9")
    assert subprocess.run(["sh", "-c", command, "sh", *words], check=False).returncode == 9


def test_a_full_disk_is_told(axern: Axern, fake: FakeDaemon) -> None:
    with open("/dev/full", "wb") as full:
        done = axern.run("run", "echo", "x", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 125
    assert b"No space left" in done.stderr
    (run_id,) = fake.runs
    assert f"the run goes on; to end it: axern run cancel {run_id}\n" in done.stderr.decode()


def test_who_hangs_up_leaves_the_run_and_is_told_so(axern: Axern, fake: FakeDaemon) -> None:
    with axern.start("run", "--", "sh", "-c", "echo a; exec sleep 600") as process:
        read_until(process.stdout, b"a")
        process.send_signal(signal.SIGHUP)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 129
    (run_id,) = fake.runs
    assert stderr.decode().endswith(f"the run goes on; to end it: axern run cancel {run_id}\n")
    assert [run.view["status"] for run in fake.runs.values()] == ["running"]


def test_a_non_blocking_output_loses_nothing(axern: Axern, fake: FakeDaemon) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with axern.start("run", "--", "head", "-c", "500000", "/dev/zero", stdout=writing) as process:
        os.close(writing)
        with open(reading, "rb") as pipe:
            assert pipe.read() == bytes(500_000)
        process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0


@pytest.mark.parametrize("kind", ["absent", "refused", "silent"])
def test_without_a_daemon_run_leaves_no_trace(
    short_root: Path, fake: FakeDaemon, axern: Axern, kind: str
) -> None:
    if kind == "silent":
        fake.silent = True
    else:
        fake.stop()
        if kind == "refused":
            Path(fake.path).touch()
    before = sorted(short_root.rglob("*"))
    done = axern.run("run", "-o", "json", "--", "true", cwd=short_root)
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "daemon_unreachable"
    assert b"[daemon_unreachable]" in done.stderr
    assert sorted(short_root.rglob("*")) == before
    assert fake.runs == {}
    fake.silent = False


def test_a_forbidden_socket_is_named(short_root: Path) -> None:
    path = "/" + "x" * 200
    done = Axern(("--socket", path)).run("run", "true")
    assert done.returncode == 125
    assert b"[invalid_argument]" in done.stderr
