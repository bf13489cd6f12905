"""Runs one external program with a clean environment, a time limit and bounded output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from axern.errors import CommandFailed, CommandTimeout, RuntimeFailure

TIMEOUT_S = 30.0
"""What a call of a runtime may take before it counts as hanging."""
OUTPUT_LIMIT_BYTES = 256 * 1024
"""What is kept of each output; the rest is read and dropped, so that the program never blocks."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C",
    "TZ": "UTC",  # the monitor writes local time into its log
}
"""All that a program inherits: nothing of the daemon's, such as NOTIFY_SOCKET or WATCHDOG_PID."""
_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Output:
    """What a program that ended with 0 wrote, cut at the output limit."""

    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    environment: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> Output:
    """Run *argv* in a session of its own, standard input empty, and return what it wrote.

    The outputs must end for the call to return, so that a program which leaves a process behind
    has to take the outputs away from it.

    Raises:
        CommandFailed: It ended with another code than 0.
        CommandTimeout: It was killed after *timeout_s*.
        RuntimeFailure: It could not be started.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT | (environment or {}),
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as err:
        raise RuntimeFailure(f"cannot start {argv[0]}: {err.strerror}") from err
    with process:
        try:
            texts = _collect(process, time.monotonic() + timeout_s)
        except TimeoutError as err:
            _kill_session(process.pid)
            raise CommandTimeout(argv, timeout_s) from err
    if process.returncode != 0:
        raise CommandFailed(argv, process.returncode, texts.stderr)
    return texts


def _collect(process: subprocess.Popen[bytes], deadline_s: float) -> Output:
    """Read both outputs to their end and wait for the program; raise TimeoutError when late."""
    kept: dict[IO[bytes], bytearray] = {}
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                kept[stream] = bytearray()
                selector.register(stream, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(_left(deadline_s))
            for key, _ in ready:
                chunk = os.read(key.fd, _CHUNK_BYTES)
                buffer = kept[key.data]
                buffer += chunk[: OUTPUT_LIMIT_BYTES - len(buffer)]
                if not chunk:
                    selector.unregister(key.data)
    try:
        process.wait(_left(deadline_s))
    except subprocess.TimeoutExpired as err:
        raise TimeoutError from err
    stdout, stderr = (bytes(text).decode(errors="replace") for text in kept.values())
    return Output(stdout, stderr)


def _left(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _kill_session(leader: int) -> None:
    """Kill the program and what it started; its children share its process group."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
