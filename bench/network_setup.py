"""Measures what a sandbox's network costs to set up and to take away, beside seven `ip` calls.

Ours is all of it: the firewall's table with every sandbox that there is, namespace, both
interfaces, address and routes. The others leave the firewall out. Everything happens in a network
and a mount namespace of the benchmark's own, with other sandboxes on the bridge already.

usage: python -m bench.network_setup [--quick] [--rounds N]

Needs root, `unshare` and `ip`.
"""

import contextlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from axern.host import links, linux, network
from axern.host.firewall import Firewall, Guest
from axern.host.netlink import NETLINK_ROUTE, Socket
from axern.host.network import Bridge
from bench import common

APART = "AXERN_BENCH_APART"
BRIDGE = "axern-bench"
BESIDE = (0, 100)
"""How many sandboxes the firewall knows beside the one that is measured."""
TURNS = 10
SETUP = "axern, firewall and all"
SEVEN = "ip, 7 processes"
BATCH = "ip -batch, 2 processes"

Setup = tuple[Callable[[int], None], Callable[[int], None]]
"""Sets one up, and takes it away, by its number."""


class Place:
    """A bridge, and the firewall's guests on it."""

    def __init__(self, folder: str, bridge: Bridge) -> None:
        self.folder = folder
        self.bridge = bridge
        self.wall = Firewall(BRIDGE)
        self.guests: dict[int, Guest] = {}

    def fill(self, others: int) -> None:
        """Let the firewall know of *others*."""
        self.guests = {lane: self._guest(lane) for lane in range(1000, 1000 + others)}

    def _guest(self, lane: int) -> Guest:
        address = self.bridge.address_of(lane)
        return Guest(address, f"team-{lane % 7}", (("tcp", 10_000 + lane, 80),))

    def set_up(self, lane: int) -> None:
        """Make a sandbox's network, as a launch does."""
        self.guests[lane] = self._guest(lane)
        self.wall.replace(self.bridge.addresses, self.guests.values())
        path = f"{self.folder}/{lane}"
        with network.make_namespace(path) as within:
            descriptor = os.open(path, os.O_RDONLY)
            network.connect(self.bridge, f"{lane:032x}"[::-1], lane, descriptor, within)
            os.close(descriptor)

    def take_away(self, lane: int) -> None:
        """Remove it, as a burial does."""
        network.disconnect(f"{lane:032x}"[::-1])
        linux.unmount(f"{self.folder}/{lane}")
        os.unlink(f"{self.folder}/{lane}")
        del self.guests[lane]
        self.wall.replace(self.bridge.addresses, self.guests.values())


def words(lane: int) -> list[str]:
    """Return the seven calls that do the same, without the firewall."""
    name, port, peer = f"n{lane}", f"v{lane}", f"p{lane}"
    return [
        f"netns add {name}",
        f"link add {port} type veth peer name {peer} netns {name}",
        f"link set {port} master {BRIDGE} up",
        f"-n {name} addr add 10.192.16.{lane % 250 + 1}/19 dev {peer}",
        f"-n {name} link set {peer} up",
        f"-n {name} link set lo up",
        f"-n {name} route add default via 10.192.0.1",
    ]


def seven(lane: int) -> None:
    """Call `ip` seven times."""
    for call in words(lane):
        subprocess.run(["ip", *call.split()], check=True)


def batch(lane: int) -> None:
    """Call it twice, with several commands each."""
    calls = words(lane)
    inside = [call.split(" ", 2)[2] for call in calls[3:]]
    for flags, some in (((), calls[:3]), (("-n", f"n{lane}"), inside)):
        text = "\n".join(some)
        subprocess.run(["ip", *flags, "-batch", "-"], input=text, text=True, check=True)


def delete(lane: int) -> None:
    """Remove what they have made."""
    subprocess.run(["ip", "link", "del", f"v{lane}"], check=True)
    subprocess.run(["ip", "netns", "del", f"n{lane}"], check=True)


def turn(setup: Setup, lanes: Iterator[int]) -> Mapping[str, float]:
    """Set some up and take them away, one after another; return the medians in ms."""
    made: list[float] = []
    gone: list[float] = []
    for lane in itertools.islice(lanes, TURNS):
        for call, times in zip(setup, (made, gone), strict=True):
            begun_s = time.perf_counter()
            call(lane)
            times.append(time.perf_counter() - begun_s)
    return {
        "setup_ms": common.percentile(made, 50) * 1e3,
        "removal_ms": common.percentile(gone, 50) * 1e3,
    }


def measure(rounds: int) -> None:
    """Measure each in turn, with and without others there, and print both."""
    with contextlib.ExitStack() as stack:
        with Socket(NETLINK_ROUTE) as rtnl:
            links.set_up(rtnl, 1)
        os.makedirs("/run/netns", exist_ok=True)
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/run"))
        place = Place(folder, network.erect(BRIDGE, folder))
        rows: list[list[str]] = []
        figures: dict[str, dict[str, dict[str, float]]] = {}
        ratios: dict[str, float] = {}
        lanes = itertools.cycle(range(1, 250))
        setups: dict[str, Setup] = {
            SETUP: (place.set_up, place.take_away),
            SEVEN: (seven, delete),
            BATCH: (batch, delete),
        }
        for others in BESIDE:
            place.fill(others)
            cases = {name: partial(turn, setup, lanes) for name, setup in setups.items()}
            found = common.interleave(cases, rounds)
            figures[f"beside {others}"] = found
            ratios[f"beside {others}"] = found[SETUP]["setup_ms"] / found[SEVEN]["setup_ms"]
            rows += [
                [f"{name}, beside {others}", *(f"{value:.2f}" for value in figure.values())]
                for name, figure in found.items()
            ]
    print(common.table(("", "set-up ms", "removal ms"), rows))
    print(f"set-up to seven calls of ip, at most 0.4: {ratios}")
    common.report("network_setup", figures, ratios)


def main() -> None:
    """Go apart, then measure."""
    options = common.parse(common.arguments(__doc__))
    if APART not in os.environ:
        apart = ("unshare", "--net", "--mount", "--propagation", "private")
        again = (*apart, sys.executable, "-m", "bench.network_setup", *sys.argv[1:])
        os.execvpe(apart[0], again, os.environ | {APART: "1"})  # noqa: S606 - argv, no shell
    linux.mount("none", "/run", "tmpfs")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")
    measure(1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()
