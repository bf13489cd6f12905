"""The one nftables table: what sandboxes on the bridge may reach, and who may reach them.

The table is a function of the sandboxes that there are: whenever one comes or goes it is replaced
as a whole, in one transaction, so that nothing of it can be forgotten. Source:
docs/decisions/0035-network.md.
"""

from __future__ import annotations

import errno
import functools
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import NetworkError
from axern.host import nftables as nft

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from ipaddress import IPv4Address, IPv4Network

    from axern.host.netlink import Message, Socket

_INTERFACE_BYTES = 16
"""IFNAMSIZ of include/uapi/linux/if.h."""
# include/uapi/linux/netfilter/nf_conntrack_common.h
_ESTABLISHED_OR_RELATED = struct.pack("=I", 2 | 4)
_DESTINATION_CHANGED = struct.pack("=I", 1 << 5)
_RTN_LOCAL = struct.pack("=I", 2)  # include/uapi/linux/rtnetlink.h
_ICMP_REDIRECT = b"\x05"  # include/uapi/linux/icmp.h
_LOOPBACK = (b"\x7f\0\0\0", b"\xff\0\0\0")
_LINK_LOCAL = (b"\xa9\xfe\0\0", b"\xff\xff\0\0")
"""169.254.0.0/16, where clouds tell a host its secrets."""
# include/uapi/linux/netfilter_ipv4.h
_PRIORITY_RAW = -300
_PRIORITY_DESTINATION = -100
_PRIORITY_FILTER = 0
_PRIORITY_SOURCE = 100

GUESTS, TENANTS, PUBLISHED = "guests", "tenants", "published"
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}


@dataclass(frozen=True, slots=True)
class Guest:
    """One sandbox on the bridge; `ports` are (protocol, port of the host, port of the sandbox)."""

    address: IPv4Address
    namespace: str
    ports: tuple[tuple[str, int, int], ...] = ()


class Firewall:
    """The table, called as its bridge, of the network namespace in which this was made.

    Its socket is kept: to close one waits until the kernel has forgotten all that it removed.
    """

    def __init__(self, bridge: str) -> None:
        self.bridge = bridge
        self._socket: Socket | None = None

    @property
    def _nft(self) -> Socket:
        if self._socket is None:
            self._socket = nft.open_socket()
        return self._socket

    def close(self) -> None:
        """Close its socket; the table stays."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def replace(self, addresses: IPv4Network, guests: Iterable[Guest]) -> int | None:
        """Let the table be what *guests* need, in one step; return the generation it made.

        None where somebody else changed a table in the same moment, so that nobody can tell what
        is there now.

        Raises:
            NetworkError: The kernel refused, and nothing is changed.
        """
        name = self.bridge
        before = self.generation()
        messages = (nft.add_table(name), nft.delete_table(name), *_table(name, addresses, guests))
        nft.commit(self._nft, messages, f"write the firewall's table {name}")
        after = self.generation()
        return after if after == before + 1 else None

    def remove(self) -> bool:
        """Remove the table; return False where there is none. Raises NetworkError."""
        try:
            nft.commit(self._nft, (nft.delete_table(self.bridge),), f"remove {self.bridge}")
        except NetworkError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def generation(self) -> int:
        """Return the firewall's generation, which any change of any table moves."""
        return nft.generation(self._nft)

    def is_there(self) -> bool:
        """Tell whether the table is there; raises NetworkError where that can't be told."""
        return nft.is_there(self._nft, self.bridge)


def _table(bridge: str, addresses: IPv4Network, guests: Iterable[Guest]) -> Iterator[Message]:
    """Yield the messages that make the whole table."""
    listed = tuple(guests)
    yield nft.add_table(bridge)
    yield nft.add_set(bridge, GUESTS, 1, *_ADDRESS)
    yield nft.add_verdicts(bridge, TENANTS, 2, *_ADDRESS)
    yield nft.add_map(bridge, PUBLISHED, 3, _SERVICE, _TARGET)
    yield from _chains(bridge, addresses)
    yield from _namespaces(bridge, listed)
    yield from nft.add_elements(bridge, GUESTS, [_guest(each.address) for each in listed])
    yield from nft.add_elements(
        bridge,
        PUBLISHED,
        [_published(each.address, *port) for each in listed for port in each.ports],
    )


def _namespaces(bridge: str, guests: tuple[Guest, ...]) -> Iterator[Message]:
    """Yield for each namespace a chain that lets its own sandboxes through to each other."""
    members: dict[str, list[bytes]] = {}
    for guest in guests:
        members.setdefault(guest.namespace, []).append(_guest(guest.address))
    for number, (namespace, elements) in enumerate(members.items(), start=4):
        name = f"in-{namespace}"
        yield nft.add_set(bridge, name, number, *_ADDRESS)
        yield nft.add_chain(bridge, name)
        yield nft.add_rule(bridge, name, (*_IPV4, _destination(), nft.lookup(name), nft.accept()))
        yield from nft.add_elements(bridge, name, elements)
    jumps = [_jump(guest.address, f"in-{guest.namespace}") for guest in guests]
    yield from nft.add_elements(bridge, TENANTS, jumps)


@functools.lru_cache(maxsize=8192)
def _guest(address: IPv4Address) -> bytes:
    return nft.element(address.packed)


@functools.lru_cache(maxsize=8192)
def _jump(address: IPv4Address, chain: str) -> bytes:
    return nft.jump_element(address.packed, chain)


@functools.lru_cache(maxsize=8192)
def _published(address: IPv4Address, protocol: str, host_port: int, port: int) -> bytes:
    key = struct.pack("!BxxxHxx", _PROTOCOLS[protocol], host_port)
    return nft.element(key, address.packed + struct.pack("!Hxx", port))


_IPV4 = (nft.meta(nft.META_NFPROTO), nft.equal(bytes([nft.NFPROTO_IPV4])))
_ADDRESS = (nft.IPV4_ADDR, 4)
_SERVICE = (nft.joined(nft.INET_PROTO, nft.INET_SERVICE), 8)
_TARGET = (nft.joined(nft.IPV4_ADDR, nft.INET_SERVICE), 8)


Rule = tuple[bytes, ...]
Chain = tuple[str, str, int, int, tuple[Rule, ...]]


@functools.cache
def _chains(bridge: str, addresses: IPv4Network) -> tuple[Message, ...]:
    """Return what makes every chain at a hook, with its rules."""
    messages = []
    for name, kind, hook, priority, rules in _hooks(bridge, addresses):
        messages.append(nft.add_hook(bridge, name, kind, hook, priority))
        messages += (nft.add_rule(bridge, name, rule) for rule in rules)
    return tuple(messages)


def _hooks(bridge: str, addresses: IPv4Network) -> tuple[Chain, ...]:
    """Return every chain with its rules, in the order in which a packet meets them."""
    name = bridge.encode().ljust(_INTERFACE_BYTES, b"\0")
    inside = (nft.meta(nft.META_IIFNAME), nft.equal(name))
    outside = (nft.meta(nft.META_IIFNAME), nft.equal(name, negated=True))
    to_inside = (nft.meta(nft.META_OIFNAME), nft.equal(name))
    to_outside = (nft.meta(nft.META_OIFNAME), nft.equal(name, negated=True))
    known = _has_bit(nft.CT_STATE, _ESTABLISHED_OR_RELATED)
    range_ = (addresses.network_address.packed, addresses.netmask.packed)
    arriving = (
        (*inside, *_IPV4, *_within(_destination(), _LOOPBACK), nft.drop()),
        (*inside, *_IPV4, _source(), nft.lookup(GUESTS, negated=True), nft.drop()),
    )
    passing = (
        (*inside, *to_inside, *_IPV4, _source(), nft.follow(TENANTS)),
        *_refusing(*inside, *to_inside),
        *_refusing(*inside, *_IPV4, *_within(_destination(), _LINK_LOCAL)),
        (*inside, *_IPV4, nft.accept()),
        *_refusing(*inside),
        (*to_inside, *known, nft.accept()),
        (*to_inside, *_has_bit(nft.CT_STATUS, _DESTINATION_CHANGED), nft.accept()),
        (*to_inside, nft.drop()),
    )
    reaching = ((*inside, *known, nft.accept()), *_refusing(*inside))
    # Ports are isolated: who follows the advice to go straight gets nowhere.
    leaving = ((*to_inside, *_IPV4, *_icmp_redirect(), nft.drop()),)
    masquerading = (
        (*to_outside, *_IPV4, *_within(_source(), range_), nft.masquerade()),
        (*to_inside, *_IPV4, *_within(_source(), _LOOPBACK), nft.masquerade()),
    )
    publishing = _publishing()
    before, after = _PRIORITY_DESTINATION, _PRIORITY_SOURCE
    return (
        ("arriving", "filter", nft.PREROUTING, _PRIORITY_RAW, arriving),
        ("publishing", "nat", nft.PREROUTING, before, ((*outside, *publishing),)),
        ("publishing-here", "nat", nft.OUTPUT, before, (publishing,)),
        ("passing", "filter", nft.FORWARD, _PRIORITY_FILTER, passing),
        ("reaching-host", "filter", nft.INPUT, _PRIORITY_FILTER, reaching),
        ("leaving-host", "filter", nft.OUTPUT, _PRIORITY_FILTER, leaving),
        ("masquerading", "nat", nft.POSTROUTING, after, masquerading),
    )


def _publishing() -> Rule:
    """Return the rule that sends what comes to a published port of this host to its sandbox."""
    return (
        *_IPV4,
        nft.is_for_this_host(),
        nft.equal(_RTN_LOCAL),
        nft.meta(nft.META_L4PROTO, nft.REG32_00),
        nft.payload(nft.TRANSPORT_HEADER, 2, 2, nft.REG32_01),
        nft.lookup(PUBLISHED, source=nft.REG32_00, into=nft.REG32_00),
        nft.redirect_to(nft.REG32_00, nft.REG32_01),
    )


def _source() -> bytes:
    return nft.payload(nft.NETWORK_HEADER, 12, 4)


def _destination() -> bytes:
    return nft.payload(nft.NETWORK_HEADER, 16, 4)


def _within(load: bytes, range_: tuple[bytes, bytes]) -> Rule:
    base, mask = range_
    return load, nft.masked(mask), nft.equal(base)


def _has_bit(key: int, bits: bytes) -> Rule:
    return nft.conntrack(key), nft.masked(bits), nft.equal(bytes(len(bits)), negated=True)


def _refusing(*where: bytes) -> tuple[Rule, Rule]:
    """Return the rules that refuse at once, so that nobody waits for an answer.

    What the kernel says by ICMP is rare by its own rule, and that it would advise another way
    counts as said; so a connection is reset.
    """
    tcp = (nft.meta(nft.META_L4PROTO), nft.equal(bytes([socket.IPPROTO_TCP])))
    return (*where, *tcp, nft.reset()), (*where, nft.reject())


def _icmp_redirect() -> Rule:
    protocol = (nft.meta(nft.META_L4PROTO), nft.equal(bytes([socket.IPPROTO_ICMP])))
    return (*protocol, nft.payload(nft.TRANSPORT_HEADER, 0, 1), nft.equal(_ICMP_REDIRECT))
