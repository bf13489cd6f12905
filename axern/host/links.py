"""Interfaces, addresses and routes of one network namespace, made and removed by rtnetlink.

Each function takes a `netlink.Socket` and acts in the namespace that it was opened in. Sources:
include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h, if_bridge.h, ip.h; rtnetlink(7).
"""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from axern.errors import NetworkError
from axern.host.netlink import (
    NLM_F_CREATE,
    NLM_F_EXCL,
    Message,
    Socket,
    attribute,
    nested,
    number,
    text,
)

if TYPE_CHECKING:
    from ipaddress import IPv4Interface

# include/uapi/linux/rtnetlink.h
_RTM_NEWLINK = 16
_RTM_DELLINK = 17
_RTM_GETLINK = 18
_RTM_NEWADDR = 20
_RTM_NEWROUTE = 24
_RT_TABLE_MAIN = 254
_RTPROT_STATIC = 4
_RT_SCOPE_UNIVERSE = 0
_RT_SCOPE_LINK = 253
_RTN_UNICAST = 1
_RTA_DST = 1
_RTA_OIF = 4
_RTA_GATEWAY = 5
# include/uapi/linux/if_link.h
_IFLA_ADDRESS = 1
_IFLA_IFNAME = 3
_IFLA_MASTER = 10
_IFLA_LINKINFO = 18
_IFLA_IFALIAS = 20
_IFLA_AF_SPEC = 26
_IFLA_NET_NS_FD = 28
_IFLA_INFO_KIND = 1
_IFLA_INFO_DATA = 2
_IFLA_INFO_SLAVE_KIND = 4
_IFLA_INFO_SLAVE_DATA = 5
_IFLA_INET_CONF = 1
_IFLA_INET6_ADDR_GEN_MODE = 8
_IN6_ADDR_GEN_MODE_NONE = 1
_IFLA_BRPORT_ISOLATED = 33
_VETH_INFO_PEER = 1  # include/uapi/linux/veth.h
# include/uapi/linux/if_addr.h
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
# include/uapi/linux/ip.h
_IPV4_DEVCONF_FORWARDING = 1
_IPV4_DEVCONF_ROUTE_LOCALNET = 26
# include/uapi/linux/if.h
_IFF_UP = 1

_IFINFOMSG = struct.Struct("=BxHiII")
_IFADDRMSG = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_MAC_PREFIX = b"\x02\xa8"
"""Locally administered; the address follows, so that the same one always has the same MAC."""


def mac_of(address: IPv4Address) -> bytes:
    """Return the MAC of the interface that has *address*."""
    return _MAC_PREFIX + address.packed


def add_bridge(rtnl: Socket, name: str, alias: str, gateway: IPv4Interface) -> None:
    """Make a bridge with the address *gateway*, over which IPv4 is forwarded, and set it up.

    It has no IPv6 address, so that nothing of the host can be reached through one.

    Raises:
        NetworkError: There is an interface of this name, or the kernel refused.
    """
    kind = nested(_IFLA_LINKINFO, text(_IFLA_INFO_KIND, "bridge"))
    body = _link() + text(_IFLA_IFNAME, name) + attribute(_IFLA_ADDRESS, mac_of(gateway.ip)) + kind
    rtnl.do(Message(_RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body), f"make the bridge {name}")
    index = index_of(rtnl, name)
    forwards = nested(
        _IFLA_INET_CONF,
        number(_IPV4_DEVCONF_FORWARDING, 1),
        # Published ports are reached at 127.0.0.1 too; the firewall keeps sandboxes off it.
        number(_IPV4_DEVCONF_ROUTE_LOCALNET, 1),
    )
    body = _link(index) + text(_IFLA_IFALIAS, alias)
    body += nested(_IFLA_AF_SPEC, nested(socket.AF_INET, forwards))
    rtnl.do(Message(_RTM_NEWLINK, 0, body), f"let {name} forward")
    _without_ipv6(rtnl, index, name)
    add_address(rtnl, index, gateway)
    set_up(rtnl, index)


def add_port(
    rtnl: Socket, name: str, bridge: int, alias: str, *, peer: str, peer_mac: bytes, namespace: int
) -> None:
    """Make a veth pair: *name*, an isolated port of the bridge, and *peer* in *namespace*.

    No frame goes from one isolated port to another: what sandboxes have to say to each other goes
    through the host, and through its firewall.

    Raises:
        NetworkError: There is an interface of this name, or the kernel refused.
    """
    other = _link() + text(_IFLA_IFNAME, peer) + attribute(_IFLA_ADDRESS, peer_mac)
    other += number(_IFLA_NET_NS_FD, namespace)
    info = nested(
        _IFLA_LINKINFO,
        text(_IFLA_INFO_KIND, "veth"),
        nested(_IFLA_INFO_DATA, attribute(_VETH_INFO_PEER, other)),
    )
    body = _link() + text(_IFLA_IFNAME, name) + info
    rtnl.do(Message(_RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body), f"make the interface {name}")
    index = index_of(rtnl, name)
    _without_ipv6(rtnl, index, name)
    body = _link(index) + text(_IFLA_IFALIAS, alias)
    rtnl.do(Message(_RTM_NEWLINK, 0, body), f"describe the interface {name}")
    plug(rtnl, name, bridge)


def plug(rtnl: Socket, name: str, bridge: int) -> None:
    """Make the interface *name* an isolated port of *bridge*, and only then set it up."""
    index = index_of(rtnl, name)
    body = _link(index) + number(_IFLA_MASTER, bridge)
    rtnl.do(Message(_RTM_NEWLINK, 0, body), f"put {name} on its bridge")
    isolated = nested(
        _IFLA_LINKINFO,
        text(_IFLA_INFO_SLAVE_KIND, "bridge"),
        nested(_IFLA_INFO_SLAVE_DATA, attribute(_IFLA_BRPORT_ISOLATED, b"\1")),
    )
    rtnl.do(Message(_RTM_NEWLINK, 0, _link(index) + isolated), f"isolate {name}")
    set_up(rtnl, index)


def add_address(rtnl: Socket, index: int, address: IPv4Interface) -> None:
    """Give an interface an address; raises NetworkError."""
    body = _IFADDRMSG.pack(socket.AF_INET, address.network.prefixlen, 0, 0, index)
    body += attribute(_IFA_LOCAL, address.ip.packed) + attribute(_IFA_ADDRESS, address.ip.packed)
    what = f"give an interface the address {address}"
    rtnl.do(Message(_RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, body), what)


def add_routes(rtnl: Socket, index: int, gateway: IPv4Address) -> None:
    """Route everything over *gateway*, the only neighbour there is; raises NetworkError."""
    out = number(_RTA_OIF, index)
    near = attribute(_RTA_DST, gateway.packed)
    far = attribute(_RTA_GATEWAY, gateway.packed)
    for body in (
        _route(gateway.max_prefixlen, _RT_SCOPE_LINK) + near + out,
        _route(0, _RT_SCOPE_UNIVERSE) + far + out,
    ):
        message = Message(_RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, body)
        rtnl.do(message, f"route over {gateway}")


def set_up(rtnl: Socket, index: int) -> None:
    """Set an interface up; raises NetworkError."""
    body = _IFINFOMSG.pack(0, 0, index, _IFF_UP, _IFF_UP)
    rtnl.do(Message(_RTM_NEWLINK, 0, body), f"set interface {index} up")


def remove(rtnl: Socket, name: str) -> bool:
    """Remove the interface *name*, with its peer and addresses; return False where there is none.

    Raises:
        NetworkError: The kernel refused.
    """
    try:
        rtnl.do(
            Message(_RTM_DELLINK, 0, _link() + text(_IFLA_IFNAME, name)),
            f"remove the interface {name}",
        )
    except NetworkError as error:
        if error.errno != errno.ENODEV:
            raise
        return False
    return True


def index_of(rtnl: Socket, name: str) -> int:
    """Return the number of the interface *name*; raises NetworkError where there is none."""
    message = Message(_RTM_GETLINK, 0, _link() + text(_IFLA_IFNAME, name))
    return int(_IFINFOMSG.unpack_from(rtnl.do(message, f"find the interface {name}"))[2])


def _without_ipv6(rtnl: Socket, index: int, name: str) -> None:
    mode = attribute(_IFLA_INET6_ADDR_GEN_MODE, bytes([_IN6_ADDR_GEN_MODE_NONE]))
    body = _link(index) + nested(_IFLA_AF_SPEC, nested(socket.AF_INET6, mode))
    try:
        rtnl.do(Message(_RTM_NEWLINK, 0, body), f"keep IPv6 off {name}")
    except NetworkError as error:
        # A kernel without IPv6, or one that has it off for the interface.
        if error.errno not in (errno.EAFNOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP):
            raise


def _link(index: int = 0) -> bytes:
    return _IFINFOMSG.pack(0, 0, index, 0, 0)


def _route(prefix: int, scope: int) -> bytes:
    return _RTMSG.pack(
        socket.AF_INET, prefix, 0, 0, _RT_TABLE_MAIN, _RTPROT_STATIC, scope, _RTN_UNICAST, 0
    )
