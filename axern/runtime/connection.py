"""How one sandbox is connected: what its runtime makes of a network, and what we add to it.

runc makes a network namespace inside its user namespace, which is connected once it is there; one
made before would be the host's, and sysfs and low ports would not work in it. runsc is given one
that is connected already, and takes address and routes over into a TCP/IP stack of its own.
Source: docs/decisions/0035-network.md.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.failpoint import failpoint
from axern.host import network, resolver
from ledger.tables import BRIDGE, HOST_NETWORK, NO_NETWORK

if TYPE_CHECKING:
    from typing import Any

    from axern.host.network import Bridge
    from axern.runtime.layout import SandboxPaths
    from axern.runtime.oci import Runtime, SandboxSpec
    from ledger.reservation import ProcessIdentity

_READ_ONLY = ["bind", "ro", "nosuid", "nodev", "noexec"]
_HOSTS = "/etc/hosts"
_RESOLV_CONF = "/etc/resolv.conf"


@dataclass(frozen=True, slots=True)
class Connection:
    """What a sandbox has of a network; one without any has none of these.

    `bridge` is None in the host's own network. `hosts` is the file of its namespace's names, which
    others keep up to date; `nameservers` stand in for those of the host.
    """

    bridge: Bridge | None = None
    hosts: str | None = None
    nameservers: tuple[str, ...] = ()

    @property
    def mode(self) -> str:
        """`bridge` or `host`."""
        return BRIDGE if self.bridge else HOST_NETWORK


def mode_of(spec: SandboxSpec) -> str:
    """Return `none`, `bridge` or `host`."""
    return spec.connection.mode if spec.connection else NO_NETWORK


def files(spec: SandboxSpec) -> dict[str, str]:
    """Return hosts and resolv.conf for the sandbox's own /etc."""
    own = f"127.0.0.1\tlocalhost {spec.hostname}\n::1\tlocalhost\n"
    match mode_of(spec):
        case "bridge":
            nameservers = spec.connection.nameservers if spec.connection else ()
            return {"hosts": own, "resolv.conf": resolver.conf(nameservers)}
        case "host":
            return {
                "hosts": _text_of(_HOSTS) or own,
                "resolv.conf": _text_of(_RESOLV_CONF),
            }
        case _:
            return {"hosts": own, "resolv.conf": "# no network\n"}


def _text_of(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def namespace(spec: SandboxSpec, paths: SandboxPaths, *, maps_ids: bool) -> dict[str, str] | None:
    """Return the entry of the bundle's list of namespaces, None for the host's own."""
    match mode_of(spec):
        case "host":
            return None
        case "bridge" if not maps_ids:
            return {"type": "network", "path": paths.network}
        case _:
            return {"type": "network"}


def mounts(spec: SandboxSpec) -> list[dict[str, Any]]:
    """Return what is to be mounted for it: the file of names."""
    if spec.connection is None or spec.connection.hosts is None:
        return []
    source = spec.connection.hosts
    return [{"destination": _HOSTS, "type": "bind", "source": source, "options": _READ_ONLY}]


def prepare(spec: SandboxSpec, paths: SandboxPaths, runtime: Runtime) -> None:
    """Connect what the runtime is given; raises NetworkError, OSError."""
    if spec.connection is None or spec.connection.bridge is None or runtime.maps_ids:
        return
    with network.make_namespace(paths.network) as within:
        failpoint("launch.namespace")
        descriptor = os.open(paths.network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            network.connect(spec.connection.bridge, spec.sandbox_id, spec.lane, descriptor, within)
        finally:
            os.close(descriptor)
    failpoint("launch.connected")


def complete(spec: SandboxSpec, runtime: Runtime, init: ProcessIdentity) -> None:
    """Connect what the runtime has made, before the workload is started; raises as `prepare`."""
    if spec.connection is None or spec.connection.bridge is None or not runtime.maps_ids:
        return
    descriptor = network.namespace_of(init.pid)
    try:
        with network.inside(descriptor) as within:
            network.connect(spec.connection.bridge, spec.sandbox_id, spec.lane, descriptor, within)
    finally:
        os.close(descriptor)
    failpoint("launch.connected")
