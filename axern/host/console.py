"""The terminal of a sandboxed process: its master, as a runtime hands it over through a socket.

The runtime makes the pair inside the sandbox, whose own files decide what it opens there. So what
arrives is looked at before anybody else gets it: only the master of a pair passes.
Source: opencontainers/runc, docs/terminals.md; Linux, Documentation/admin-guide/devices.txt.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Iterator

from axern.errors import HostError

_TIOCGPTN = 0x80045430
"""The number of a master's pair. Source: include/uapi/asm-generic/ioctls.h."""
_MASTER = (5, 2)
"""Major and minor number of /dev/ptmx."""
_NAME = "tty"
_NAME_LIMIT_BYTES = 4096
_MOST = 4
"""Descriptors that are taken at once; more than one is an error."""


class Console:
    """A socket in a folder of its own, at which one terminal arrives."""

    def __init__(self, folder_fd: int, door: socket.socket) -> None:
        self._folder_fd = folder_fd
        self._door = door

    @property
    def path(self) -> str:
        """Where another process of the host finds the socket, however long the folder's name."""
        return f"/proc/{os.getpid()}/fd/{self._folder_fd}/{_NAME}"

    def receive(self, timeout_s: float) -> int:
        """Return the descriptor of the master that has arrived.

        Raises:
            HostError: None did in time, or it is something else.
        """
        self._door.settimeout(timeout_s)
        try:
            with self._door.accept()[0] as sender:
                sender.settimeout(timeout_s)
                _, found, _, _ = socket.recv_fds(
                    sender, _NAME_LIMIT_BYTES, _MOST, socket.MSG_CMSG_CLOEXEC
                )
        except OSError as error:
            raise HostError(
                "no terminal came from the runtime", syscall="recvmsg", errno=error.errno
            ) from error
        if len(found) == 1 and _is_master(found[0]):
            return found[0]
        for descriptor in found:
            os.close(descriptor)
        raise HostError("what came from the runtime is no terminal", syscall="fstat")


@contextlib.contextmanager
def console(folder: str) -> Iterator[Console]:
    """Listen in *folder* for one terminal.

    Raises:
        HostError: The socket can't be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, folder_fd)
            door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            door.bind(f"/proc/self/fd/{folder_fd}/{_NAME}")
            door.listen(1)
        except OSError as error:
            raise HostError(
                "cannot listen for a terminal", syscall="bind", path=folder, errno=error.errno
            ) from error
        stack.callback(os.unlink, f"{folder}/{_NAME}")
        yield Console(folder_fd, door)


def _is_master(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    device = (os.major(status.st_rdev), os.minor(status.st_rdev))
    if not stat.S_ISCHR(status.st_mode) or device != _MASTER:
        return False
    try:
        fcntl.ioctl(descriptor, _TIOCGPTN, array.array("I", [0]))
    except OSError:
        return False
    return True


def resize(master: int, rows: int, columns: int) -> None:
    """Give the terminal of *master* another size; raise OSError if it is none."""
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
