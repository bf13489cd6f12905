"""containerd and docker as peers: daemons of the benchmark's own, without any network."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from axern.host import mounts
from bench.peers import service
from bench.peers.tools import Missing, find

IMAGE = "axern-bench"
_CONTAINERD = """version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{socket}"
"""
_UNMOUNT_LIMIT_S = 30.0
_TRY_LIMIT_S = 60


def installed(name: str, package: str) -> str:
    """Return the path of *name*; nothing is installed here: these would change the host's network.

    Raises:
        Missing: It is not installed.
    """
    found = find(name)
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install {package}")
    return found


@contextlib.contextmanager
def containerd(folder: str) -> Iterator[str]:
    """Run containerd and yield its socket.

    Raises:
        Missing: It is not installed, or does not run here.
    """
    program = installed("containerd", "containerd")
    socket, config = f"{folder}/containerd.sock", f"{folder}/containerd.toml"
    Path(config).write_text(_CONTAINERD.format(folder=folder, socket=socket), encoding="utf-8")
    try:
        with _running([program, "--config", config], socket, f"{folder}/containerd.log"):
            yield socket
    finally:
        mounts.unmount_below(folder, _UNMOUNT_LIMIT_S)


@contextlib.contextmanager
def docker(folder: str, containerd_socket: str, cgroup: str) -> Iterator[str]:
    """Run dockerd upon that containerd and yield its socket; its cgroups lie in *cgroup*.

    Raises:
        Missing: It is not installed, or does not run here.
    """
    program = installed("dockerd", "docker.io")
    socket = f"{folder}/docker.sock"
    options = {
        "host": f"unix://{socket}",
        "containerd": containerd_socket,
        "data-root": f"{folder}/docker",
        "exec-root": f"{folder}/docker-state",
        "pidfile": f"{folder}/docker.pid",
        "cgroup-parent": f"/{cgroup}",
        "bridge": "none",
        "iptables": "false",
        "ip6tables": "false",
        "ip-forward": "false",
        "ip-masq": "false",
    }
    argv = [program, *(f"--{name}={value}" for name, value in options.items())]
    try:
        with _running(argv, socket, f"{folder}/docker.log"):
            yield socket
    finally:
        mounts.unmount_below(folder, _UNMOUNT_LIMIT_S)


@contextlib.contextmanager
def _running(argv: list[str], socket: str, log: str) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(service.running(argv, socket, log, {}))
        except AssertionError as error:
            raise Missing(f"{argv[0]} does not run here: {str(error).strip()[-300:]}") from error
        yield


def ctr_argv(socket: str, rootfs: str, name: str, cgroup: str) -> list[str]:
    """Return the command that runs `true` in a root file system by containerd."""
    flags = ["--rm", "--rootfs", "--cgroup", f"/{cgroup}/{name}"]
    ctr = installed("ctr", "containerd")
    return [ctr, "--address", socket, "run", *flags, rootfs, name, "/bin/true"]


def docker_argv(socket: str) -> list[str]:
    """Return the command that runs `true` by docker."""
    docker = installed("docker", "docker.io")
    return [docker, "--host", f"unix://{socket}", "run", "--rm", "--network=none", IMAGE, "true"]


def import_image(socket: str, rootfs: str) -> None:
    """Make docker's image of the root file system *rootfs*."""
    docker = [installed("docker", "docker.io"), "--host", f"unix://{socket}"]
    with subprocess.Popen(["tar", "-C", rootfs, "-c", "."], stdout=subprocess.PIPE) as packing:
        subprocess.run(
            [*docker, "import", "-", IMAGE],
            stdin=packing.stdout,
            check=True,
            capture_output=True,
        )
    assert packing.returncode == 0


def try_out(argv: list[str]) -> None:
    """Run *argv* once.

    Raises:
        Missing: It fails here; the message has its last words.
    """
    done = subprocess.run(argv, capture_output=True, check=False, timeout=_TRY_LIMIT_S)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["without a word"]
        raise Missing(f"{argv[0]} fails here: {words[-1][-300:]}")


def remove_cgroups(cgroup: str) -> None:
    """Remove the empty folders that are left of *cgroup* in each hierarchy."""
    for top in Path("/sys/fs/cgroup").glob(f"**/{cgroup}"):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
