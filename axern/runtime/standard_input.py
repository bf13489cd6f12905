"""Standard input of a sandbox: a pipe that the daemon writes to, and that outlives the daemon.

A process of its own holds the write end open, so that a daemon that dies is no end of the input:
the workload would take half of it for the whole. Ending that process is what ends the input. It
lives within the sandbox's wall and goes with it. The pipe has no name but in that process: one with
a name would keep whoever opens /dev/stdin anew, behind the end, waiting for ever.

What was taken is kept in a file, which is marked before each write and cleared behind it. A mark
that a dead daemon has left tells that nobody knows how much of its last write was taken.
Source: fifo(7); Linux, fs/pipe.c, fifo_open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
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
def prepared(paths: SandboxPaths, host_uid: int, host_gid: int) -> Iterator[str]:
    """Make the pipe and who holds it; yield by which path the runtime may open it within.

    Raises:
        HostError: The kernel refused a step.
        RuntimeFailure: The holder could not be started.
    """
    try:
        ends = os.pipe2(os.O_CLOEXEC)
        # The workload may open /dev/stdin anew, and is another user on the host.
        os.fchown(ends[0], host_uid, host_gid)
    except OSError as err:
        raise HostError(
            "cannot make the pipe of standard input", syscall="pipe2", errno=err.errno
        ) from err
    try:
        with contextlib.suppress(PermissionError):  # all pipes together are too large already
            fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        _hold(paths, ends[1])
        write_taken(paths, Taken(0))
        yield f"/proc/{os.getpid()}/fd/{ends[0]}"  # the holder may be gone: all input may be here
    finally:
        for end_fd in ends:
            os.close(end_fd)


def _hold(paths: SandboxPaths, write_end: int) -> None:
    paths.stdin_holder.create()
    command.run(("/bin/sh", "-c", _HOLD, paths.stdin_holder.folder), pass_fds=(write_end,))
    # The call returns once all have let go of its outputs: by then it is there or it failed.
    if _held(paths) is None:
        raise HostError(
            "nobody holds the pipe of standard input",
            syscall="cgroup.procs",
            path=paths.stdin_holder.folder,
        )


def _held(paths: SandboxPaths) -> str | None:
    """Return by which path the pipe can be opened, for either side; None if nobody holds it."""
    for pid in paths.stdin_holder.pids():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                if _is_pipe(f"/proc/{pid}/fd/{name}"):
                    return f"/proc/{pid}/fd/{name}"
    return None


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (FileNotFoundError, ProcessLookupError):  # closed by an exec, or its end
        return False


def read_taken(paths: SandboxPaths) -> Taken | None:
    """Return what has been taken so far; None while there is no pipe, or no more."""
    try:
        with open(paths.stdin_taken, encoding="ascii") as file:
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
    descriptor = os.open(paths.stdin_taken, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, record.encode(), 0)
    finally:
        os.close(descriptor)


def open_pipe(paths: SandboxPaths) -> int | None:
    """Return a descriptor that never blocks, or None if nobody holds the pipe any more."""
    held = _held(paths)
    if held is None:
        return None
    try:
        return os.open(held, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return None


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
