"""`axern exec -it` in a real terminal, driven by tmux, and byte by byte in a pair of our own."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import secrets
import select
import shlex
import subprocess
import termios
import time
import tty
from collections.abc import Iterator

import pytest

from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab
from tests.host.test_exec import execs, run, runs, shared  # noqa: F401 - fixtures

pytestmark = pytest.mark.host
MEBIBYTE = 1024**2
LIMIT_S = 120.0


class Screen:
    """A terminal of tmux, and what it shows."""

    def __init__(self, *argv: str) -> None:
        self._name = f"axern-test-{secrets.token_hex(4)}"
        script = f"{shlex.join(argv)}; echo code=$?; stty -a; sleep 1000"
        self._tmux("new-session", "-d", "-x", "100", "-y", "30", "sh", "-c", script)

    def _tmux(self, *words: str) -> str:
        argv = ("tmux", "-L", self._name, "-f", "/dev/null", *words)
        done = subprocess.run(argv, capture_output=True, check=True, timeout=60)
        return done.stdout.decode()

    def keys(self, *keys: str) -> None:
        """Press keys by tmux's names."""
        self._tmux("send-keys", *keys)

    def type(self, line: str) -> None:
        """Type a line."""
        self._tmux("send-keys", "-l", line)
        self.keys("Enter")

    def resize(self, columns: int, rows: int) -> None:
        """Make it another size."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def text(self) -> str:
        """Return all that it shows."""
        return self._tmux("capture-pane", "-p", "-S", "-")

    def wait(self, pattern: str) -> None:
        """Wait until it shows *pattern*."""
        try:
            wait_until(lambda: re.search(pattern, self.text(), re.MULTILINE) is not None, 60)
        except AssertionError:
            raise AssertionError(f"{pattern} is not on the screen:\n{self.text()}") from None

    def end(self) -> None:
        """Close it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@pytest.fixture
def screen(shared: DaemonLab, run: str) -> Iterator[Screen]:  # noqa: F811
    made = Screen(*shared.argv("exec", "-it", run, "--", "sh"))
    try:
        yield made
    finally:
        made.end()


def test_a_shell_in_a_real_terminal(shared: DaemonLab, run: str, screen: Screen) -> None:  # noqa: F811
    screen.type("echo $((40 + 2)) $TERM")
    screen.wait(r"^42 (tmux|screen)")
    screen.type("stty size")
    screen.wait(r"^30 100$")
    screen.resize(120, 40)
    screen.type("sleep 0.2; stty size")
    screen.wait(r"^40 120$")
    # Ctrl-C ends what is in the foreground, and not the shell.
    screen.type("sleep 1000; echo after=$?")
    screen.wait(r"sleep 1000")
    time.sleep(0.5)  # let it be in the foreground
    screen.keys("C-c")
    screen.type("echo still=$?")
    screen.wait(r"^still=130$")
    screen.type("cat >/dev/null")
    time.sleep(0.5)
    screen.keys("C-d")  # the end of its input
    screen.type("exit 7")
    screen.wait(r"^code=7$")
    # And our own terminal is as it was.
    screen.wait(r"(?<!-)\bicanon\b")
    screen.wait(r"(?<!-)\becho\b")
    assert execs(shared, run) == []


def test_a_terminal_that_hangs_up_ends_its_command(
    shared: DaemonLab,  # noqa: F811
    run: str,  # noqa: F811
    screen: Screen,
) -> None:
    screen.type("echo $((1 + 1))up")
    screen.wait(r"^2up")
    assert len(execs(shared, run)) == 1
    screen.end()
    wait_until(lambda: execs(shared, run) == [], 60)


def test_ten_mebibytes_go_through_a_terminal_unharmed(shared: DaemonLab, run: str) -> None:  # noqa: F811
    data = os.urandom(10 * MEBIBYTE)
    script = f"stty raw -echo; echo ready; head -c {len(data)} >/tmp/data; cat /tmp/data; exit 3"
    master, slave = pty.openpty()
    tty.setraw(slave, termios.TCSANOW)
    argv = shared.argv("exec", "-it", run, "--", "sh", "-c", script)
    with subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave) as added:
        os.close(slave)
        os.set_blocking(master, False)
        came, rest, deadline_s = b"", memoryview(data), time.monotonic() + LIMIT_S
        while len(came) < len(b"ready\n") + len(data):
            assert time.monotonic() < deadline_s, (len(came), len(rest), came[:100])
            writable = [master] if rest and came.startswith(b"ready\n") else []
            readable, writable, _ = select.select([master], writable, [], 1)
            if readable:
                came += os.read(master, 65536)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(master, rest[:4096]) :]
        assert added.wait(60) == 3
    os.close(master)
    assert came == b"ready\n" + data
