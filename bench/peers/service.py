"""A peer's process: own socket and folder, never a system service, ended by its number."""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 60.0


def connect(path: str) -> socket.socket:
    """Return a connection to the unix socket *path*."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def running(
    argv: Sequence[str],
    path: str,
    log: str,
    environment: Mapping[str, str],
    *,
    user: str | None = None,
    folder: str = "/",
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run *argv* in *folder* till it listens at *path*, and end it with *stop* afterwards."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            user=user,
            group=user,
            cwd=folder,
        )
    try:
        wait_for(process, path, log)
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(process: subprocess.Popen[bytes], path: str, log: str) -> None:
    """Wait until somebody listens at *path*."""
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            connect(path).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                with open(log, encoding="utf-8", errors="replace") as file:
                    raise AssertionError(file.read()[-2000:]) from None
            time.sleep(0.05)
