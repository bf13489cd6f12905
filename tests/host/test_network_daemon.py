"""The network of runs, by a real daemon on a host whose network is new."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from axern.host import linux, network, network_survey
from axern.host.firewall import Firewall
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.host.networks import BRIDGE, ask, has_of_network, on_new_host

pytestmark = pytest.mark.host

SERVE = "while true; do echo hello | nc -l -p 80; done"
SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB", "--runtime-class", "runc")


@contextlib.contextmanager
def networked() -> Iterator[DaemonLab]:
    """Yield a lab; afterwards nothing of any network is left."""
    before = has_of_network()
    with daemon_lab() as lab:
        yield lab
    assert has_of_network() == before


def detach(lab: DaemonLab, *words: str) -> str:
    """Start a detached run on the bridge and return its id."""
    done = lab.axern("run", "--detach", "--network", "bridge", *SMALL, *words)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.decode().strip()
    lab.wait_status(run_id, "running")
    return run_id


def refused(lab: DaemonLab, *words: str) -> dict[str, Any]:
    """Return the error that `run` answers."""
    done = lab.axern("run", "-o", "json", *SMALL, *words, "--", "true")
    assert done.returncode == 125, done.stdout
    found: dict[str, Any] = json.loads(done.stdout)["error"]
    return found


@on_new_host
def test_a_published_port_is_served_refused_to_others_and_free_again() -> None:
    with networked() as lab:
        lab.start()
        first = detach(lab, "--publish", "8080:80", "--", "sh", "-c", SERVE)
        wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")
        error = refused(lab, "--network", "bridge", "--publish", "8080:81")
        assert error["code"] == "published_port_taken"
        assert [each["dimension"] for each in error["shortfalls"]] == ["tcp/8080"]
        assert [each["id"] for each in error["holders"]] == [first]
        assert error["would_fit_if"][0]["release"] == [first]
        run = lab.run(first)
        assert (run["network"], run["publish"]) == ("bridge", ["8080:80"])
        lab.request("DELETE", f"/v2/runs/{first}?grace_ms=0")
        lab.wait_empty()
        assert ask("127.0.0.1", 8080) == "ConnectionRefusedError"
        detach(lab, "--publish", "8080:80", "--", "sh", "-c", SERVE)
        wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")


@on_new_host
def test_a_flushed_firewall_and_a_removed_bridge_are_repaired_also_over_a_restart() -> None:
    with networked() as lab:
        daemon = lab.start()
        detach(lab, "--publish", "8080:80", "--", "sh", "-c", SERVE)
        wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")
        with contextlib.closing(Firewall(BRIDGE)) as wall:
            wall.remove()
            wait_until(wall.is_there)
            wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")
            network.dismantle(BRIDGE)
            wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")
            lab.kill(daemon)
            wall.remove()
            network.dismantle(BRIDGE)
            lab.start()
            wait_until(lambda: ask("127.0.0.1", 8080) == b"hello\n")


@on_new_host
def test_what_is_asked_for_wrongly_is_refused_with_a_reason() -> None:
    with networked() as lab:
        lab.start()
        error = refused(lab, "--publish", "8080:80")
        assert error["code"] == "invalid_argument"
        assert "ports are published on the bridge only" in error["message"]
        error = refused(lab, "--network", "bridge", "--publish", "8080:80", "--publish", "8080:81")
        assert "port tcp/8080 is published twice" in error["message"]
        error = refused(lab, "--network", "bridge", "--publish", "80")
        assert "HOST:SANDBOX[/udp]" in error["message"]


@on_new_host
def test_an_offline_release_leaves_nothing_of_a_network() -> None:
    with networked() as lab:
        daemon = lab.start()
        first = detach(lab, "--", "sleep", "1000")
        second = detach(lab, "--", "sleep", "1000")
        lab.kill(daemon)
        for run_id in (first, second):
            assert network.is_connected(run_id)
            done = lab.axern("reservations", "release", run_id, "--force", "--reason", "test")
            assert done.returncode == 0, done.stderr
            assert not network.is_connected(run_id)
        assert network_survey.look().link(BRIDGE) is None


@on_new_host
@pytest.mark.parametrize("step", ["launch.connected", "bury.disconnected"])
def test_a_daemon_that_dies_while_it_connects_leaves_nothing(step: str) -> None:
    with networked() as lab:
        dying = lab.start(step)
        client = lab.popen("run", "--network", "bridge", *SMALL, "--", "true")
        dying.wait(60)
        lab.start()
        client.communicate(timeout=60)
        lab.wait_empty()
        assert network.ports() == {}
        assert network_survey.look().link(BRIDGE) is None


@on_new_host
def test_the_doctor_finds_a_lost_interface_and_a_leaked_one() -> None:
    with networked() as lab:
        daemon = lab.start()
        run_id = detach(lab, "--", "sleep", "1000")
        assert doctor_codes(lab) == []
        network.disconnect(run_id)
        assert doctor_codes(lab) == ["drifting-network"]
        lab.request("DELETE", f"/v2/runs/{run_id}?grace_ms=0")
        lab.wait_empty()
        bridge = network.erect(BRIDGE, lab.layout.run_dir)
        path = f"{lab.base}/leaked"
        leaked = "ab" * 16
        with network.make_namespace(path) as within, open(path, "rb") as file:
            network.connect(bridge, leaked, 7, file.fileno(), within)
        assert doctor_codes(lab) == ["leaked-sandbox"]
        done = lab.axern("reservations", "release", leaked)
        assert done.returncode == 0, done.stderr
        assert doctor_codes(lab) == []
        network.dismantle(BRIDGE)
        linux.unmount(path)
        del daemon


def doctor_codes(lab: DaemonLab) -> list[str]:
    """Return the codes of what the doctor finds."""
    done = lab.axern("reservations", "doctor", "-o", "json")
    return [each["code"] for each in json.loads(done.stdout)["findings"]]
