"""What the commands show that only look: from the daemon, and from the ledger's files."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from axern import __version__
from axern.cli.commands import common
from axern.runtime import outcome
from ledger.reservation import PHASES
from tests.cli.command import Axern
from tests.cli.fake import AT, DIMENSIONS, FakeDaemon, Run

RESERVATION = {
    "id": "0123456789abcdef0123456789abcdef",
    "namespace": "default",
    "owner": {"kind": "external", "uid": 0, "name": "a\x1b[2J[bold]"},
    "phase": "running",
    "liveness": "active",
    "requests": dict.fromkeys(DIMENSIONS, 0) | {"cpu_milli": 500, "sandbox_slots": 1},
    "limits": dict.fromkeys(DIMENSIONS),
    "charged": dict.fromkeys(DIMENSIONS, 0) | {"cpu_milli": 500, "sandbox_slots": 1},
    "enforced": True,
    "runtime_class": "runsc",
    "lane": 0,
    "gpu_device": None,
    "created_at": AT,
    "expires_at": None,
    "last_heartbeat_at": None,
    "request_id": None,
    "reason": None,
}

EVERY_COMMAND = [
    ["reservations"],
    ["reservations", "list"],
    ["reservations", "inspect", "0123"],
    ["node", "capacity"],
    ["node", "status"],
    ["template", "list"],
    ["run", "list"],
    ["run", "get", "0123"],
    ["run", "cancel", "0123"],
    ["run", "logs", "0123"],
]


def test_version(tmp_path: Path) -> None:
    nowhere = Axern(("--socket", str(tmp_path / "none")))
    for words in (["version"], ["--version"]):
        done = nowhere.run(*words)
        assert (done.returncode, done.stdout) == (0, f"axern {__version__}\n".encode())
    assert nowhere.json("version", "-o", "json") == {"version": __version__}


def test_reservations_as_a_table(axern: Axern, fake: FakeDaemon) -> None:
    fake.reservations = [RESERVATION]
    for words in (["reservations"], ["reservations", "list", "--format", "text"]):
        done = axern.run(*words)
        header, row = done.stdout.decode().splitlines()
        assert header.split()[:6] == ["ID", "NAMESPACE", "OWNER", "PHASE", "LIVENESS", "CPU"]
        assert "GPU" not in header
        assert row.startswith("0123456789ab  default")
        assert r"a\x1b[2J[bold]" in row
        assert done.stderr == b""


def test_no_reservations_is_a_header(axern: Axern) -> None:
    assert axern.run("reservations").stdout.count(b"\n") == 1


def test_reservations_for_programs(axern: Axern, fake: FakeDaemon) -> None:
    fake.reservations = [RESERVATION, RESERVATION]
    whole = axern.json("reservations", "list", "-o", "json")
    assert whole == {"reservations": [RESERVATION] * 2, "generation": 41, "source": "daemon"}
    assert axern.json("reservations", "-o", "json") == whole
    lines = axern.run("reservations", "list", "--format", "ndjson").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [RESERVATION] * 2
    assert axern.json("reservations", "inspect", "0123", "-o", "json")["reservation"] == RESERVATION


def test_filters_are_sent(axern: Axern, fake: FakeDaemon) -> None:
    axern.run("reservations", "list", "--namespace", "a b", "--phase", "running")
    assert fake.requests[-1][1] == "/v2/reservations?namespace=a+b&phase=running"
    axern.run("run", "list", "--namespace", "x", "--status", "failed")
    assert fake.requests[-1][1] == "/v2/runs?namespace=x&status=failed&limit=100"
    axern.run(
        *"run list --status failed --status running --label a=1,2% --label b --mine".split(),
        *"--before 2026-01-31T12:00:00Z -n 7 --cursor 3".split(),
    )
    assert parse_qs(fake.requests[-1][1].partition("?")[2]) == {
        "status": ["failed,running"],
        "label": ["a=1%2C2%25,b"],
        "owner": [str(os.getuid())],
        "created_before_ms": ["1769860800000"],
        "limit": ["7"],
        "cursor": ["3"],
    }


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--since", "yesterday"],
        ["list", "--since", "2026-01-31T12:00:00"],
        ["list", "--since", "5"],
        ["list", "--owner", "root"],
        ["list", "--owner", "1", "--mine"],
        ["list", "--limit", "0"],
        ["prune", "--older-than", "7"],
        ["prune", "--status", "running"],
    ],
)
def test_a_filter_that_says_nothing_is_a_usage_error(
    axern: Axern, fake: FakeDaemon, words: list[str]
) -> None:
    done = axern.run("run", *words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr
    assert fake.requests == []


LISTED = {
    "id": "0123456789abcdef0123456789abcdef",
    "namespace": "default",
    "status": "succeeded",
    "exit_code": 0,
    "created_at": AT,
    "finished_at": AT,
    "command": ["true"],
}


def test_programs_get_every_page_and_people_are_told(axern: Axern, fake: FakeDaemon) -> None:
    number = 1_050
    fake.runs = {str(index): Run(LISTED) for index in range(number)}
    assert len(axern.run("run", "list", "-o", "ndjson").stdout.splitlines()) == number
    answer = axern.json("run", "list", "-o", "json")
    assert (len(answer["runs"]), answer["next_cursor"]) == (number, None)
    answer = axern.json("run", "list", "-o", "json", "--limit", "3", "--cursor", "5")
    assert (len(answer["runs"]), answer["next_cursor"]) == (3, "8")
    done = axern.run("run", "list")
    assert len(done.stdout.splitlines()) == 101
    assert done.stderr == b"axern: there are more: --cursor 100 shows what follows\n"
    assert axern.run("run", "list", "-n", "2000").stderr == b""


def test_what_is_pruned_is_told(axern: Axern, fake: FakeDaemon) -> None:
    fake.runs = {"aa" * 16: Run(LISTED)}
    done = axern.run("run", "prune", "--dry-run", "--label", "a", "--label", "b=")
    assert done.stdout.decode() == f"{'aa' * 16}\n"
    assert done.stderr == b"1 run would be removed, 4KiB in all\n"
    _, _, body = fake.requests[-1]
    assert body is not None
    assert (body["labels"], body["dry_run"], body["older_than_ms"]) == (
        {"a": None, "b": ""},
        True,
        0,
    )
    assert axern.run("run", "prune", "--older-than", "1d").stdout == b"1 run removed, 4KiB freed\n"
    assert axern.json("run", "prune", "-o", "json")["pruned"]["count"] == 1


@pytest.mark.parametrize(
    ("words", "known"),
    [
        (["reservations", "list", "--phase"], common.PHASES),
        (["run", "list", "--status"], common.STATUSES),
    ],
)
def test_an_unknown_filter_is_refused_with_the_known_ones(
    axern: Axern, fake: FakeDaemon, words: list[str], known: Any
) -> None:
    done = axern.run(*words, "bogus")
    assert (done.returncode, done.stdout) == (2, b"")
    assert all(f"'{word}'" in done.stderr.decode() for word in known)
    assert fake.requests == []


def test_the_filters_are_the_words_of_the_daemon() -> None:
    assert common.PHASES == PHASES
    assert (*PHASES, outcome.SUCCEEDED, outcome.FAILED, outcome.CANCELLED) == common.STATUSES


def test_fields_are_in_one_column(axern: Axern, fake: FakeDaemon) -> None:
    fake.reservations = [RESERVATION]
    lines = axern.run("reservations", "inspect", "0123").stdout.decode().splitlines()
    assert lines[0] == "id:             0123456789abcdef0123456789abcdef"
    assert "requests:       CPU 500m, sandbox slots 1" in lines
    assert "limits:         none" in lines
    assert "lane:           0" in lines
    assert "expires:        -" in lines


def test_the_node(axern: Axern) -> None:
    status = axern.run("node", "status").stdout.decode()
    assert "node:         node-1" in status
    assert "runc" in status
    assert "runtime/runc" in status
    capacity = axern.run("node", "capacity").stdout.decode().splitlines()
    assert len(capacity) == 1 + len(DIMENSIONS)
    assert "EFFECTIVE" in capacity[0]
    assert axern.json("node", "capacity", "-o", "json")["source"] == "daemon"


def test_templates(axern: Axern) -> None:
    assert b"/t/busybox" in axern.run("template", "list").stdout
    assert axern.json("template", "list", "-o", "json")["templates"][0]["name"] == "busybox"


def test_runs(axern: Axern) -> None:
    axern.run("run", "--", "echo", "a b\x1b")
    (run,) = axern.json("run", "list", "-o", "json")["runs"]
    header, row = axern.run("run", "list").stdout.decode().splitlines()
    assert header.split() == ["ID", "NAMESPACE", "STATUS", "EXIT", "AGE", "COMMAND"]
    assert row.split()[:4] == [run["id"][:12], "default", "succeeded", "0"]
    assert row.endswith(r"echo 'a b\x1b'")
    assert b"exit code:        0" in axern.run("run", "get", run["id"][:4]).stdout


def test_the_run_of_somebody_else_is_shown_without_its_command(
    axern: Axern, fake: FakeDaemon
) -> None:
    run_id = axern.run("run", "-d", "--", "echo", "x").stdout.decode().strip()
    fake.runs[run_id].view |= {"command": None, "message": None}
    listed = axern.run("run", "list")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.decode().splitlines()[1].split()[-1] == "-"
    shown = axern.run("run", "get", run_id[:8])
    assert shown.returncode == 0, shown.stderr
    assert b"command:          -\n" in shown.stdout


def test_a_run_names_its_template(axern: Axern, fake: FakeDaemon) -> None:
    run_id = axern.run("run", "-d", "--rootfs-readonly", "true").stdout.decode().strip()
    fake.runs[run_id].view["rootfs"] = "/t/busybox"
    shown = axern.run("run", "get", run_id[:8]).stdout.decode()
    assert "root file system: template busybox (read-only)\n" in shown


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["run", "get", "beef"], "not_found", 5),
        (["run", "logs", "beef"], "not_found", 5),
        (["run", "logs", "-f", "beef"], "not_found", 5),
        (["run", "cancel", "beef"], "not_found", 5),
        (["run", "get", "x"], "invalid_argument", 2),
        (["run", "cancel", "--grace", "5", "beef"], "invalid_argument", 2),
        (["node", "stats"], "invalid_argument", 2),
        (["run", "get", "--bogus"], "invalid_argument", 2),
    ],
)
def test_exit_codes(axern: Axern, words: list[str], code: str, exit_code: int) -> None:
    done = axern.run(*words)
    assert done.returncode == exit_code
    assert done.stdout == b""
    assert f"[{code}]".encode() in done.stderr
    if "logs" not in words:
        failed = axern.run(*words, "-o", "json")
        assert failed.returncode == exit_code
        assert json.loads(failed.stdout)["error"]["code"] == code


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["-o", "json", "run", "true"], "it goes behind the command"),
        (["node", "--output=json", "status"], "it goes behind the command"),
        (["--bogus", "run", "true"], "axern --help"),
        (["reservations", "-o"], "axern reservations list --help"),
        (["run", "logs", "-o", "json", "beef"], "axern run logs --help"),
    ],
)
def test_where_the_output_flag_goes(axern: Axern, words: list[str], hint: str) -> None:
    done = axern.run(*words)
    assert done.returncode == 2
    assert f"  hint: {hint}" in done.stderr.decode()


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_a_closed_output_is_quiet(axern: Axern, fake: FakeDaemon, words: list[str]) -> None:
    fake.reservations = [RESERVATION]
    run_id = axern.run("run", "-d", "--", "echo", "x").stdout.decode().strip()
    words = [run_id if word == "0123" and words[0] == "run" else word for word in words]
    reading, writing = os.pipe()
    os.close(reading)
    done = axern.run(*words, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_no_daemon_and_no_ledger_is_6(short_root: Path, words: list[str]) -> None:
    config = short_root / "axern.toml"
    config.write_text(f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n')
    done = Axern(("--config", str(config))).run(*words)
    assert done.returncode == 6
    assert b"[daemon_unreachable]" in done.stderr
    assert done.stdout == b""
    assert os.listdir(short_root) == ["axern.toml"]


def test_a_silent_daemon_counts_as_down(axern: Axern, fake: FakeDaemon) -> None:
    fake.silent = True
    done = axern.run("node", "status", "-o", "json")
    fake.silent = False
    assert done.returncode == 6
    error: dict[str, Any] = json.loads(done.stdout)["error"]
    assert (error["code"], error["retryable"]) == ("daemon_unreachable", True)
