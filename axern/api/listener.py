"""The socket that the API listens on: made here, or taken over from who has listened before us."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
import time
from typing import Any

from ledger.errors import InvalidArgument

BACKLOG = 1024
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)
"""What the kernel says when the host, or this process, has no more of something."""
_REST_AFTER_EXHAUSTION_S = 0.5
_HANDED_OVER_HINT = "axernd.socket and axern.toml must name the same socket, of mode 0660"


class Listener(socket.socket):
    """A listening socket that asks for descriptors in moderation when there are none.

    asyncio waits a second after such a failure, but first tries again, logs and plans the next
    attempt once for every place in the backlog; here all but the first find nobody waiting.
    """

    _rest_until_s = 0.0

    def listen(self, _: int = 0) -> None:
        """Let many wait in the kernel's queue, however few are taken out of it at a time."""
        super().listen(BACKLOG)

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; raises BlockingIOError while there were no descriptors."""
        if time.monotonic() < self._rest_until_s:
            raise BlockingIOError
        try:
            return super().accept()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self._rest_until_s = time.monotonic() + _REST_AFTER_EXHAUSTION_S
            raise


def listen(path: str, group_id: int | None) -> Listener:
    """Return a listening socket at *path*, mode 0660 and owned by *group_id* from its first moment.

    It is bound under a private name and renamed, so that a client never meets wider rights, nor a
    socket that nobody listens on.

    Raises:
        InvalidArgument: The path is too long for a socket, or can't be made.
    """
    try:
        return _listen(path, group_id)
    except OSError as error:
        raise InvalidArgument(f"socket {path}: {error.strerror or error}") from error


def take_over(descriptor: int, path: str) -> Listener:
    """Return the listening socket *descriptor*, which somebody else has made at *path*.

    Clients that came before us wait in its queue. It goes on when we end: the path is not ours.

    Raises:
        InvalidArgument: It is no such socket, is elsewhere, or lets anybody connect.
    """
    try:
        taken = Listener(fileno=os.dup(descriptor))
        try:
            _require_ours(taken, path)
        except BaseException:
            taken.close()
            raise
    except OSError as error:
        raise InvalidArgument(
            f"socket {path}: {error.strerror or error}", hint=_HANDED_OVER_HINT
        ) from error
    taken.settimeout(0)
    os.close(descriptor)
    return taken


def _require_ours(taken: Listener, path: str) -> None:
    """Raise InvalidArgument unless *taken* is listened on at *path*, closed to strangers."""
    listens = taken.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if (taken.family, taken.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or not listens:
        wrong = "what was handed over is no unix socket that is listened on"
    elif taken.getsockname() != path:
        wrong = f"the socket handed over is {taken.getsockname()}, not {path}"
    elif (mode := stat.S_IMODE(os.stat(path).st_mode)) & stat.S_IRWXO:
        wrong = f"socket {path}: mode {mode:04o} lets anybody connect"
    else:
        return
    raise InvalidArgument(wrong, hint=_HANDED_OVER_HINT)


def _listen(path: str, group_id: int | None) -> Listener:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    if _is_served(path):
        raise InvalidArgument(
            f"socket {path}: somebody serves on it already", hint="give this daemon another one"
        )
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    private = f"{path}.{secrets.token_hex(4)}"
    previous_mask = os.umask(0o177)
    try:
        listener.bind(private)
    finally:
        os.umask(previous_mask)
    if group_id is not None:
        os.chown(private, -1, group_id)
    os.chmod(private, 0o660)
    listener.listen()
    listener.settimeout(0)
    os.rename(private, path)
    return listener


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(path) in (0, errno.EAGAIN)
