"""What sandboxes on the bridge reach, by packets in namespaces that stand for a host."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import TypeVar

import pytest
from pyroute2 import IPRoute

from axern.errors import CapabilityMissing, NetworkError
from axern.host import address_range, links, linux, mounts, network, network_survey
from axern.host.firewall import Firewall
from axern.host.netlink import NETLINK_ROUTE, Socket
from tests.host.networks import (
    ANSWER,
    BRIDGE,
    OWNER,
    Place,
    apart,
    ask,
    has_of_network,
    identify,
    listener,
    listening,
    on_new_host,
    placed,
)

pytestmark = pytest.mark.host

Result = TypeVar("Result")

REFUSED = "ConnectionRefusedError"
NO_ANSWER_S = 0.5
PORT = 80


def serve(place: Place, lane: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a listener at port 80 of a sandbox."""
    return place.within(lane, lambda: listener("0.0.0.0", PORT, kind))  # noqa: S104 - its own


@on_new_host
def test_only_sandboxes_of_one_namespace_reach_each_other(tmp_path: Path) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one")
        place.add(1, "one")
        place.add(2, "other")
        with listening(serve(place, 1)), listening(serve(place, 2)):
            assert place.within(0, lambda: ask(place.address(1), PORT)) == ANSWER
            assert place.within(0, lambda: ask(place.address(2), PORT)) == REFUSED
            assert place.within(2, lambda: ask(place.address(1), PORT)) == REFUSED
            assert place.within(2, lambda: ask(place.address(2), PORT)) == ANSWER


@on_new_host
def test_without_the_table_other_namespaces_are_reached_which_is_the_control(
    tmp_path: Path,
) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one")
        place.add(2, "other")
        with listening(serve(place, 2)):
            place.wall.remove()
            assert place.within(0, lambda: ask(place.address(2), PORT)) == ANSWER
            place.sync()
            assert place.within(0, lambda: ask(place.address(2), PORT)) == REFUSED


@on_new_host
def test_nothing_of_the_host_is_reached(tmp_path: Path) -> None:
    with placed(tmp_path) as place, listening(listener("0.0.0.0", 90)):  # noqa: S104 - a namespace
        place.add(0, "one")
        gateway = str(place.bridge.gateway)
        assert ask(gateway, 90) == ANSWER
        assert place.within(0, lambda: ask(gateway, 90)) == REFUSED
        assert place.within(0, lambda: ask("127.0.0.1", 90)) == REFUSED
        place.wall.remove()
        assert place.within(0, lambda: ask(gateway, 90)) == ANSWER, "the control"


@on_new_host
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_published_port_is_reached_from_the_host_and_not_by_sandboxes(
    tmp_path: Path, kind: int
) -> None:
    protocol = "tcp" if kind == socket.SOCK_STREAM else "udp"
    with placed(tmp_path) as place:
        place.add(0, "one", (protocol, 8080, PORT))
        place.add(1, "other")
        gateway = str(place.bridge.gateway)
        with listening(serve(place, 0, kind)):
            assert ask("127.0.0.1", 8080, kind) == ANSWER
            assert ask(gateway, 8080, kind) == ANSWER
            got = place.within(1, lambda: ask(gateway, 8080, kind, NO_ANSWER_S))
            assert got in (REFUSED, "TimeoutError", "OSError")
        place.guests[0] = place.guests[1]
        place.sync()
        assert ask("127.0.0.1", 8080, kind) == REFUSED


@contextlib.contextmanager
def outside(folder: Path) -> Iterator[Callable[[Callable[[], Result]], Result]]:
    """Connect another host by a cable, 192.0.2.1 to 192.0.2.2 and 169.254.169.254, to call in."""
    path = f"{folder}/outside"
    with network.make_namespace(path) as there, IPRoute() as here:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            peer = {"ifname": "eth0", "net_ns_fd": descriptor}
            here.link("add", ifname="cable", kind="veth", peer=peer)
            cable = here.link_lookup(ifname="cable")[0]
            here.addr("add", index=cable, address="192.0.2.1", prefixlen=24)
            here.link("set", index=cable, state="up")
            here.route("add", dst="169.254.169.254/32", gateway="192.0.2.2")
            links.set_up(there, 1)
            index = links.index_of(there, "eth0")
            for address in ("192.0.2.2/24", "169.254.169.254/32"):
                links.add_address(there, index, IPv4Interface(address))
            links.set_up(there, index)
            inside = here_is(descriptor)
            inside(lambda: add_route("192.0.2.2"))
            yield inside
        finally:
            os.close(descriptor)
            linux.unmount(path)


def here_is(descriptor: int) -> Callable[[Callable[[], Result]], Result]:
    """Return what calls in the namespace of *descriptor*."""

    def inside(call: Callable[[], Result]) -> Result:
        def entered() -> Result:
            linux.setns(descriptor, linux.CLONE_NEWNET)
            return call()

        return apart(entered)

    return inside


def add_route(source: str) -> None:
    """Let the other host send whatever is for the range of sandboxes over the cable."""
    with IPRoute() as there:
        there.route("add", dst="10.192.0.0/10", gateway="192.0.2.1", prefsrc=source)


@on_new_host
def test_the_world_is_reached_as_the_host_but_for_its_metadata(tmp_path: Path) -> None:
    with placed(tmp_path) as place, outside(tmp_path) as there:
        place.add(0, "one")
        seen: list[str] = []
        with listening(there(lambda: listener("0.0.0.0", PORT)), seen):  # noqa: S104
            assert place.within(0, lambda: ask("192.0.2.2", PORT)) == ANSWER
            assert seen == ["192.0.2.1"]
            assert ask("169.254.169.254", PORT) == ANSWER, "the control"
            assert place.within(0, lambda: ask("169.254.169.254", PORT)) == REFUSED


@on_new_host
def test_from_outside_only_published_ports_are_reached(tmp_path: Path) -> None:
    with placed(tmp_path) as place, outside(tmp_path) as there:
        place.add(0, "one", ("tcp", 8080, PORT))
        with listening(serve(place, 0)):
            assert there(lambda: ask("192.0.2.1", 8080)) == ANSWER
            direct = place.address(0)
            assert there(lambda: ask(direct, PORT, limit_s=NO_ANSWER_S)) == "TimeoutError"
            place.wall.remove()
            assert there(lambda: ask(direct, PORT)) == ANSWER, "the control"


@on_new_host
def test_an_address_that_is_not_a_sandboxs_gets_nowhere(tmp_path: Path) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one")
        place.add(1, "one")
        stolen = f"{place.address(7)}/32"

        def steal() -> None:
            with Socket(NETLINK_ROUTE) as rtnl:
                links.add_address(rtnl, links.index_of(rtnl, "eth0"), IPv4Interface(stolen))

        def ask_from(source: str) -> bytes | str:
            with socket.socket() as asking:
                asking.bind((source, 0))
                asking.settimeout(NO_ANSWER_S)
                try:
                    asking.connect((place.address(1), PORT))
                    return asking.recv(100)
                except OSError as error:
                    return type(error).__name__

        place.within(0, steal)
        with listening(serve(place, 1)):
            assert place.within(0, lambda: ask_from(place.address(0))) == ANSWER
            assert place.within(0, lambda: ask_from(place.address(7))) == "TimeoutError"


@on_new_host
def test_a_hundred_come_and_go_and_leave_nothing(tmp_path: Path) -> None:
    before = has_of_network()
    with placed(tmp_path) as place:
        for lane in range(100):
            place.add(lane, f"team-{lane % 7}", ("tcp", 8000 + lane, PORT))
        assert len(network.ports()) == 100
        assert network.ports()[identify(42)] == network.port_name(identify(42))
        assert has_of_network() != before
        with listening(serve(place, 70)):
            assert place.within(77, lambda: ask(place.address(70), PORT)) == ANSWER
            assert place.within(71, lambda: ask(place.address(70), PORT)) == REFUSED
            assert ask("127.0.0.1", 8070) == ANSWER
    assert has_of_network() == before
    assert os.listdir(tmp_path) == []
    assert mounts.mounts_below(str(tmp_path)) == ()


@on_new_host
def test_a_bridge_that_was_removed_comes_back_with_its_range_and_its_ports(tmp_path: Path) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one")
        place.add(1, "one")
        network.dismantle(BRIDGE)
        assert not network.is_erected(place.bridge)
        with IPRoute() as here:  # somebody takes what would be picked today
            here.link("add", ifname="docker0", kind="bridge")
            index = here.link_lookup(ifname="docker0")[0]
            here.addr("add", index=index, address="10.192.64.1", prefixlen=18)
        assert network.erect(BRIDGE, OWNER, "10.250.0.0/19") == place.bridge
        with listening(serve(place, 1)):
            assert place.within(0, lambda: ask(place.address(1), PORT)) == ANSWER
            place.wall.remove()
            Path(f"/proc/sys/net/ipv4/conf/{BRIDGE}/forwarding").write_text("0", encoding="ascii")
            got = place.within(0, lambda: ask(place.address(1), PORT, limit_s=NO_ANSWER_S))
            assert got == "TimeoutError", "ports are isolated again: nothing goes past the host"


@on_new_host
def test_a_range_that_the_host_uses_is_not_picked() -> None:
    with IPRoute() as here:
        here.link("add", ifname="docker0", kind="bridge")
        index = here.link_lookup(ifname="docker0")[0]
        here.addr("add", index=index, address="10.192.3.1", prefixlen=24)
        here.link("set", index=index, state="up")
        here.addr("add", index=1, address="198.51.100.1", prefixlen=32)
        here.route("add", dst="10.192.32.0/20", gateway="10.192.3.9", oif=index)
    with pytest.raises(CapabilityMissing, match=r"10\.192\.32\.0/20 of the route by docker0"):
        network.erect(BRIDGE, OWNER, "10.192.40.0/21")
    assert network_survey.look().link(BRIDGE) is None
    assert network.erect(BRIDGE, OWNER).addresses == IPv4Network("10.192.64.0/19")


@on_new_host
def test_a_bridge_of_somebody_else_is_left_alone() -> None:
    network.erect(BRIDGE, "/run/other")
    with pytest.raises(NetworkError, match="says 'axern /run/other'"):
        network.erect(BRIDGE, OWNER)
    assert network.erect(BRIDGE, "/run/other").addresses.prefixlen == address_range.PREFIX


@on_new_host
def test_what_the_kernel_refuses_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one", ("tcp", 8080, PORT))
        generation = place.wall.generation()
        with pytest.raises(NetworkError, match="File exists"):
            place.admit(1, "one", ("tcp", 8080, PORT))
        del place.guests[1]
        assert place.wall.generation() == generation
        with listening(serve(place, 0)):
            assert ask("127.0.0.1", 8080) == ANSWER


@on_new_host
def test_a_change_by_somebody_else_is_seen(tmp_path: Path) -> None:
    with placed(tmp_path) as place:
        place.add(0, "one")
        known = place.sync()
        assert known == place.wall.generation()
        other = Firewall("another")
        with contextlib.closing(other):
            other.replace(place.bridge.addresses, ())
            assert place.wall.generation() != known
            other.remove()


@on_new_host
def test_what_is_gone_is_removed_twice() -> None:
    assert not network.disconnect(identify(3))
    assert not network.dismantle(BRIDGE)
    wall = Firewall(BRIDGE)
    with contextlib.closing(wall):
        assert not wall.remove()
