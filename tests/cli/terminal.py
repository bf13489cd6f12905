"""A terminal of a given width for the command line under test."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence


def shown(
    argv: Sequence[str], columns: int, environment: dict[str, str]
) -> tuple[str, subprocess.CompletedProcess[bytes]]:
    """Run *argv* with standard output on a terminal; return what it showed, and how it ended."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    settings = termios.tcgetattr(theirs)
    settings[1] &= ~termios.OPOST  # line ends as they were written
    termios.tcsetattr(theirs, termios.TCSANOW, settings)
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        os.close(theirs)
        seen = bytearray()
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while data := os.read(ours, 65536):
                seen += data
        os.close(ours)
        assert process.stderr is not None
        stderr = process.stderr.read()
    return seen.decode(), subprocess.CompletedProcess(argv, process.returncode, b"", stderr)
