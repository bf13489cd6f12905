"""Real sandboxes on the bridge, of both runtimes, on a host whose network is new."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from axern.host import network
from axern.runtime import launch
from axern.runtime.connection import Connection
from axern.runtime.networking import Keeper, Member
from axern.runtime.oci import SandboxSpec
from tests.host.conftest import EXIT_LIMIT_S, Lab, wait_until
from tests.host.networks import ANSWER, ask, has_of_network, listener, listening, on_new_host

pytestmark = pytest.mark.host

SAY_WHO = "ip -4 -o addr show eth0 | grep -o 'inet [0-9./]*'; ip route; cat /etc/hosts"
QUIETLY = "nc -w 2 </dev/null 2>/dev/null"
SERVE = "while true; do echo hello | nc -l -p 80; done"


@dataclass(slots=True)
class Net:
    """A lab whose sandboxes are on a bridge."""

    lab: Lab
    keeper: Keeper
    members: list[Member]

    def spec(
        self, runtime: str, namespace: str, script: str, *ports: tuple[str, int, int]
    ) -> SandboxSpec:
        """Return a new sandbox that the firewall knows."""
        spec = self.lab.spec(runtime, "sh", "-c", script)
        names = (spec.sandbox_id[:12], f"{namespace}-{spec.lane}")
        self.members.append(Member(spec.sandbox_id, spec.lane, namespace, names, ports))
        bridge = self.keeper.apply(self.members)
        found = replace(spec, connection=Connection(bridge, self.lab.layout.names_of(namespace)))
        self.lab.made[-1] = found
        return found

    def bury(self, spec: SandboxSpec) -> None:
        """Bury a sandbox, and let the firewall forget it."""
        self.lab.bury(spec)
        self.members = [each for each in self.members if each.id != spec.sandbox_id]
        self.keeper.apply(self.members)

    def run(self, spec: SandboxSpec) -> str:
        """Run a sandbox to its end and return what it has said."""
        self.lab.launch(spec)
        self.lab.wait_exit(spec)
        said = self.lab.outputs(spec)
        self.bury(spec)
        return (said["stdout"] + said["stderr"]).decode()


@contextlib.contextmanager
def net_of(lab: Lab) -> Iterator[Net]:
    """Yield a net; afterwards nothing of it is left."""
    before = has_of_network()
    net = Net(lab, Keeper(lab.layout), [])
    try:
        yield net
        for spec in lab.made:
            net.bury(spec)
        assert has_of_network() == before
        assert os.listdir(lab.layout.names) == []
    finally:
        net.keeper.close()


@on_new_host
def test_a_sandbox_has_its_address_and_the_way_out(lab: Lab, runtime: str) -> None:
    with net_of(lab) as net:
        said = net.run(net.spec(runtime, "one", SAY_WHO))
    assert "inet 10.192.0.2/32" in said, said
    assert "default via 10.192.0.1 dev eth0" in said
    assert "10.192.0.2\t" in said
    assert "one-0" in said


@on_new_host
def test_sandboxes_of_one_namespace_talk_by_name_and_others_do_not(lab: Lab, runtime: str) -> None:
    with net_of(lab) as net:
        server = net.spec(runtime, "one", SERVE, ("tcp", 8080, 80))
        lab.launch(server)
        with listening(listener("0.0.0.0", 90)):  # noqa: S104 - a namespace of the test's own
            wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")
            asking = f"nc -w 3 one-0 80 </dev/null; {QUIETLY} 10.192.0.1 90 || echo no"
            assert net.run(net.spec(runtime, "one", asking)).split() == ["hello", "no"]
            asking = f"{QUIETLY} 10.192.0.2 80 || echo no; grep one-0 /etc/hosts"
            assert net.run(net.spec(runtime, "other", asking)).split() == ["no"]
            assert ask("127.0.0.1", 90) == ANSWER


@on_new_host
def test_the_low_ports_and_sysfs_are_the_sandboxs_own(lab: Lab) -> None:
    with net_of(lab) as net:
        said = net.run(
            net.spec("runc", "one", "ls /sys/class/net; nc -l -p 80 & sleep 0.1; kill $!")
        )
    assert said.split() == ["eth0", "lo"]


@on_new_host
def test_a_name_appears_in_sandboxes_that_run(lab: Lab, runtime: str) -> None:
    with net_of(lab) as net:
        waiting = "while ! grep -q one-1 /etc/hosts; do sleep 0.05; done; grep -o one-1 /etc/hosts"
        first = net.spec(runtime, "one", waiting)
        lab.launch(first)
        net.spec(runtime, "one", "true")
        assert lab.wait_exit(first) == 0
        assert lab.outputs(first)["stdout"] == b"one-1\n"


@on_new_host
def test_the_hosts_network_is_the_hosts(lab: Lab, runtime: str) -> None:
    with listening(listener("127.0.0.1", 90)):
        spec = lab.spec(
            runtime, "sh", "-c", "nc -w 3 127.0.0.1 90 </dev/null; ls /sys/class | head -1"
        )
        spec = replace(spec, connection=Connection())
        lab.made[-1] = spec
        lab.launch(spec)
        assert lab.wait_exit(spec) == 0
        assert lab.outputs(spec)["stdout"].startswith(ANSWER)


@on_new_host
def test_an_interface_goes_with_a_launch_that_was_cut_off(lab: Lab, runtime: str) -> None:
    with net_of(lab) as net:
        spec = net.spec(runtime, "one", "sleep 100")
        launch.create(spec, lab.layout, timeout_s=EXIT_LIMIT_S)
        assert network.is_connected(spec.sandbox_id)
        evidence = lab.bury(spec)
        assert f"interface {network.port_name(spec.sandbox_id)}" in evidence.removed
        assert not network.is_connected(spec.sandbox_id)


@on_new_host
def test_a_network_namespace_that_somebody_holds_keeps_no_interface(lab: Lab) -> None:
    with net_of(lab) as net:
        spec = net.spec("runsc", "one", "sleep 100")
        lab.launch(spec)
        paths = lab.layout.sandbox(spec.sandbox_id)
        held = [network.namespace_of(pid) for pid in paths.wall.pids()]
        net.bury(spec)
        assert not network.is_connected(spec.sandbox_id)
        assert not Path(paths.network).exists()
        for descriptor in held:
            os.close(descriptor)
