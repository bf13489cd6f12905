"""Completion in the shells themselves."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import TIMEOUT_S, Axern
from tests.cli.fake import FakeDaemon

FOLDER = str(Path(sys.executable).parent)
RUN_ID = "4f1c" * 8


@pytest.fixture
def home(tmp_path: Path, fake: FakeDaemon) -> Path:
    """A folder with the scripts, a daemon that knows one run, and nothing of this user."""
    axern = Axern(("--socket", fake.path))
    started = axern.run("run", "-d", "--", "true")
    run = fake.runs.pop(started.stdout.decode().strip())
    run.view["id"] = RUN_ID
    fake.runs[RUN_ID] = run
    for shell in ("bash", "zsh", "fish"):
        done = axern.run("completion", shell)
        (tmp_path / shell).write_bytes(done.stdout)
    (tmp_path / "some folder").mkdir()
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{FOLDER}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "HOME": str(home), "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def typed(home: Path, argv: list[str], start: str, line: str) -> str:
    """Type *line* and a tab into an interactive shell, and return the line as it then stands.

    *start* makes Ctrl-X write the line to the file `line`.
    """
    (home / "line").unlink(missing_ok=True)
    (home / "ready").unlink(missing_ok=True)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        argv,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(home),
        cwd=home,
        start_new_session=True,
    )
    os.close(follower)
    seen = b""
    try:
        os.write(leader, f"{start}; : > ready\n".encode())
        steps = [("ready", f"{line}\t\x18".encode()), ("line", b"")]
        end_s = time.monotonic() + TIMEOUT_S
        for name, keys in steps:
            while not (home / name).exists() or (name == "line" and not (home / name).read_text()):
                assert time.monotonic() < end_s, seen
                if select.select([leader], [], [], 0.05)[0]:
                    seen += os.read(leader, 65536)
            os.write(leader, keys)
        return (home / "line").read_text().rstrip("\n")
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def in_bash(home: Path, line: str) -> str:
    start = (
        "source ./bash; bind 'set enable-bracketed-paste off'; "
        "dump() { printf '%s\\n' \"$READLINE_LINE\" > line; }; bind -x '\"\\C-x\": dump'"
    )
    return typed(home, [tool("bash"), "--norc", "--noprofile", "-i"], start, line)


def in_zsh(home: Path, line: str) -> str:
    start = (
        "autoload -Uz compinit; compinit -u -D; source ./zsh; "
        "dump() { print -r -- $BUFFER > line }; zle -N dump; bindkey '^X' dump"
    )
    return typed(home, [tool("zsh"), "-f", "-i"], start, line)


def in_fish(home: Path, line: str) -> str:
    """Ask fish what it would complete; its answer is the last word alone."""
    script = f"source ./fish; complete -C '{line}'"
    done = subprocess.run(
        [tool("fish"), "--no-config", "-c", script],
        env=environment(home),
        cwd=home,
        capture_output=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    words = [row.split("\t")[0] for row in done.stdout.decode().splitlines()]
    assert len(words) == 1, done
    return f"{line.rpartition(' ')[0]} {words[0]}"


def tool(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is missing: run `make setup`"
    return path


SHELLS = {"bash": in_bash, "zsh": in_zsh, "fish": in_fish}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("axern reserva", "axern reservations"),
        ("axern run --runt", "axern run --runtime-class"),
        ("axern node status --output=j", "axern node status --output=json"),
        ("axern node status -o j", "axern node status -o json"),
        ("axern --socket SOCKET run get 4", f"axern --socket SOCKET run get {RUN_ID[:12]}"),
        ("axern --socket SOCKET run --template b", "axern --socket SOCKET run --template busybox"),
        ("axern run --rootfs some", "axern run --rootfs some\\ folder/"),
    ],
)
def test_a_tab_completes(
    home: Path, fake: FakeDaemon, shell: str, line: str, completed: str
) -> None:
    found = SHELLS[shell](home, line.replace("SOCKET", fake.path))
    wanted = completed.replace("SOCKET", fake.path)
    if shell == "fish":
        found = found.replace("some folder", "some\\ folder")
    assert found.rstrip() == wanted


@pytest.mark.parametrize("silent", [True, False])
def test_a_daemon_that_is_silent_or_away_costs_no_word(
    axern: Axern, fake: FakeDaemon, *, silent: bool
) -> None:
    fake.silent = silent
    if not silent:
        fake.stop()
    done = axern.run("__complete", "--", "run", "get", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_what_the_daemon_says_can_drive_no_terminal(axern: Axern, fake: FakeDaemon) -> None:
    started = axern.run("run", "-d", "--", "true", "\x1b[2J\ta\nb").stdout.decode().strip()
    done = axern.run("__complete", "--", "run", "get", started[:4])
    assert done.stdout.startswith(started[:12].encode() + b"\t")
    assert b"\x1b" not in done.stdout
    assert done.stdout.count(b"\n") == done.stdout.count(b"\t") == 1
