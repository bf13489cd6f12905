"""nftables: the messages of one table, its chains, rules, sets and elements, as bytes.

pyroute2 0.9 calls its nftables a prototype and has neither maps nor joined keys nor NAT by a map,
all of which are needed here; so these few messages are written by hand. Source:
include/uapi/linux/netfilter/nf_tables.h (numbers and names), nfnetlink.h (batches).
"""

from __future__ import annotations

import errno
import struct
from typing import TYPE_CHECKING

from axern.errors import NetworkError
from axern.host.netlink import (
    NETLINK_NETFILTER,
    NLM_F_CREATE,
    Message,
    Socket,
    attribute,
    attributes,
    big_endian,
    nested,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# include/uapi/linux/netfilter.h
NFPROTO_INET = 1
NFPROTO_IPV4 = 2
PREROUTING, INPUT, FORWARD, OUTPUT, POSTROUTING = range(5)
_NF_DROP = 0
_NF_ACCEPT = 1
_NFT_JUMP = -3
# include/uapi/linux/netfilter/nfnetlink.h
NFNLGRP_NFTABLES = 7
_NFNL_SUBSYS_NFTABLES = 10
_NFNL_MSG_BATCH_BEGIN = 16
_NFNL_MSG_BATCH_END = 17
# include/uapi/linux/netfilter/nf_tables.h
_NEWTABLE, _DELTABLE, _NEWCHAIN, _NEWRULE, _NEWSET = 0, 2, 3, 6, 9
_NEWSETELEM, _GETGEN = 12, 16
REG_1, REG_2 = 1, 2
REG32_00, REG32_01 = 8, 9
META_IIFNAME, META_OIFNAME, META_NFPROTO, META_L4PROTO = 6, 7, 15, 16
CT_STATE, CT_STATUS = 0, 2
NETWORK_HEADER, TRANSPORT_HEADER = 1, 2
_FIB_RESULT_ADDRTYPE = 3
_FIB_F_DADDR = 2
_SET_MAP = 8
_REJECT_TCP_RST = 1
_REJECT_ICMPX_UNREACH = 2
_ICMPX_ADMIN_PROHIBITED = 3
_NAT_DNAT = 1
_LIST_ELEM = 1
_DATA_VERDICT = 0xFFFFFF00
_VERDICT_REGISTER = 0

# Types of keys as nft shows them: src/include/datatype.h of nftables; joined ones are shifted.
IPV4_ADDR, INET_PROTO, INET_SERVICE = 7, 12, 13
_TYPE_BITS = 6
_ELEMENTS_A_MESSAGE = 500
"""A list of elements is one attribute, which holds at most 64 KiB."""

_NFGENMSG = struct.Struct("!BBH")


def joined(*types: int) -> int:
    """Return the type of a key that is made of several."""
    found = 0
    for each in types:
        found = found << _TYPE_BITS | each
    return found


# --- expressions of a rule


def _expression(name: str, *data: bytes) -> bytes:
    return nested(_LIST_ELEM, text(1, name), nested(2, *data))


def _value(kind: int, data: bytes) -> bytes:
    return nested(kind, attribute(1, data))


def meta(key: int, register: int = REG_1) -> bytes:
    """Load what the kernel knows of the packet."""
    return _expression("meta", big_endian(1, register), big_endian(2, key))


def payload(base: int, offset: int, length: int, register: int = REG_1) -> bytes:
    """Load bytes of a header."""
    numbers = enumerate((register, base, offset, length), start=1)
    return _expression("payload", *(big_endian(kind, value) for kind, value in numbers))


def equal(data: bytes, *, negated: bool = False) -> bytes:
    """Go on where the first register is *data*, or is not if *negated*."""
    return _expression("cmp", big_endian(1, REG_1), big_endian(2, int(negated)), _value(3, data))


def masked(mask: bytes) -> bytes:
    """Keep the bits of *mask* in the first register."""
    head = (big_endian(1, REG_1), big_endian(2, REG_1), big_endian(3, len(mask)))
    return _expression("bitwise", *head, _value(4, mask), _value(5, bytes(len(mask))))


def conntrack(key: int) -> bytes:
    """Load what is known of the connection; its bits are in the host's order."""
    return _expression("ct", big_endian(1, REG_1), big_endian(2, key))


def lookup(
    name: str, *, source: int = REG_1, into: int | None = None, negated: bool = False
) -> bytes:
    """Go on where the key is in a set; of a map, load the value *into* a register."""
    data = [text(1, name), big_endian(2, source)]
    if into is not None:
        data.append(big_endian(3, into))
    if negated:
        data.append(big_endian(5, 1))
    return _expression("lookup", *data)


def follow(name: str) -> bytes:
    """Do what the map says of the first register, if it says anything."""
    return lookup(name, into=_VERDICT_REGISTER)


def is_for_this_host() -> bytes:
    """Load the kind of the destination address, as the routing tables have it."""
    numbers = enumerate((REG_1, _FIB_RESULT_ADDRTYPE, _FIB_F_DADDR), start=1)
    return _expression("fib", *(big_endian(kind, value) for kind, value in numbers))


def accept() -> bytes:
    """Let the packet pass this chain."""
    return _verdict(_NF_ACCEPT)


def drop() -> bytes:
    """Let the packet vanish."""
    return _verdict(_NF_DROP)


def _verdict(code: int) -> bytes:
    return _expression("immediate", big_endian(1, 0), nested(2, nested(2, big_endian(1, code))))


def reset() -> bytes:
    """Refuse a connection of TCP."""
    return _expression("reject", big_endian(1, _REJECT_TCP_RST), attribute(2, b"\0"))


def reject() -> bytes:
    """Tell the sender that this is prohibited."""
    code = attribute(2, bytes([_ICMPX_ADMIN_PROHIBITED]))
    return _expression("reject", big_endian(1, _REJECT_ICMPX_UNREACH), code)


def masquerade() -> bytes:
    """Let the packet come from this host."""
    return _expression("masq")


def redirect_to(address: int, port: int) -> bytes:
    """Send the packet to the address and port that are in these registers."""
    numbers = ((1, _NAT_DNAT), (2, NFPROTO_IPV4), (3, address), (5, port))
    return _expression("nat", *(big_endian(kind, value) for kind, value in numbers))


# --- messages


def _message(kind: int, flags: int, *data: bytes, family: int = NFPROTO_INET) -> Message:
    head = _NFGENMSG.pack(family, 0, 0)
    return Message(_NFNL_SUBSYS_NFTABLES << 8 | kind, flags, head + b"".join(data))


def add_table(table: str) -> Message:
    """Make *table*; one that is there stays as it is."""
    return _message(_NEWTABLE, NLM_F_CREATE, text(1, table))


def delete_table(table: str) -> Message:
    """Remove *table* with all that is in it."""
    return _message(_DELTABLE, 0, text(1, table))


def add_chain(table: str, name: str) -> Message:
    """Make a chain that others jump to."""
    return _message(_NEWCHAIN, NLM_F_CREATE, text(1, table), text(3, name))


def add_hook(table: str, name: str, kind: str, hook: int, priority: int) -> Message:
    """Make a chain of *kind* `filter` or `nat` at *hook*, which accepts what no rule decides."""
    place = nested(4, big_endian(1, hook), big_endian(2, priority & 0xFFFFFFFF))
    data = (text(1, table), text(3, name), place, big_endian(5, _NF_ACCEPT), text(7, kind))
    return _message(_NEWCHAIN, NLM_F_CREATE, *data)


def add_rule(table: str, chain: str, expressions: Sequence[bytes]) -> Message:
    """Add a rule at the end of *chain*."""
    data = (text(1, table), text(2, chain), nested(4, *expressions))
    return _message(_NEWRULE, NLM_F_CREATE | 0x800, *data)  # NLM_F_APPEND


def add_set(table: str, name: str, number: int, key: int, key_bytes: int) -> Message:
    """Make a set; *number* is unique in the batch."""
    return _set(table, name, number, key, key_bytes)


def add_map(
    table: str, name: str, number: int, key: tuple[int, int], value: tuple[int, int]
) -> Message:
    """Make a map from *key* to *value*, each a type and a number of bytes."""
    kind, size = value
    return _set(table, name, number, *key, big_endian(6, kind), big_endian(7, size), flags=_SET_MAP)


def add_verdicts(table: str, name: str, number: int, key: int, key_bytes: int) -> Message:
    """Make a map from a key to what to do, for `follow`."""
    return _set(table, name, number, key, key_bytes, big_endian(6, _DATA_VERDICT), flags=_SET_MAP)


def _set(
    table: str, name: str, number: int, key: int, key_bytes: int, *more: bytes, flags: int = 0
) -> Message:
    head = (text(1, table), text(2, name), big_endian(3, flags))
    data = (*head, big_endian(4, key), big_endian(5, key_bytes), *more, big_endian(10, number))
    return _message(_NEWSET, NLM_F_CREATE, *data)


def element(key: bytes, value: bytes = b"") -> bytes:
    """Return one element of a set or map, for `add_elements`."""
    data = [_value(1, key)]
    if value:
        data.append(_value(2, value))
    return nested(_LIST_ELEM, *data)


def jump_element(key: bytes, chain: str) -> bytes:
    """Return an element of a map of verdicts: where the key is met, jump to *chain*."""
    verdict = nested(2, big_endian(1, _NFT_JUMP & 0xFFFFFFFF), text(2, chain))
    return nested(_LIST_ELEM, _value(1, key), nested(2, verdict))


def add_elements(table: str, name: str, elements: Sequence[bytes]) -> Iterator[Message]:
    """Yield what adds *elements* to a set."""
    for start in range(0, len(elements), _ELEMENTS_A_MESSAGE):
        some = elements[start : start + _ELEMENTS_A_MESSAGE]
        yield _message(_NEWSETELEM, NLM_F_CREATE, text(1, table), text(2, name), nested(3, *some))


def commit(nft: Socket, messages: Iterable[Message], what: str) -> None:
    """Have *messages* carried out in one transaction.

    Raises:
        NetworkError: The kernel refused, and nothing is changed.
    """
    body = _NFGENMSG.pack(0, 0, _NFNL_SUBSYS_NFTABLES)
    begin, end = (Message(kind, 0, body) for kind in (_NFNL_MSG_BATCH_BEGIN, _NFNL_MSG_BATCH_END))
    nft.transact(begin, messages, end, what)


def generation(nft: Socket) -> int:
    """Return how many times any table of this network namespace was changed.

    Raises:
        NetworkError: This kernel has no nftables.
    """
    answer = nft.do(_message(_GETGEN, 0, family=0), "read the firewall's generation")
    found = dict(attributes(answer[_NFGENMSG.size :]))
    return int.from_bytes(found[1], "big")


def is_there(nft: Socket, table: str) -> bool:
    """Tell whether there is such a table; raises NetworkError where that can't be told."""
    try:
        nft.do(_message(1, 0, text(1, table)), f"look for the table {table}")
    except NetworkError as error:
        if error.errno != errno.ENOENT:
            raise
        return False
    return True


def open_socket(groups: Iterable[int] = ()) -> Socket:
    """Return a socket for the tables of this thread's network namespace."""
    return Socket(NETLINK_NETFILTER, groups)
