"""Leases by the command line, with a real daemon: held for a command, lost, renewed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.contract import read_until
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")
STALE_S = 3.0
TICK_S = 1.0
CHILDREN = "(trap '' TERM; sleep 600 & sleep 601) & echo on; sleep 602"
SLACK_S = 5.0
"""What a busy machine may take beside the window, for a commit and for us to look."""


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(stale_after=f"{STALE_S:g}s", lease_max_lifetime="1h") as made:
        made.start()
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(lab: DaemonLab) -> Iterator[None]:
    yield
    assert lab.reservations() == []


def reserve(lab: DaemonLab, *words: str) -> subprocess.CompletedProcess[bytes]:
    return lab.axern("reserve", *SMALL, *words)


def printed(lab: DaemonLab, *words: str) -> dict[str, Any]:
    done = reserve(lab, *words, "-o", "json")
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held(lab: DaemonLab) -> bool:
    return bool(lab.reservations())


def test_a_command_runs_while_its_lease_is_held(lab: DaemonLab) -> None:
    script = f"{' '.join(lab.argv('reservations', '-o', 'json'))}; echo $AXERN_LEASE >&2; exit 7"
    done = reserve(lab, "--name", "build", "--ttl", "5m", "--", "sh", "-c", script)
    assert done.returncode == 7, done
    (row,) = json.loads(done.stdout)["reservations"]
    assert row["owner"] == {"kind": "external", "uid": os.getuid(), "name": "build"}
    assert (row["requests"]["cpu_milli"], row["lane"]) == (10, None)
    assert done.stderr.decode().split() == ["Lease:", row["id"], row["id"]]


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)]
)
def test_the_commands_code_is_ours(lab: DaemonLab, script: str, code: int) -> None:
    assert reserve(lab, "--", "sh", "-c", script).returncode == code


def test_what_is_no_program_has_the_codes_of_shells(lab: DaemonLab) -> None:
    missing = reserve(lab, "-o", "json", "--", "/no/such/program")
    assert (missing.returncode, json.loads(missing.stdout)["error"]["code"]) == (
        127,
        "runtime_start_error",
    )
    assert reserve(lab, "--", "/etc").returncode == 126


def test_a_refusal_is_our_own_failure_with_a_command_and_the_nodes_without(lab: DaemonLab) -> None:
    done = lab.axern("reserve", "--request-memory", "900TiB", "--", "true")
    assert done.returncode == 125
    assert b"[request_exceeds_node]" in done.stderr
    assert lab.axern("reserve", "--request-memory", "900TiB").returncode == 3
    done = reserve(lab, "--max-lifetime", "2h", "--", "true")
    assert done.returncode == 125
    assert b"--max-lifetime: no lease of this node lasts longer than 1h" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_handed_on(lab: DaemonLab, number: int) -> None:
    name = signal.Signals(number).name.removeprefix("SIG")
    script = f"trap 'echo got; exit 4' {name}; echo begun; while :; do sleep 0.05; done"
    process = lab.popen("reserve", *SMALL, "--", "sh", "-c", script)
    read_until(process.stdout, b"begun")
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (4, b"got\n")


def test_an_interrupted_command_is_130(lab: DaemonLab) -> None:
    process = lab.popen("reserve", *SMALL, "--", "sh", "-c", "echo begun; exec sleep 600")
    read_until(process.stdout, b"begun")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_killed_holder_is_reclaimed_in_its_window_and_never_before(lab: DaemonLab) -> None:
    process = lab.popen("reserve", *SMALL, "--", "sh", "-c", "echo begun $$; exec sleep 600")
    command = int(read_until(process.stdout, b"begun").split()[-1])
    # While it is stopped nobody hears from it, but it lives: that is looked at, not guessed.
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    while time.monotonic() < began + STALE_S + 3 * TICK_S:
        assert held(lab)
        time.sleep(0.1)
    process.send_signal(signal.SIGCONT)
    process.kill()
    killed = time.monotonic()
    process.wait()
    wait_until(lambda: not held(lab), 60)
    assert time.monotonic() - killed <= STALE_S + TICK_S + SLACK_S
    # What ran under it does not go on without it.
    wait_until(lambda: not os.path.exists(f"/proc/{command}"), 60)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()


def test_the_command_ends_with_its_lease(lab: DaemonLab) -> None:
    began = time.monotonic()
    done = reserve(lab, "--ttl", "2s", "--max-lifetime", "4s", "-o", "json", "--", "sleep", "600")
    assert time.monotonic() - began >= 3
    assert done.returncode == 125
    assert json.loads(done.stdout)["error"]["code"] == "lease_lost"
    assert b"is over; the command is ended" in done.stderr


def test_a_lease_that_is_taken_away_ends_the_command(lab: DaemonLab) -> None:
    # What it has started hears of it too, and what does not listen is killed.
    process = lab.popen("reserve", *SMALL, "--ttl", "3s", "--", "sh", "-c", CHILDREN)
    read_until(process.stdout, b"on")
    (row,) = lab.reservations()
    lab.request("DELETE", f"/v2/reservations/{row['id']}")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 125
    assert b"is lost: no reservation has the id" in stderr


def test_a_holder_outlives_a_daemon_that_is_restarted(lab: DaemonLab) -> None:
    process = lab.popen("reserve", *SMALL, "--ttl", "12s", "--", "sh", "-c", "echo on; sleep 20")
    read_until(process.stdout, b"on")
    (before,) = lab.reservations()
    lab.kill(lab.processes[-1])
    lab.start()
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert b"lost" not in stderr
    assert before["id"].encode() in stderr


def test_a_printed_lease_is_renewed_by_its_token_up_to_its_lifetime(lab: DaemonLab) -> None:
    lease = printed(lab, "--ttl", "30s", "--max-lifetime", "40s")
    found, token = lease["reservation"]["id"], lease["token"]
    assert lease["expires_in_ms"] <= 30_000
    done = lab.axern("reserve", "renew", found[:12], "--token", token, "--ttl", "20m", "-o", "json")
    assert done.returncode == 0, done
    renewed = json.loads(done.stdout)
    assert 30_000 < renewed["expires_in_ms"] <= 40_000
    assert renewed["reservation"]["expires_at"] == renewed["reservation"]["latest_expiry_at"]
    refused = lab.axern("reserve", "renew", found, "--token", "another")
    assert refused.returncode == 5
    assert b"[permission_denied]" in refused.stderr
    assert lab.axern("reserve", "renew", found).returncode == 2
    text = lab.axern("reservations", "inspect", found).stdout.decode()
    assert token not in text + lab.log()
    assert lab.axern("reservations", "release", found).returncode == 0
    late = lab.axern("reserve", "renew", found, "--token", token)
    assert late.returncode == 5
    assert b"[not_found]" in late.stderr


def test_a_repeat_takes_the_lease_over_from_whoever_was_late(lab: DaemonLab) -> None:
    first = printed(lab, "--request-id", "build-42")
    found = first["reservation"]["id"]
    second = printed(lab, "--request-id", "build-42")
    assert second["reservation"]["id"] == found
    late = lab.axern("reserve", "renew", found, "--token", first["token"])
    assert b"[permission_denied]" in late.stderr
    # A late holder does not release what is another one's by now either.
    with pytest.raises(Exception, match="token does not belong"):
        lab.request("DELETE", f"/v2/reservations/{found}", {"token": first["token"]})
    lab.request("DELETE", f"/v2/reservations/{found}", {"token": second["token"]})


def test_text_has_what_a_person_needs(lab: DaemonLab) -> None:
    lines = dict(
        line.split(":", 1) for line in reserve(lab).stdout.decode().splitlines() if ":" in line
    )
    assert list(lines) == ["lease", "namespace", "holds", "expires", "renewable until", "token"]
    lab.request("DELETE", f"/v2/reservations/{lines['lease'].strip()}")


def test_leases_within_a_lease_draw_it_down_and_end_with_it(lab: DaemonLab) -> None:
    script = "echo $AXERN_LEASE; exec sleep 600"
    process = lab.popen("reserve", *SMALL, "--", "sh", "-c", script)
    assert process.stdout is not None
    outer = process.stdout.readline().decode().strip()
    inner = ("reserve", "--parent", outer[:12], "--request-cpu", "6m", "--request-memory", "4MiB")
    first = json.loads(lab.axern(*inner, "-o", "json").stdout)
    assert first["reservation"]["parent_id"] == outer
    assert first["reservation"]["latest_expiry_at"] is not None
    second = lab.axern(*inner)
    assert second.returncode == 5
    assert b"CPU: 6m asked for, 4m left of 10m [state_conflict]" in second.stderr
    rows = json.loads(lab.axern("node", "capacity", "-o", "json").stdout)["node"]["dimensions"]
    committed = {row["name"]: row["committed"] for row in rows}
    # The inner one is in it already, and none of them is a sandbox.
    assert (committed["cpu_milli"], committed["sandbox_slots"]) == (10, 0)
    process.terminate()
    process.communicate(timeout=60)
    assert lab.reservations() == []
    gone = lab.axern("reserve", "renew", first["reservation"]["id"], "--token", first["token"])
    assert b"[not_found]" in gone.stderr
    told = lab.axern("reservations", "inspect", first["reservation"]["id"], "-o", "json")
    assert json.loads(told.stdout)["reservation"]["phase"] == "released"
