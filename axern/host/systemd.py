"""What systemd hands to a service that it starts, and what the service tells systemd; no library.

Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3), systemd.exec(5) "Environment",
docs/CGROUP_DELEGATION.md of systemd.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from ledger.errors import InvalidArgument

FIRST_FD = 3
"""SD_LISTEN_FDS_START of sd-daemon.h."""
SUBGROUP = "daemon"
"""The unit's DelegateSubgroup=: where the daemon lives, below what was delegated to it."""
HANDED_OVER = (
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_PID",
    "LISTEN_PIDFDID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "FDSTORE",
    "MAINPID",
    "MANAGERPID",
    "SYSTEMD_EXEC_PID",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "CREDENTIALS_DIRECTORY",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
)
"""Variables that are for this process alone: a child with them could speak in its name."""
_DELEGATED = ("trusted.delegate", "user.delegate")
"""The attribute that systemd sets on a control group which it has given away; the second is the
one that those who are not root may read."""
_SEND_TIMEOUT_S = 1.0
_HOST_STATE = ("systemctl", "is-system-running")
_ASK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Handover:
    """What this process was given; without systemd nothing.

    `watchdog_s` is how long systemd waits for a sign of life, None where it does not.
    `listeners` are the descriptors of sockets that it listens on for us.
    """

    notify_socket: str | None = None
    watchdog_s: float | None = None
    listeners: tuple[int, ...] = ()


def take(environment: MutableMapping[str, str], pid: int) -> Handover:
    """Return what was handed over to the process *pid*, and remove it from *environment*.

    The descriptors are closed in programs that are started from now on. What names another
    process is removed too, and otherwise ignored: it was inherited by mistake.

    Raises:
        InvalidArgument: A value is not what systemd writes.
    """
    given = {name: environment.pop(name) for name in HANDED_OVER if name in environment}
    watchdog_us = _number(given, "WATCHDOG_USEC")
    count = _number(given, "LISTEN_FDS")
    mine = _number(given, "LISTEN_PID") == pid
    listeners = tuple(range(FIRST_FD, FIRST_FD + (count or 0))) if mine else ()
    try:
        for descriptor in listeners:
            fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(
            f"LISTEN_FDS: {count} sockets are promised, and descriptor {descriptor} is none: "
            f"{error.strerror}"
        ) from error
    watched = watchdog_us and _number(given, "WATCHDOG_PID") in (None, pid)
    return Handover(
        notify_socket=_address(given.get("NOTIFY_SOCKET")),
        watchdog_s=watchdog_us / 1_000_000 if watchdog_us and watched else None,
        listeners=listeners,
    )


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidArgument(f"{name}: {text[:20]!r} is no number", hint="let systemd set it")
    return int(text)


def _address(text: str | None) -> str | None:
    """Return the address of the socket that *text* names; `@` begins one without a path."""
    if not text:
        return None
    if text[0] not in "/@":
        raise InvalidArgument(
            f"NOTIFY_SOCKET: {text[:64]!r} is no unix socket", hint="let systemd set it"
        )
    return f"\0{text[1:]}" if text[0] == "@" else text


class Notifier:
    """Tells systemd how this process is; without a socket to tell it to, nothing happens."""

    def __init__(self, notify_socket: str | None) -> None:
        self._address = notify_socket

    def tell(self, *lines: str) -> bool:
        """Send *lines*, such as `READY=1`, together; return False if they could not be sent.

        A line that has an end of line within, as words of others may, stays one line.
        Nobody may be kept waiting by a manager that does not listen, so that a failure is no error.
        """
        if self._address is None:
            return True
        message = "\n".join(" ".join(line.splitlines()) for line in lines).encode(errors="replace")
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(_SEND_TIMEOUT_S)
            out.sendto(message, self._address)
            return True
        return False


def is_host_going_down() -> bool:
    """Tell whether systemd stops this whole host; where nobody can tell, it does not.

    Source: systemctl(1), is-system-running.
    """
    try:
        done = subprocess.run(
            _HOST_STATE,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == b"stopping"


def writes_to_journal(environment: Mapping[str, str], descriptor: int) -> bool:
    """Tell whether *descriptor* is the journal's, which reads a level in front of each line."""
    device, _, inode = environment.get("JOURNAL_STREAM", "").partition(":")
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        return (device, inode) == (str(status.st_dev), str(status.st_ino))
    return False


def delegated_root(unified: str) -> str | None:
    """Return the control group that systemd has given to this process, below the mount *unified*.

    It is the parent of the one that this process is in, which is named `daemon`, and systemd has
    marked it; None where it is not so.
    """
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        own = own_from_text(file.read())
    parent, _, name = own.rpartition("/")
    if name != SUBGROUP or not parent.strip("/"):
        return None
    return parent.strip("/") if _is_delegated(f"{unified}{parent}") else None


def own_from_text(text: str) -> str:
    """Return the path in the version 2 hierarchy that the text of /proc/PID/cgroup has."""
    paths = (line.removeprefix("0::") for line in text.split("\n") if line.startswith("0::"))
    return next(paths, "/")


def _is_delegated(folder: str) -> bool:
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False
