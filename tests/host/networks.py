"""Network namespaces that stand for a host, so that tests leave the real one's network alone."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from axern.host import address_range, firewall, links, linux, network, network_survey
from axern.host.netlink import NETLINK_ROUTE, Socket
from axern.host.network import Bridge

Result = TypeVar("Result")

BRIDGE = "axern0"
OWNER = "/run/axern-test"
ANSWER = b"hello"
LIMIT_S = 20.0


def apart(call: Callable[[], Result]) -> Result:
    """Call in a thread of its own, whose namespaces go with it."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def on_new_host(test: Callable[..., None]) -> Callable[..., None]:
    """Let *test* see a host whose network is new, with loopback and forwarding."""

    @functools.wraps(test)
    def wrapped(*arguments: object, **named: object) -> None:
        def call() -> None:
            begin_network()
            test(*arguments, **named)

        apart(call)

    return wrapped


def begin_network() -> None:
    """Give this thread a new network namespace, as a booted host has it."""
    linux.unshare(linux.CLONE_NEWNET)
    with Socket(NETLINK_ROUTE) as rtnl:
        links.set_up(rtnl, 1)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def has_of_network() -> list[str]:
    """Name everything of this namespace that sandboxes could leave in it."""
    seen = network_survey.look()
    found = [f"link {link.name}" for link in seen.links]
    found += [f"address {address}" for _, address in seen.addresses]
    found += [f"route {taken}" for taken in seen.taken]
    wall = firewall.Firewall(BRIDGE)
    with contextlib.closing(wall):
        return [*found, *(["table"] if wall.is_there() else [])]


@dataclass(slots=True)
class Place:
    """Sandboxes as the network sees them: a namespace each, no process in it."""

    folder: Path
    bridge: Bridge = field(default_factory=lambda: network.erect(BRIDGE, OWNER))
    wall: firewall.Firewall = field(default_factory=lambda: firewall.Firewall(BRIDGE))
    guests: dict[int, firewall.Guest] = field(default_factory=dict)

    def path(self, lane: int) -> str:
        """Return where the namespace of *lane* is mounted."""
        return f"{self.folder}/{lane}"

    def admit(self, lane: int, namespace: str, *ports: tuple[str, int, int]) -> None:
        """Let the firewall know of a sandbox."""
        address = self.bridge.address_of(lane)
        self.guests[lane] = firewall.Guest(address, namespace, ports)
        self.sync()

    def sync(self) -> int | None:
        """Write the table."""
        return self.wall.replace(self.bridge.addresses, self.guests.values())

    def add(self, lane: int, namespace: str, *ports: tuple[str, int, int]) -> None:
        """Make a sandbox's network from its beginning."""
        self.admit(lane, namespace, *ports)
        with network.make_namespace(self.path(lane)) as within:
            descriptor = os.open(self.path(lane), os.O_RDONLY)
            network.connect(self.bridge, identify(lane), lane, descriptor, within)
            os.close(descriptor)

    def remove(self, lane: int) -> None:
        """Take a sandbox's network away, as its burial does."""
        network.disconnect(identify(lane))
        linux.unmount(self.path(lane))
        os.unlink(self.path(lane))
        del self.guests[lane]
        self.sync()

    def close(self) -> None:
        """Take everything away."""
        for lane in tuple(self.guests):
            self.remove(lane)
        self.wall.remove()
        network.dismantle(BRIDGE)
        self.wall.close()

    def within(self, lane: int, call: Callable[[], Result]) -> Result:
        """Call inside the namespace of *lane*."""

        def entered() -> Result:
            descriptor = os.open(self.path(lane), os.O_RDONLY)
            linux.setns(descriptor, linux.CLONE_NEWNET)
            os.close(descriptor)
            return call()

        return apart(entered)

    def address(self, lane: int) -> str:
        """Return the address of *lane* as text."""
        return str(address_range.address_of(self.bridge.addresses, lane))


@contextlib.contextmanager
def placed(folder: Path) -> Iterator[Place]:
    """Yield a place for sandboxes, and take it away."""
    place = Place(folder)
    try:
        yield place
    finally:
        place.close()


@contextlib.contextmanager
def listening(listener: socket.socket, seen: list[str] | None = None) -> Iterator[None]:
    """Answer everybody who comes to *listener*; the addresses of who does are *seen*."""
    is_stream = listener.type == socket.SOCK_STREAM

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                if is_stream:
                    peer, sender = listener.accept()
                    if seen is not None:
                        seen.append(sender[0])
                    with peer:
                        peer.sendall(ANSWER)
                else:
                    question, sender = listener.recvfrom(100)
                    if not question:
                        return
                    listener.sendto(ANSWER, sender)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(
            OSError
        ):  # one without connections says so, and wakes all the same
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def listener(address: str, port: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Return a socket of this thread's namespace that others may come to."""
    found = socket.socket(socket.AF_INET, kind)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((address, port))
    if kind == socket.SOCK_STREAM:
        found.listen()
    return found


def ask(
    address: str, port: int, kind: int = socket.SOCK_STREAM, limit_s: float = LIMIT_S
) -> bytes | str:
    """Return what somebody answers there, or the name of the error."""
    with socket.socket(socket.AF_INET, kind) as asking:
        asking.settimeout(limit_s)
        try:
            asking.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                asking.send(b"?")
            return asking.recv(100)
        except OSError as error:
            return type(error).__name__


def identify(lane: int) -> str:
    """Return an id for the sandbox of *lane*."""
    return f"{lane:04x}" * 8
