"""A sandbox's connection to the bridge: namespace, interfaces, address; made, and proved gone.

Nothing is written down: a port's name follows from the sandbox's id, its address from its lane and
the bridge's range, and the range is the bridge's own address. Each port says in its alias whose it
is. All acts in the network namespace of the calling thread.
Source: docs/decisions/0035-network.md.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TYPE_CHECKING, TypeVar

from axern.errors import NetworkError
from axern.host import address_range, links, linux, network_survey
from axern.host.netlink import NETLINK_ROUTE, Socket, interface_index

if TYPE_CHECKING:
    from collections.abc import Callable

    from axern.host.network_survey import Survey

Result = TypeVar("Result")

_INSIDE = "eth0"
_PORT_PREFIX = "ax"
_LOOPBACK_INDEX = 1
_NAME_LENGTH = 15
"""IFNAMSIZ of include/uapi/linux/if.h, less the NUL."""
_ALIAS = "axern"
_LONGEST_ALIAS = 255


@dataclass(frozen=True, slots=True)
class Bridge:
    """The bridge called `name`, with the range whose first address it has."""

    name: str
    addresses: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        """The host's address on it."""
        return address_range.gateway_of(self.addresses)

    def address_of(self, lane: int) -> IPv4Address:
        """Return the address of the sandbox that has *lane*."""
        return address_range.address_of(self.addresses, lane)


def port_name(sandbox_id: str) -> str:
    """Return the name of the sandbox's interface on the host."""
    return f"{_PORT_PREFIX}{sandbox_id}"[:_NAME_LENGTH]


def erect(name: str, owner: str, wanted: str = "") -> Bridge:
    """Return the bridge *name*, made where it is missing, with all ports that there are on it.

    A range that sandboxes have already stays; else *wanted* is taken, or one that is free.

    Args:
        name: Of the bridge.
        owner: Whose it is; no two may use the same.
        wanted: The range that the configuration wants, empty for any.
    Raises:
        NetworkError: The name is somebody else's, or the kernel refused.
        CapabilityMissing: No range is free.
    """
    seen = network_survey.look()
    alias = f"{_ALIAS} {owner}"[:_LONGEST_ALIAS]
    there = seen.link(name)
    if there is not None:
        addresses = seen.range_of(there)
        if there.alias != alias or addresses is None:
            raise NetworkError(
                f"the interface {name} is there and says {there.alias!r}, not {alias!r}",
                syscall="netlink",
                hint="give Axern another one: network_bridge in the configuration",
            )
        return Bridge(name, addresses)
    addresses = _range_of_ports(seen) or address_range.choose(seen.taken, wanted)
    bridge = Bridge(name, addresses)
    gateway = IPv4Interface(f"{bridge.gateway}/{addresses.prefixlen}")
    with Socket(NETLINK_ROUTE) as rtnl:
        links.add_bridge(rtnl, name, alias, gateway)
        index = links.index_of(rtnl, name)
        for link in seen.links:
            if _address_in(link.alias) is not None:
                links.plug(rtnl, link.name, index)
    return bridge


def is_erected(bridge: Bridge) -> bool:
    """Tell whether there is an interface of its name; cheap."""
    return interface_index(bridge.name) is not None


def dismantle(name: str) -> bool:
    """Remove the bridge *name* with its address; return False where there is none."""
    if interface_index(name) is None:
        return False
    with Socket(NETLINK_ROUTE) as rtnl:
        return links.remove(rtnl, name)


def ports() -> dict[str, str]:
    """Return the ports of sandboxes by the ids that they say; raises as `network_survey.look`.

    Where no interface is called as one, nothing is read.
    """
    if not any(name.startswith(_PORT_PREFIX) for _, name in socket.if_nameindex()):
        return {}
    return {
        link.alias.split()[1]: link.name
        for link in network_survey.look().links
        if _address_in(link.alias) is not None
    }


def _range_of_ports(seen: Survey) -> IPv4Network | None:
    found = (_address_in(link.alias) for link in seen.links)
    address = next((each for each in found if each is not None), None)
    if address is None:
        return None
    return IPv4Network(f"{address}/{address_range.PREFIX}", strict=False)


def _address_in(alias: str) -> IPv4Address | None:
    """Return the address that a port's alias tells, None for any other interface."""
    match alias.split():
        case [prefix, _, address] if prefix == _ALIAS:
            return IPv4Address(address)
        case _:
            return None


def make_namespace(path: str) -> Socket:
    """Make a network namespace that lives as long as the mount on *path*, a new file.

    Returns:
        A socket in it, for `connect`.

    Raises:
        OSError: The kernel refused.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    return apart(lambda: _new_namespace(path))


def _new_namespace(path: str) -> Socket:
    linux.unshare(linux.CLONE_NEWNET)
    linux.mount("/proc/thread-self/ns/net", path, flags=linux.MS_BIND)
    return Socket(NETLINK_ROUTE)


def inside(namespace: int) -> Socket:
    """Return a socket in the network namespace that the descriptor *namespace* has open."""
    return apart(lambda: _entered(namespace))


def _entered(namespace: int) -> Socket:
    linux.setns(namespace, linux.CLONE_NEWNET)
    return Socket(NETLINK_ROUTE)


def apart(call: Callable[[], Result]) -> Result:
    """Call in a thread of its own, which ends: nobody else is ever in the wrong namespace."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            errors.append(error)

    thread = threading.Thread(target=work, name="network namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def connect(bridge: Bridge, sandbox_id: str, lane: int, namespace: int, within: Socket) -> None:
    """Connect a network namespace to *bridge*, with the address of *lane* and routes over it.

    Args:
        bridge: It must be there, and the firewall must know the sandbox already.
        sandbox_id: Whose namespace it is.
        lane: The sandbox's lane.
        namespace: A descriptor of the namespace.
        within: A socket in it.
    Raises:
        NetworkError: The kernel refused; whatever was made is removed by `disconnect`.
    """
    address = bridge.address_of(lane)
    with Socket(NETLINK_ROUTE) as rtnl:
        links.add_port(
            rtnl,
            port_name(sandbox_id),
            links.index_of(rtnl, bridge.name),
            f"{_ALIAS} {sandbox_id} {address}",
            peer=_INSIDE,
            peer_mac=links.mac_of(address),
            namespace=namespace,
        )
    links.set_up(within, _LOOPBACK_INDEX)
    index = links.index_of(within, _INSIDE)
    links.add_address(within, index, IPv4Interface(f"{address}/{address.max_prefixlen}"))
    links.set_up(within, index)
    links.add_routes(within, index, bridge.gateway)


def disconnect(sandbox_id: str) -> bool:
    """Remove the sandbox's interface, and with it its other end; return False without one.

    Raises:
        NetworkError: The kernel refused.
    """
    if not is_connected(sandbox_id):
        return False
    with Socket(NETLINK_ROUTE) as rtnl:
        return links.remove(rtnl, port_name(sandbox_id))


def is_connected(sandbox_id: str) -> bool:
    """Tell whether the sandbox has an interface on the host."""
    return interface_index(port_name(sandbox_id)) is not None


def namespace_of(pid: int) -> int:
    """Return a descriptor of the network namespace of process *pid*; raises OSError without it."""
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def forwards() -> bool:
    """Tell whether the host forwards IPv4 between its interfaces, as it must for a way out."""
    with open("/proc/sys/net/ipv4/ip_forward", encoding="ascii") as file:
        return file.read().strip() == "1"
