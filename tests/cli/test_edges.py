"""Where a command meets the edges of its process: pipes, descriptors, signals, and wrong words."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.command import TIMEOUT_S, Axern
from tests.cli.fake import FakeDaemon
from tests.tidy.table import leaves

TALKATIVE = [
    ["version"],
    ["--version"],
    ["--help"],
    ["run", "--help"],
    ["completion", "bash"],
    ["node", "status", "-o", "json"],
    ["reservations"],
    ["reservations", "--bad", "-ojson"],
]


@pytest.mark.parametrize("words", TALKATIVE, ids=" ".join)
def test_nobody_reads(axern: Axern, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = axern.run(*words, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert done.returncode == 141
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", TALKATIVE, ids=" ".join)
def test_the_disk_is_full(axern: Axern, words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = axern.run(*words, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode in {1, 2}
    assert b"axern: the output could not be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", TALKATIVE[:-1], ids=" ".join)
def test_descriptors_are_closed(axern: Axern, words: list[str], closed: str) -> None:
    argv = ["sh", "-c", f'exec "$@" {closed}', "sh", *axern.argv(*words)]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) is (">&-" not in closed.replace("2>&-", ""))


INTERRUPTED = """
import os, sys
left = int(sys.argv.pop(1))
def hook(event, arguments):
    global left
    begun = "axern.cli.dispatch" in sys.modules or arguments[:1] == ("axern.cli.dispatch",)
    if event == "import" and begun:
        left -= 1
        if left == 0:
            os.write(2, b"sent\\n")
            os.kill(os.getpid(), 2)
sys.addaudithook(hook)
from axern.cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("words", "step"), [(["reservations"], 1), (["node", "status", "--bad"], 12)]
)
def test_an_interrupt_at_any_import_ends_it_without_a_word(
    axern: Axern, fake: FakeDaemon, words: list[str], step: int
) -> None:
    sent = 0
    for number in range(1, 1000, step):
        argv = [sys.executable, "-c", INTERRUPTED, str(number), *axern.options, *words]
        done = subprocess.run(argv, capture_output=True, check=False, timeout=TIMEOUT_S)
        if b"sent\n" not in done.stderr:
            break
        sent += 1
        assert (done.returncode, done.stderr) == (130, b"sent\n"), number
    assert sent > 5


def test_who_ignores_interrupts_goes_on_ignoring_them(axern: Axern, fake: FakeDaemon) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, "3", *axern.options, "reservations"]
    done = subprocess.run(
        argv,
        capture_output=True,
        check=False,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (done.returncode, done.stderr) == (0, b"sent\n")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["node", "status", "--bad", "-o", "json"], 2),
        (["run", "get", "-ojson"], 2),
        (["run", "get", "zz", "--output=json"], 2),
        (["run", "lst", "-o", "json"], 125),
        (["run", "--ttl", "1parsec", "-o", "json", "true"], 125),
        (["run", "-o", "json", "--bad", "true"], 125),
        (["reservations", "list", "--phase", "x", "--format", "ndjson"], 2),
        (["nonsense", "-o", "json"], 2),
        (["-o", "json", "node", "status"], 2),
        (["run", "list", "--since=", "-o", "json"], 2),
        (["run", "prune", "--label", "", "-o", "json"], 2),
        (["--socket", "", "node", "status", "-o", "json"], 2),
        (["run", "list", "-o", "json", "--limit", "0"], 2),
        (["run", "list", "-o", "json", "--limit"], 2),
        (["run", "list", "-o", "json", "--namespace", "\udcff"], 2),
        (["run", "list", "-o", "json", "--label", "\udcff"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_an_error_is_json_where_json_was_asked_for(
    axern: Axern, words: list[str], code: int
) -> None:
    done = axern.run(*words)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (code, "invalid_argument")
    assert error["message"] in done.stderr.decode()


def test_every_command_tells_a_wrong_flag_in_json(axern: Axern) -> None:
    for words, row in leaves():
        if row.hidden or not any(option.name == "output" for option in row.options):
            continue
        done = axern.run(*words, "--no-such-flag", "-o", "json")
        assert done.returncode == row.usage_exit_code, words
        assert json.loads(done.stdout)["error"]["code"] == "invalid_argument", words
        assert "--help" in done.stderr.decode()
