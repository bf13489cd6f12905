"""What the host's network has: its interfaces, and the ranges that it uses. Only looked at.

The one place that uses pyroute2, which knows how to read whatever others have made. It takes a
fifth of a second to load, so this is for what is rare: a range to be picked, a doctor's look.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from typing import TYPE_CHECKING, Any

from axern.errors import CapabilityMissing, NetworkError

if TYPE_CHECKING:
    from axern.host.address_range import Taken


@dataclass(frozen=True, slots=True)
class Link:
    """An interface: `master` is the number of the bridge it is on, 0 for none."""

    index: int
    name: str
    alias: str
    master: int
    is_up: bool


@dataclass(frozen=True, slots=True)
class Survey:
    """One look. `taken` has every range that is routed, the default route left out."""

    links: tuple[Link, ...]
    addresses: tuple[tuple[int, IPv4Interface], ...]
    taken: tuple[Taken, ...]

    def link(self, name: str) -> Link | None:
        """Return the interface of this name, or None."""
        return next((link for link in self.links if link.name == name), None)

    def range_of(self, link: Link) -> IPv4Network | None:
        """Return the range of the first address of *link*, or None."""
        return next((each.network for index, each in self.addresses if index == link.index), None)


def look() -> Survey:
    """Return what there is in the network namespace of this thread.

    Raises:
        CapabilityMissing: pyroute2 is not installed.
        NetworkError: The kernel did not answer.
    """
    # The daemon keeps OpenSSL out of its memory, and pyroute2 won't be loaded without.
    modules: dict[str, object] = dict(sys.modules)
    if modules.get("ssl", modules) is None:
        del sys.modules["ssl"]
    try:
        from pyroute2 import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError
    except ImportError as error:
        raise CapabilityMissing(
            "pyroute2 is not installed", syscall="import", hint="pip install pyroute2"
        ) from error
    try:
        with IPRoute() as route:
            links = tuple(map(_link, route.get_links()))
            addresses = tuple(map(_address, route.get_addr(family=socket.AF_INET)))
            routes = tuple(route.get_routes(family=socket.AF_INET))
    except (NetlinkError, OSError) as error:
        raise NetworkError(f"cannot look at the host's network: {error}", syscall="recv") from error
    names = {link.index: link.name for link in links}
    taken = [(each.network, names.get(index, "?")) for index, each in addresses]
    for each in routes:
        destination = each.get_attr("RTA_DST")
        if destination and each["dst_len"]:
            network = IPv4Network(f"{destination}/{each['dst_len']}", strict=False)
            taken.append((network, f"the route by {names.get(each.get_attr('RTA_OIF'), '?')}"))
    return Survey(links, addresses, tuple(taken))


def _link(message: Any) -> Link:
    return Link(
        index=message["index"],
        name=message.get_attr("IFLA_IFNAME") or "",
        alias=message.get_attr("IFLA_IFALIAS") or "",
        master=message.get_attr("IFLA_MASTER") or 0,
        is_up=bool(message["flags"] & 1),
    )


def _address(message: Any) -> tuple[int, IPv4Interface]:
    address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    return message["index"], IPv4Interface(f"{address}/{message['prefixlen']}")
