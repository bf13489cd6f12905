"""Processes that keep their identity: a number alone may mean a stranger a moment later."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import signal

from ledger.reservation import ProcessIdentity

_NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""What pidfd_open says of a number that is nobody's, or a mere thread's: EINVAL, later ENOENT."""


@functools.cache
def boot_id() -> str:
    """Return the random id that the kernel made for this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_ticks_from_text(stat: str) -> int:
    """Return the start time, in clock ticks since boot, from the text of /proc/PID/stat.

    The second field is the program's name in parentheses and may hold spaces and parentheses, so
    fields are counted from the last one. Source: Documentation/filesystems/proc.rst, table 1-4.
    """
    after_name = stat[stat.rindex(")") + 1 :].split()
    return int(after_name[19])


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has this number now, or None if there is none.

    A thread other than the first has a number and a folder too, but is no process: None.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            stat = file.read()
        with open(f"/proc/{pid}/status", "rb") as file:
            is_process = f"\nTgid:\t{pid}\n".encode() in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return ProcessIdentity(boot_id(), pid, start_ticks_from_text(stat)) if is_process else None


def is_alive(identity: ProcessIdentity) -> bool:
    """Say whether exactly this process still runs; a zombie does not."""
    pidfd = _open(identity)
    if pidfd is None:
        return False
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return not poller.poll(0)
    finally:
        os.close(pidfd)


def _open(identity: ProcessIdentity) -> int | None:
    """Return a pidfd, checked after it was opened: from then on it can't mean another process."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno not in _NO_PROCESS:
            raise
        return None
    if identify(identity.pid) == identity:
        return pidfd
    os.close(pidfd)
    return None


def children(pid: int) -> tuple[int, ...]:
    """Return the children of the process *pid*, of all its threads; none where it is gone.

    Source: Documentation/filesystems/proc.rst, "/proc/<pid>/task/<tid>/children".
    """
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found.extend(int(word) for word in file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return ()
    return tuple(found)


def cgroup_of(pid: int) -> str | None:
    """Return the path of the process's group in version 2, with a leading slash; None if gone."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)


def kill_child(pid: int, parent: int) -> bool:
    """Kill the process *pid* if it is a child of *parent* now; return whether it was."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_PROCESS:
            raise
        return False
    try:
        # Looked at again with the descriptor open: from here on the number can't change its owner.
        if pid not in children(parent):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return True
    finally:
        os.close(pidfd)
