"""Logs under a real daemon and a real monitor: bounded, whole, counted, and nobody's brake."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from axern.api.client import Client
from axern.runtime import segments
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

MAX_BYTES = 4 * 1024**2
FLAGS = ("--runtime-class", "runc", "--request-cpu", "10m", "--request-memory", "16MiB")
LINE = b"%09d\n"


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(log_max="4MiB") as made:
        made.start()
        yield made


def log_of(lab: DaemonLab, run_id: str) -> str:
    return lab.layout.sandbox(run_id).log


def size_of(folder: str) -> int:
    """Return what the files of a log take, each once, or 0 if they were others meanwhile."""
    sizes = {}
    names = sorted(os.listdir(folder))
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{folder}/{name}")
            sizes[status.st_ino] = status.st_size if "output" in name else 0
    # One that was dropped, and one begun since, were never there together.
    return sum(sizes.values()) if sorted(os.listdir(folder)) == names else 0


def logs(lab: DaemonLab, *words: str) -> subprocess.CompletedProcess[bytes]:
    done = lab.axern("run", "logs", *words)
    assert done.returncode == 0, done.stderr
    return done


def test_a_flood_fits_its_bounds_and_what_is_dropped_is_counted(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sh", "-c", "yes & sleep 2; kill $!")
    lab.wait_status(run_id, "running")
    folder = lab.layout.sandbox(run_id).run_folder
    slowest_s = 0.0
    biggest = 0
    while lab.run(run_id)["status"] == "running":
        began_s = time.monotonic()
        lab.request("GET", "/v2/health")
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        biggest = max(biggest, size_of(folder))
    lab.wait_status(run_id, "succeeded")
    assert slowest_s < 5
    assert biggest > MAX_BYTES // 2
    # One file more may be begun before anybody looks, and one that nobody has laid out.
    assert biggest <= MAX_BYTES + 2 * segments.segment_bytes(MAX_BYTES)

    def log() -> dict[str, int]:
        found: dict[str, int] = lab.request("GET", f"/v2/runs/{run_id}")["log"]
        return found

    wait_until(lambda: log()["kept_bytes"] <= MAX_BYTES)  # brought to rest beside the answers
    assert log()["kept_bytes"] > MAX_BYTES // 2
    assert log()["dropped_bytes"] > 0
    done = logs(lab, run_id)
    assert set(done.stdout) == set(b"y\n")
    assert b"no longer kept" in done.stderr
    shown = lab.axern("run", "get", run_id).stdout
    assert re.search(rb"log: +\d.*(lines|unknown amount) dropped before", shown)


def test_a_foreground_run_whose_output_was_dropped_does_not_look_whole(lab: DaemonLab) -> None:
    process = lab.popen("run", *FLAGS, "--", "sh", "-c", "echo begin; yes | head -c 2000000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    lab.wait_empty()  # a reader that stands still holds up nobody
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 125, stderr
    assert len(stdout) < 2_000_000
    counts = re.findall(rb"here: ([\d,]+) line", stderr)
    missing = [int(text.replace(b",", b"")) for text in counts]
    if b"unknown length" not in stderr:
        assert len(b"begin\n" + stdout) // 2 + sum(missing) == 1_000_000 + 3, stderr
    assert b"no longer kept" in stderr
    assert b"[output_incomplete]" in stderr


def test_output_is_whole_over_files_restarts_and_resumption(lab: DaemonLab) -> None:
    count = 25_000
    # So slowly that a daemon may be away for seconds, while the monitor begins one file at most.
    script = (
        f"i=0; while [ $i -lt {count} ]; do printf '%09d\\n' $i; i=$((i+1)); "
        "[ $((i % 1000)) -ne 0 ] || sleep 0.3; done; exit 3"
    )
    process = lab.popen("run", *FLAGS, "--", "sh", "-c", script)
    assert process.stdout is not None
    read = os.read(process.stdout.fileno(), 1000)  # what a buffer holds, communicate would miss
    lab.kill(lab.processes[-1])
    lab.start()
    rest, stderr = process.communicate(timeout=120)
    assert process.returncode == 3, stderr
    assert read + rest == b"".join(LINE % number for number in range(count))
    run_id = stderr.split()[1].decode()
    assert len(segments.survey(log_of(lab, run_id))) > 2
    assert lab.request("GET", f"/v2/runs/{run_id}")["log"]["dropped_bytes"] == 0
    assert logs(lab, run_id).stdout == read + rest


def test_without_a_daemon_the_monitor_keeps_within_bounds_and_the_gap_is_told(
    lab: DaemonLab,
) -> None:
    script = "echo first; read x < /dev/null; sleep 1; yes | head -c 2000000; echo last; sleep 600"
    run_id = lab.detach("runc", "sh", "-c", script)
    lab.wait_status(run_id, "running")
    lab.kill(lab.processes[-1])
    folder, log = lab.layout.sandbox(run_id).run_folder, log_of(lab, run_id)

    def has_ended() -> bool:
        with open(log, "rb") as file:
            return b" last\n" in file.read()

    wait_until(has_ended, 60)
    assert size_of(folder) <= 4 * segments.segment_bytes(MAX_BYTES)
    lab.start()
    done = logs(lab, run_id)
    assert done.stdout.startswith(b"first\n")
    assert done.stdout.endswith(b"y\nlast\n")
    assert b"output of unknown length" in done.stderr
    assert lab.request("GET", f"/v2/runs/{run_id}")["log"]["dropped_records"] is None


def test_a_stalled_reader_is_nobodys_brake(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sh", "-c", "yes | head -c 1000000; sleep 0.5; echo over")
    stalled = []
    for _ in range(8):
        reader = socket.socket(socket.AF_UNIX)
        reader.connect(lab.socket)
        request = f"GET /v2/runs/{run_id}/stream HTTP/1.1\r\nHost: axern\r\n\r\n"
        reader.sendall(request.encode())
        stalled.append(reader)
    lab.wait_status(run_id, "succeeded")
    with Client(lab.socket) as client:
        client.health()
    assert logs(lab, "--tail", "1", run_id).stdout == b"over\n"
    with open(f"/proc/{lab.processes[-1].pid}/status", encoding="ascii") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    assert int(peak.split()[1]) < 300 * 1024
    for reader in stalled:
        reader.close()


def test_the_beginning_can_be_chosen(lab: DaemonLab) -> None:
    run_id = lab.detach("runc", "sh", "-c", "echo a; echo b >&2; sleep 1; echo c; printf d")
    lab.wait_status(run_id, "succeeded")
    assert logs(lab, run_id).stdout == b"a\nc\nd"
    assert logs(lab, run_id).stderr == b"b\n"
    assert logs(lab, "--tail", "2", run_id).stdout == b"c\nd"
    assert logs(lab, "--tail", "0", run_id).stdout == b""
    assert logs(lab, "-f", "--tail", "1", run_id).stdout == b"d"
    stamped = logs(lab, "--timestamps", run_id).stdout.decode().splitlines()
    assert [line.split(" ", 1)[1] for line in stamped] == ["a", "c", "d"]
    time_of_c = stamped[1].split(" ", 1)[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", time_of_c)
    assert logs(lab, "--since", time_of_c, run_id).stdout == b"c\nd"
    assert logs(lab, "--since", "1h", run_id).stdout == b"a\nc\nd"
    for words, complaint in (
        (
            ("--since", "2026-01-31 12:00"),
            b"--since: '2026-01-31 12:00' is neither a duration ago nor",
        ),
        (("--since", "soon"), b"--since"),
        (("--from", "1"), b"--from: no record ends at 1"),
        (("--from", "99999"), b"--from: 99999 is behind the log's end"),
        (("--from", "1", "--tail", "1"), b"--from says where to begin"),
    ):
        done = lab.axern("run", "logs", *words, run_id)
        assert done.returncode == 2, (words, done)
        assert complaint in done.stderr, done.stderr
    silent = lab.detach("runc", "true")
    lab.wait_status(silent, "succeeded")
    assert logs(lab, "-f", silent).stdout == b""
    for name in os.listdir(lab.layout.sandbox(silent).run_folder):
        if name.startswith("output"):
            os.unlink(f"{lab.layout.sandbox(silent).run_folder}/{name}")
    gone = lab.axern("run", "logs", silent)
    assert gone.returncode == 5
    assert b"was removed" in gone.stderr
