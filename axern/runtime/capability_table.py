"""The one table of capabilities: daemon, admission and doctor read it, and nothing else decides.

Keys are `<what>/<name>`. A limit's key ends with the runtime that must be shown to obey it.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from axern.host import cgroup_probe, cgroup_tree
from axern.host.capabilities import ADMISSION_ONLY, DEGRADE, FAIL_STOP, Row
from axern.host.process import boot_id
from axern.runtime import memory_proof

if TYPE_CHECKING:
    from axern.runtime.layout import Layout

RUNTIMES = ("runc", "runsc")

CGROUP_MEMORY = "cgroup/memory"
CGROUP_PIDS = "limit/pids"
CGROUP_CPU = "limit/cpu"
OVERLAY_UPPER = "filestore/overlay-upper"
PROJECT_QUOTA = "filestore/project-quota"
USER_NAMESPACES = "user-namespaces"
NETWORK = "network"
GPU = "gpu"


def runtime_key(runtime: str) -> str:
    """Return the key of *runtime* being there and working."""
    return f"runtime/{runtime}"


def memory_limit_key(runtime: str) -> str:
    """Return the key of a memory limit that holds for *runtime*."""
    return f"limit/memory/{runtime}"


def storage_limit_key(runtime: str) -> str:
    """Return the key of a storage limit that holds for *runtime*."""
    return f"limit/ephemeral-storage/{runtime}"


def table(layout: Layout) -> tuple[Row, ...]:
    """Return every row for the host as *layout* uses it; a row stands behind what it needs."""
    cgroups = partial(cgroup_tree.identity, layout.root)
    filestore = partial(_mount_identity, layout.filestore)
    return (
        Row(
            CGROUP_MEMORY,
            "memory controller of cgroup version 2",
            loss=FAIL_STOP,
            probe=partial(cgroup_probe.memory, layout.root),
            identity=cgroups,
        ),
        Row(
            CGROUP_PIDS,
            "pids controller of cgroup version 2",
            loss=FAIL_STOP,
            probe=partial(cgroup_probe.pids, layout.root),
            identity=cgroups,
        ),
        Row(
            CGROUP_CPU,
            "cpu controller of cgroup version 2",
            loss=DEGRADE,
            probe=partial(cgroup_probe.cpu, layout.root),
            identity=cgroups,
        ),
        Row(
            USER_NAMESPACES,
            "user namespaces with mapped ids",
            loss=ADMISSION_ONLY,
            probe=partial(_unproved, USER_NAMESPACES),
            identity=boot_id,
        ),
        Row(
            OVERLAY_UPPER,
            "the filestore can be the upper layer of an overlay",
            loss=ADMISSION_ONLY,
            probe=partial(_unproved, OVERLAY_UPPER),
            identity=filestore,
        ),
        Row(
            PROJECT_QUOTA,
            "the filestore enforces XFS project quotas",
            loss=FAIL_STOP,
            probe=partial(_unproved, PROJECT_QUOTA),
            identity=filestore,
        ),
        *(row for runtime in RUNTIMES for row in _of_runtime(runtime, layout)),
    )


def _of_runtime(runtime: str, layout: Layout) -> tuple[Row, ...]:
    """Return the rows of one runtime: the program, then the limits it was seen to obey."""
    binary = partial(_binary_identity, getattr(layout, runtime), layout.conmon)
    return (
        Row(
            runtime_key(runtime),
            f"{runtime} and its monitor",
            loss=ADMISSION_ONLY,
            probe=partial(_unproved, runtime_key(runtime)),
            identity=binary,
        ),
        Row(
            memory_limit_key(runtime),
            f"a memory limit kills a {runtime} sandbox as a whole",
            loss=ADMISSION_ONLY,
            probe=partial(memory_proof.prove, runtime, layout),
            identity=binary,
            needs=(CGROUP_MEMORY, runtime_key(runtime)),
        ),
        Row(
            storage_limit_key(runtime),
            f"a storage limit stops a {runtime} sandbox",
            loss=ADMISSION_ONLY,
            probe=partial(_unproved, storage_limit_key(runtime)),
            identity=binary,
            needs=(OVERLAY_UPPER, PROJECT_QUOTA, runtime_key(runtime)),
        ),
    )


def _unproved(key: str) -> str:
    raise CapabilityMissing(f"this version can't prove {key}", syscall="probe")


def _mount_identity(path: str) -> str:
    return f"{boot_id()} {path} {os.stat(path).st_dev}"


def _binary_identity(*paths: str) -> str:
    """Name programs by what changes whenever they are replaced."""
    found = (os.stat(path) for path in paths)
    return " ".join(f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}" for s in found)
