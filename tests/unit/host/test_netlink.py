"""What is written by hand is what pyroute2 writes, to the byte."""

import socket
from ipaddress import IPv4Interface

from pyroute2.netlink.nfnetlink.nftsocket import nft_chain_msg, nft_table_msg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from axern.host import links, netlink, nftables
from axern.host.netlink import Message


class Recorder:
    """Stands for a socket: keeps what it was given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def do(self, message: Message, what: str) -> bytes:
        self.messages.append(message)
        return bytes(4) + (7).to_bytes(4, "little") + bytes(8)


def written(call: object, *arguments: object) -> list[bytes]:
    recorder = Recorder()
    call(recorder, *arguments)  # type: ignore[operator]
    return [message.body for message in recorder.messages]


def theirs(message: object, fields: dict[str, object], attributes: object) -> bytes:
    """Return the body that pyroute2 makes of a message."""
    for name, value in fields.items():
        message[name] = value  # type: ignore[index]
    message["attrs"] = attributes  # type: ignore[index]
    message.encode()  # type: ignore[attr-defined]
    return bytes(message.data[16:])  # type: ignore[attr-defined]


def without_flags(body: bytes) -> bytes:
    """Return *body* without the mark of nested attributes, which pyroute2 leaves out."""
    found = b""
    for kind, data in netlink.attributes(body):
        found += netlink.attribute(kind, data)
    return found


def test_addresses_and_routes() -> None:
    interface = IPv4Interface("10.192.0.2/32")
    attributes = [("IFA_LOCAL", "10.192.0.2"), ("IFA_ADDRESS", "10.192.0.2")]
    fields: dict[str, object] = {"family": socket.AF_INET, "prefixlen": 32, "index": 2}
    assert written(links.add_address, 2, interface) == [theirs(ifaddrmsg(), fields, attributes)]
    near, far = written(links.add_routes, 2, IPv4Interface("10.192.0.1/19").ip)
    fields = {"family": 2, "dst_len": 32, "table": 254, "proto": 4, "scope": 253, "type": 1}
    assert near == theirs(rtmsg(), fields, [("RTA_DST", "10.192.0.1"), ("RTA_OIF", 2)])
    fields |= {"dst_len": 0, "scope": 0}
    assert far == theirs(rtmsg(), fields, [("RTA_GATEWAY", "10.192.0.1"), ("RTA_OIF", 2)])


def test_interfaces() -> None:
    assert written(links.remove, "ax0") == [theirs(ifinfmsg(), {}, [("IFLA_IFNAME", "ax0")])]
    fields: dict[str, object] = {"index": 3, "flags": 1, "change": 1}
    assert written(links.set_up, 3) == [theirs(ifinfmsg(), fields, [])]


def test_tables_and_chains() -> None:
    fields: dict[str, object] = {"nfgen_family": nftables.NFPROTO_INET}
    mine = nftables.add_table("axern0").body
    assert mine == theirs(nft_table_msg(), fields, [("NFTA_TABLE_NAME", "axern0")])
    mine = nftables.add_chain("axern0", "in-one").body
    attributes = [("NFTA_CHAIN_TABLE", "axern0"), ("NFTA_CHAIN_NAME", "in-one")]
    assert mine == theirs(nft_chain_msg(), fields, attributes)


def test_attributes_are_read_as_they_were_written() -> None:
    body = netlink.text(3, "ax0") + netlink.nested(18, netlink.number(4, 5))
    assert list(netlink.attributes(body)) == [(3, b"ax0\0"), (18, netlink.number(4, 5))]
    assert list(netlink.attributes(b"\0\0\0\0junk")) == []
