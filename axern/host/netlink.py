"""Netlink: messages and attributes as bytes, and a socket that sends them and reads the answers.

A sandbox's network is a dozen messages, the same each time. pyroute2 takes longer to write one
than the kernel to carry all of them out, so they are written here; what others have made is read
with it, in `axern.host.network_survey`. Sources: include/uapi/linux/netlink.h, netlink(7).
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import NetworkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

# include/uapi/linux/netlink.h
NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLMSG_ERROR = 2
NLA_F_NESTED = 0x8000
_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_NETLINK_CAP_ACK = 10
# include/uapi/asm-generic/socket.h
_SO_SNDBUFFORCE = 32

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_RECEIVE_BYTES = 256 * 1024
_SEND_BYTES = 8 * 1024 * 1024
_TIMEOUT_S = 10.0
"""The kernel answers within the call; a longer silence is a fault."""


def attribute(kind: int, data: bytes) -> bytes:
    """Return one attribute; *data* is at most 65,531 bytes."""
    return _ATTRIBUTE.pack(4 + len(data), kind) + data + bytes(-len(data) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that holds others."""
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    """Return an attribute that holds *value* and a NUL."""
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits in the host's order."""
    return attribute(kind, struct.pack("=I", value))


def big_endian(kind: int, value: int) -> bytes:
    """Return an attribute of 32 bits in network order."""
    return attribute(kind, struct.pack("!I", value))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each attribute in *data*."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~NLA_F_NESTED, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


@dataclass(frozen=True, slots=True)
class Message:
    """One request: what kind, NLM_F_* beside `NLM_F_REQUEST`, and its body with attributes."""

    kind: int
    flags: int
    body: bytes

    def packed(self, sequence: int) -> bytes:
        """Return it with its header."""
        flags = self.flags | NLM_F_REQUEST
        return _HEADER.pack(16 + len(self.body), self.kind, flags, sequence, 0) + self.body


class Socket:
    """A netlink socket in the network namespace of the thread that opened it, whoever uses it."""

    def __init__(self, protocol: int, groups: Iterable[int] = ()) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol
        )
        self._socket.settimeout(_TIMEOUT_S)
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_CAP_ACK, 1)
        for group in groups:
            self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; safe to repeat."""
        self._socket.close()

    def fileno(self) -> int:
        """Return its descriptor, to wait on."""
        return self._socket.fileno()

    def do(self, message: Message, what: str) -> bytes:
        """Have *message* carried out; return the body of what it answers, if it answers.

        Raises:
            NetworkError: The kernel refused; *what* says in the error what was tried.
        """
        self._sequence += 1
        asked = Message(message.kind, message.flags | NLM_F_ACK, message.body)
        self._socket.send(asked.packed(self._sequence))
        answer = b""
        while True:
            for kind, sequence, body in self._receive():
                if sequence != self._sequence:
                    continue
                if kind != NLMSG_ERROR:
                    answer = body
                    continue
                number_of_error = -_ERROR.unpack_from(body)[0]
                if number_of_error:
                    raise refused(what, number_of_error)
                return answer

    def transact(
        self, begin: Message, messages: Iterable[Message], end: Message, what: str
    ) -> None:
        """Have *messages* carried out all or none, between *begin* and *end*.

        Raises:
            NetworkError: The kernel refused one of them.
        """
        first = self._sequence + 1
        listed = list(messages)
        listed[-1] = Message(listed[-1].kind, listed[-1].flags | NLM_F_ACK, listed[-1].body)
        packed = [each.packed(first + at) for at, each in enumerate((begin, *listed, end))]
        self._sequence = first + len(listed) + 1
        data = b"".join(packed)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, max(_SEND_BYTES, 2 * len(data)))
        self._socket.send(data)
        while True:
            for kind, sequence, body in self._receive():
                if kind != NLMSG_ERROR or not first <= sequence <= self._sequence:
                    continue
                number_of_error = -_ERROR.unpack_from(body)[0]
                if number_of_error:
                    raise refused(f"{what}, message {sequence - first}", number_of_error)
                return

    def drain(self) -> bool:
        """Take what has come without waiting; return whether there was anything."""
        came = False
        self._socket.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        while True:
            try:
                self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return came
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # more came than it could hold
                    raise
            came = True

    def _receive(self) -> Iterator[tuple[int, int, bytes]]:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError as error:
            raise NetworkError("netlink does not answer", syscall="recv") from error
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, _flags, sequence, _port = _HEADER.unpack_from(data, offset)
            yield kind, sequence, data[offset + _HEADER.size : offset + length]
            offset += max((length + 3) & ~3, _HEADER.size)


def refused(what: str, number_of_error: int) -> NetworkError:
    """Return the error of a request that the kernel has refused."""
    return NetworkError(f"cannot {what}", syscall="netlink", errno=number_of_error)


def interface_index(name: str) -> int | None:
    """Return the number of an interface of this thread's network namespace, None without it."""
    try:
        return socket.if_nametoindex(name)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.ENXIO, None):
            raise
        return None
