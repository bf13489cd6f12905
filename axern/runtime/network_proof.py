"""Proves that this kernel connects sandboxes, and keeps those of other namespaces apart.

Bridge, table and three sandboxes are made in a network namespace that stands for the host and goes
with the proof; what one reaches of the others is found out by connections of TCP.
"""

from __future__ import annotations

import contextlib
import os
import socket
from functools import partial
from ipaddress import IPv4Interface, IPv4Network

from axern.errors import CapabilityMissing
from axern.host import address_range, links, linux, network
from axern.host.firewall import Firewall, Guest
from axern.host.netlink import NETLINK_ROUTE, Socket
from axern.host.network import Bridge
from axern.host.process import boot_id

_BRIDGE = Bridge("axern-probe", IPv4Network("10.192.0.0/19"))
_NAMESPACES = ("one", "one", "other")
_PORT = 80
_TIMEOUT_S = 5.0
_FORWARDING = "/proc/sys/net/ipv4/ip_forward"


def identity() -> str:
    """Return what the proof stands on: this boot's kernel, and that it forwards.

    Raises:
        CapabilityMissing: The host does not forward.
    """
    if not network.forwards():
        raise CapabilityMissing(
            "the host does not forward IPv4, so that sandboxes would reach nothing",
            syscall="read",
            path=_FORWARDING,
            hint="sysctl -w net.ipv4.ip_forward=1, and a file in /etc/sysctl.d to keep it",
        )
    return f"boot {boot_id()}, forwarding"


def prove() -> str:
    """Connect three sandboxes, and see that one reaches its neighbour and not the stranger.

    Raises:
        CapabilityMissing: The kernel lacks a part, or the stranger was reached.
    """
    try:
        reached = network.apart(_try)
    except OSError as error:
        raise CapabilityMissing(
            "a network can't be made", syscall=error.filename or "socket", errno=error.errno
        ) from error
    if reached != (True, False, False):
        raise CapabilityMissing(
            f"reached neighbour, stranger, host: {reached}, which must be (True, False, False)",
            syscall="connect",
        )
    return "a bridge with sandboxes of two namespaces: neighbours reach each other, strangers don't"


def _try() -> tuple[bool, bool, bool]:
    """Return what a sandbox reaches: its neighbour, a stranger, the host."""
    linux.unshare(linux.CLONE_NEWNET)
    with contextlib.ExitStack() as stack:
        rtnl = stack.enter_context(Socket(NETLINK_ROUTE))
        gateway = IPv4Interface(f"{_BRIDGE.gateway}/{address_range.PREFIX}")
        links.add_bridge(rtnl, _BRIDGE.name, "a probe", gateway)
        wall = stack.enter_context(contextlib.closing(Firewall(_BRIDGE.name)))
        lanes = range(len(_NAMESPACES))
        addresses = [_BRIDGE.address_of(lane) for lane in lanes]
        wall.replace(_BRIDGE.addresses, map(Guest, addresses, _NAMESPACES))
        inside = [_connected(stack, lane) for lane in lanes]
        for namespace in inside:
            stack.enter_context(network.apart(partial(_listener, namespace)))
        stack.enter_context(_listener(None))
        targets = [str(addresses[1]), str(addresses[2]), str(_BRIDGE.gateway)]
        found = [network.apart(partial(_reaches, inside[0], each)) for each in targets]
    return found[0], found[1], found[2]


def _connected(stack: contextlib.ExitStack, lane: int) -> int:
    """Return a descriptor of a new network namespace that is connected."""
    descriptor, within = network.apart(_new_namespace)
    stack.callback(os.close, descriptor)
    with within:
        network.connect(_BRIDGE, f"{lane:032x}"[::-1], lane, descriptor, within)
    return descriptor


def _new_namespace() -> tuple[int, Socket]:
    linux.unshare(linux.CLONE_NEWNET)
    descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    return descriptor, Socket(NETLINK_ROUTE)


def _listener(namespace: int | None) -> socket.socket:
    if namespace is not None:
        linux.setns(namespace, linux.CLONE_NEWNET)
    found = socket.socket()
    found.bind(("0.0.0.0", _PORT))  # noqa: S104 - of a namespace that nobody else is in
    found.listen()
    return found


def _reaches(namespace: int, address: str) -> bool:
    linux.setns(namespace, linux.CLONE_NEWNET)
    with socket.socket() as asking:
        asking.settimeout(_TIMEOUT_S)
        try:
            asking.connect((address, _PORT))
        except OSError:
            return False
    return True
