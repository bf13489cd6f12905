"""The OCI bundle: config.json, which tells a runtime everything about one sandbox.

Source: opencontainers/runtime-spec v1.0.2, config.md and config-linux.md.
"""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Sequence
from typing import Any

from axern.host import idmap
from axern.host.cgroup_values import oci_resources
from axern.host.gpu import DeviceNode
from axern.runtime import connection
from axern.runtime.layout import SandboxPaths
from axern.runtime.oci import DEFAULT_PATH, SandboxSpec
from axern.runtime.user import Identity
from ledger.tables import HOST_NETWORK

OCI_VERSION = "1.0.2"
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""Docker's defaults without device nodes, raw sockets, audit records and file capabilities."""
OOM_SCORE_ADJ = 500
"""A host short of memory loses a workload before a service; never the daemon's own value."""
OPEN_FILES = 65_536
"""Soft and hard limit of open files, unless the host allows fewer."""
MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READONLY_PATHS = (
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
)
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Names the one GPU of a sandbox; whatever the user says of it. Source: CUDA programming guide."""
_DEVICE_MODE = 0o666
_DEV_SHM_BYTES = 64 * 1024 * 1024


def build(
    spec: SandboxSpec,
    paths: SandboxPaths,
    *,
    maps_ids: bool,
    identity: Identity | None = None,
    devices: Sequence[DeviceNode] = (),
) -> dict[str, Any]:
    """Return the content of config.json for *spec*; with *maps_ids* in a user namespace.

    Without an *identity* the workload is root, and the runtime finds its home. *devices* are the
    nodes of its GPU, beside which it sees none.
    """
    return {
        "ociVersion": OCI_VERSION,
        "hostname": spec.hostname,
        "root": {"path": paths.rootfs, "readonly": spec.rootfs_readonly},
        "process": process(spec, identity),
        "mounts": [
            *_mounts(
                shows_limits=spec.limits is not None and maps_ids,
                owns_network=connection.mode_of(spec) != HOST_NETWORK or not maps_ids,
            ),
            *connection.mounts(spec),
        ],
        "linux": _linux(spec, paths, devices, maps_ids=maps_ids),
    }


def process(
    spec: SandboxSpec, identity: Identity | None, *, terminal: bool = False
) -> dict[str, Any]:
    """Return what starts a process of *spec*, its first one or one that is added later."""
    env = dict(spec.env)
    if spec.gpu_device is not None:
        env[VISIBLE_DEVICES] = spec.gpu_device
    env.setdefault("PATH", DEFAULT_PATH)
    if identity is not None:
        env.setdefault("HOME", identity.home)
    # Root in a user namespace may not raise a limit above the one that it was started with.
    open_files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    return {
        "terminal": terminal,
        "user": _user(identity),
        "args": list(spec.argv),
        "env": [f"{name}={value}" for name, value in env.items()],
        "cwd": spec.cwd,
        "capabilities": _capabilities(identity),
        "noNewPrivileges": True,
        "oomScoreAdj": OOM_SCORE_ADJ,
        "rlimits": [
            {"type": "RLIMIT_NOFILE", "soft": open_files, "hard": open_files},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
        ],
    }


def _user(identity: Identity | None) -> dict[str, Any]:
    if identity is None:
        return {"uid": 0, "gid": 0}
    return {
        "uid": identity.uid,
        "gid": identity.gid,
        "additionalGids": list(identity.groups),
    }


def _capabilities(identity: Identity | None) -> dict[str, list[str]]:
    """Return the capabilities by set: only root starts with any, and nobody gains them later."""
    held = list(CAPABILITIES) if identity is None or identity.uid == 0 else []
    return {"bounding": list(CAPABILITIES), "effective": held, "permitted": held}


def _mounts(*, shows_limits: bool, owns_network: bool) -> list[dict[str, Any]]:
    secure = ["nosuid", "noexec", "nodev"]
    # Where language runtimes read how much they have; gVisor tells its guest by /proc/meminfo.
    group = {
        "destination": "/sys/fs/cgroup",
        "type": "cgroup",
        "source": "cgroup",
        "options": [*secure, "relatime", "ro"],
    }
    return [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": secure},
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "noexec", "strictatime", "mode=755", "size=65536k"],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        },
        {
            "destination": "/dev/shm",  # noqa: S108 - a mount point inside the sandbox
            "type": "tmpfs",
            "source": "shm",
            "options": [*secure, "mode=1777", f"size={_DEV_SHM_BYTES}"],
        },
        _sysfs([*secure, "ro"], owns_network=owns_network),
        *([group] if shows_limits else []),
    ]


def _sysfs(options: list[str], *, owns_network: bool) -> dict[str, Any]:
    """Return the mount of /sys: only who owns the network namespace may make a new one."""
    if owns_network:
        return {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": options}
    return {
        "destination": "/sys",
        "type": "bind",
        "source": "/sys",
        "options": ["rbind", *options],
    }


def _linux(
    spec: SandboxSpec, paths: SandboxPaths, devices: Sequence[DeviceNode], *, maps_ids: bool
) -> dict[str, Any]:
    kinds = ["pid", "ipc", "uts", "mount", "cgroup"]
    section: dict[str, Any] = {
        "cgroupsPath": f"/{paths.workload.path}",
        "maskedPaths": list(MASKED_PATHS),
        "readonlyPaths": list(READONLY_PATHS),
        "rootfsPropagation": "private",
    }
    resources = oci_resources(spec.limits, spec.runtime) if spec.limits is not None else {}
    if devices:
        section["devices"] = [_device(node) for node in devices]
        resources = resources | {"devices": [_device_rule(node) for node in devices]}
    if resources:
        section["resources"] = resources
    if maps_ids:
        kinds.append("user")
        mapping = [
            {
                "containerID": 0,
                "hostID": idmap.first_id(spec.lane),
                "size": idmap.IDS_PER_LANE,
            }
        ]
        section |= {"uidMappings": mapping, "gidMappings": mapping}
    network = connection.namespace(spec, paths, maps_ids=maps_ids)
    namespaces = [{"type": kind} for kind in kinds] + ([network] if network else [])
    return section | {"namespaces": namespaces}


def _device(node: DeviceNode) -> dict[str, Any]:
    return {
        "path": node.path,
        "type": "c",
        "major": node.major,
        "minor": node.minor,
        "fileMode": _DEVICE_MODE,
        "uid": 0,
        "gid": 0,
    }


def _device_rule(node: DeviceNode) -> dict[str, Any]:
    """Return the rule that lets it be read and written, but made by nobody."""
    return {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rw"}


def write(config: dict[str, Any], path: str) -> None:
    """Write *config* as JSON for root's eyes only: environment values may be secrets."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(config, file, ensure_ascii=False)
