"""Standard input of a sandbox: a pipe that the daemon writes to, and that outlives the daemon.

A process of its own holds the write end open, so that a daemon that dies is no end of the input:
the workload would take half of it for the whole. Ending that process is what ends the input. It
lives within the sandbox's wall and goes with it.

What was taken is kept in a file, which is marked before each write and cleared behind it. A mark
that a dead daemon has left tells that nobody knows how much of its last write was taken.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass

from axern.errors import HostError
from axern.runtime import command
from axern.runtime.layout import SandboxPaths

_PIPE_BYTES = 1024**2
"""What may wait for the workload; as much as the kernel gives unprivileged users, too."""
_HOLD = '{ echo 0 >"$0/cgroup.procs" && exec sleep infinity </dev/null >/dev/null 2>&1; } &'
"""A script that takes a control group's folder, and leaves behind one process in it."""
_RECORD_BYTES = 24
_KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Taken:
    """How many bytes the pipe has taken, whether the input has ended, and whether that is sure."""

    offset: int
    ended: bool = False
    doubtful: bool = False


@contextlib.contextmanager
def prepared(paths: SandboxPaths, host_uid: int, host_gid: int) -> Iterator[None]:
    """Make the pipe and who holds it; within, the runtime may open it without waiting.

    Raises:
        HostError: The kernel refused a step.
        RuntimeFailure: The holder could not be started.
    """
    try:
        os.mkfifo(paths.stdin, 0o600)
        # The workload may open /dev/stdin anew, and is another user on the host.
        os.chown(paths.stdin, host_uid, host_gid)
        both = os.open(paths.stdin, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        raise HostError(
            "cannot make the pipe of standard input",
            syscall="mkfifo",
            path=paths.stdin,
            errno=err.errno,
        ) from err
    try:
        with contextlib.suppress(PermissionError):  # all pipes together are too large already
            fcntl.fcntl(both, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        _hold(paths)
        write_taken(paths, Taken(0))
        yield
    finally:
        os.close(both)


def _hold(paths: SandboxPaths) -> None:
    paths.stdin_holder.create()
    write_end = os.open(paths.stdin, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        command.run(("/bin/sh", "-c", _HOLD, paths.stdin_holder.folder), pass_fds=(write_end,))
        # The call returns once all have let go of its outputs: by then it is there or it failed.
        if not paths.stdin_holder.is_populated():
            raise HostError(
                "nobody holds the pipe of standard input",
                syscall="cgroup.procs",
                path=paths.stdin_holder.folder,
            )
    finally:
        os.close(write_end)


def read_taken(paths: SandboxPaths) -> Taken | None:
    """Return what has been taken so far; None while there is no pipe, or no more."""
    try:
        with open(f"{paths.stdin}.taken", encoding="ascii") as file:
            offset, state = file.read(_RECORD_BYTES).split()
    except FileNotFoundError:
        return None
    except ValueError:  # not written yet when the daemon died
        return Taken(0, doubtful=True)
    return Taken(int(offset), ended=state == "e", doubtful=state == "d")


def write_taken(paths: SandboxPaths, taken: Taken) -> None:
    """Keep *taken* through the daemon's death; a host that goes down takes the sandbox with it."""
    state = "d" if taken.doubtful else "e" if taken.ended else "-"
    record = f"{taken.offset:0{_RECORD_BYTES - 2}} {state}"
    descriptor = os.open(f"{paths.stdin}.taken", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, record.encode(), 0)
    finally:
        os.close(descriptor)


def open_pipe(paths: SandboxPaths) -> int | None:
    """Return a descriptor that never blocks, or None if the workload has closed its input."""
    try:
        return os.open(paths.stdin, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as err:
        if err.errno in {errno.ENXIO, errno.ENOENT}:
            return None
        raise


def end(paths: SandboxPaths) -> None:
    """Let the input end once the workload has read what waits for it; safe to repeat."""
    if paths.stdin_holder.exists():
        paths.stdin_holder.kill()
        paths.stdin_holder.wait_empty(_KILL_TIMEOUT_S)


def write_some(pipe: int, data: memoryview) -> int | None:
    """Write what fits and return how much that was; None if nobody reads any more."""
    try:
        return os.write(pipe, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return None


def close_pipe(pipe: int) -> None:
    """Let go of the pipe; its holder keeps it open."""
    os.close(pipe)
