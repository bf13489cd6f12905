"""Hears from the kernel that a project has come up against its limit, when it happens.

What a project holds when a sandbox is over does not tell: runsc's own file goes with the sandbox,
and a workload may tidy up after a failed write. Source: Documentation/filesystems/quota.rst.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from axern.errors import CapabilityMissing

# include/uapi/linux/netlink.h, include/uapi/linux/genetlink.h
NETLINK_GENERIC = 16
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP = 1
NLM_F_REQUEST = 1
NLMSG_ERROR = 2
GENL_ID_CTRL = 16
CTRL_CMD_GETFAMILY = 3
CTRL_ATTR_FAMILY_NAME = 2
CTRL_ATTR_MCAST_GROUPS = 7
CTRL_ATTR_MCAST_GRP_ID = 2
_NLA_TYPE_MASK = 0x3FFF

# include/uapi/linux/quota.h
QUOTA_FAMILY = b"VFS_DQUOT"
QUOTA_NL_A_QTYPE = 1
QUOTA_NL_A_EXCESS_ID = 2
QUOTA_NL_A_WARNING = 3
QUOTA_NL_A_DEV_MAJOR = 4
QUOTA_NL_A_DEV_MINOR = 5
QUOTA_NL_IHARDWARN = 1
QUOTA_NL_BHARDWARN = 4
PRJQUOTA = 2

_MESSAGE = struct.Struct("=IHHII")
_GENERIC = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_READ_BYTES = 64 * 1024
_MOST_READS = 1024
"""Messages that are read at once: more than the socket holds, of which each takes some 768 bytes of
212,992. What stayed there would be told of the next sandbox with the same project."""
_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Heard:
    """The projects that hit a limit, and whether the kernel had more to say than was kept."""

    projects: frozenset[int]
    lost: bool


class QuotaEvents:
    """A socket that hears of every limit that was hit on the host; closed by `close`."""

    def __init__(self) -> None:
        """Join the kernel's group.

        Raises:
            CapabilityMissing: The kernel tells nobody (CONFIG_QUOTA_NETLINK_INTERFACE).
        """
        try:
            with _generic() as asking:
                group = _group_of(asking)
            self._socket = _generic()
            self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
            self._socket.setblocking(False)  # noqa: FBT003 - the socket module's own parameter
        except OSError as err:
            raise CapabilityMissing(
                "the kernel does not tell of limits that were hit",
                syscall="netlink",
                errno=err.errno,
                hint="a kernel with CONFIG_QUOTA_NETLINK_INTERFACE, such as Debian's own",
            ) from err

    def hear(self, folder: str) -> Heard:
        """Return the projects of the file system of *folder* that hit a limit since the last call.

        When more came than the socket holds, the rest is lost. Raises OSError without *folder*.
        """
        device = os.stat(folder).st_dev
        wanted = (os.major(device), os.minor(device))
        found: set[int] = set()
        lost = False
        for _ in range(_MOST_READS):
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:  # ENOBUFS: some were lost; what is there can still be read
                lost = True
                continue
            found.update(project for *place, project in hits_from(data) if tuple(place) == wanted)
        return Heard(frozenset(found), lost)

    def fileno(self) -> int:
        """Return the descriptor, readable when something was told."""
        return self._socket.fileno()

    def close(self) -> None:
        """Leave the group."""
        self._socket.close()


def hits_from(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (major, minor, project id) of each hard limit in *data*, messages of the kernel."""
    for kind, body in _messages(data):
        if kind == NLMSG_ERROR:
            continue
        values = {
            key: int.from_bytes(value, "little")
            for key, value in _attributes(body[_GENERIC.size :])
        }
        if (
            values.get(QUOTA_NL_A_QTYPE) == PRJQUOTA
            and values.get(QUOTA_NL_A_WARNING) in (QUOTA_NL_IHARDWARN, QUOTA_NL_BHARDWARN)
            and QUOTA_NL_A_EXCESS_ID in values
        ):
            yield (
                values.get(QUOTA_NL_A_DEV_MAJOR, 0),
                values.get(QUOTA_NL_A_DEV_MINOR, 0),
                values[QUOTA_NL_A_EXCESS_ID],
            )


def _generic() -> socket.socket:
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETLINK_GENERIC)
    found.settimeout(_ANSWER_TIMEOUT_S)
    found.bind((0, 0))
    return found


def _group_of(asking: socket.socket) -> int:
    """Return the number of the group that the kernel sends quota events to."""
    name = QUOTA_FAMILY + b"\0"
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(name), CTRL_ATTR_FAMILY_NAME) + _padded(name)
    body = _GENERIC.pack(CTRL_CMD_GETFAMILY, 1, 0) + attribute
    asking.send(_MESSAGE.pack(_MESSAGE.size + len(body), GENL_ID_CTRL, NLM_F_REQUEST, 1, 0) + body)
    for kind, answer in _messages(asking.recv(_READ_BYTES)):
        if kind == NLMSG_ERROR:
            number = -struct.unpack_from("=i", answer)[0]
            raise OSError(number, os.strerror(number))
        for key, groups in _attributes(answer[_GENERIC.size :]):
            if key != CTRL_ATTR_MCAST_GROUPS:
                continue
            for _, group in _attributes(groups):
                with contextlib.suppress(KeyError):
                    number = dict(_attributes(group))[CTRL_ATTR_MCAST_GRP_ID]
                    return int.from_bytes(number, "little")
    raise OSError("the kernel names no group")


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _MESSAGE.size:
        length, kind, *_ = _MESSAGE.unpack_from(data)
        if length < _MESSAGE.size:
            return
        yield kind, data[_MESSAGE.size : length]
        data = data[_aligned(length) :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _NLA_TYPE_MASK, data[_ATTRIBUTE.size : length]
        data = data[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3


def _padded(data: bytes) -> bytes:
    return data.ljust(_aligned(len(data)), b"\0")
