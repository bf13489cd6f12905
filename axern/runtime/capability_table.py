"""The one table of capabilities: daemon, admission and doctor read it, and nothing else decides.

Keys are `<what>/<name>`. A limit's key ends with the runtime that must be shown to obey it. To add
a row, write its probe and its identity where its facility is known, and name both here; needs come
before what needs them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from axern.host import (
    cgroup_probe,
    cgroup_tree,
    gpu,
    idmap,
    locks,
    mounts,
    overlay_probe,
    programs,
    project_quota,
)
from axern.host.capabilities import ADMISSION_ONLY, DEGRADE, FAIL_STOP, Row
from axern.host.process import boot_id
from axern.runtime import memory_proof, network_proof, storage_proof
from ledger.reservation import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from axern.runtime.layout import Layout
    from ledger.resources import OptionalResources

CGROUP_MEMORY = "cgroup/memory"
CGROUP_PIDS = "cgroup/pids"
CGROUP_CPU = "cgroup/cpu"
LIMIT_PIDS = "limit/pids"
LIMIT_CPU = "limit/cpu"
OVERLAY_UPPER = "filestore/overlay-upper"
PROJECT_QUOTA = "filestore/project-quota"
USER_NAMESPACES = "user-namespaces"
NETWORK = "network"
GPU = "gpu"
_PROBE_TURN_S = 2.0
_SELF_TEST_TURN_S = 60.0
"""How long a probe waits for another process that tries the same; it is tried again later."""
NOT_ENFORCED = "cgroup_enforcement is disabled_dev, which enforces nothing"


def runtime_key(runtime: str) -> str:
    """Return the key of *runtime* being there and working."""
    return f"runtime/{runtime}"


def memory_limit_key(runtime: str) -> str:
    """Return the key of a memory limit that holds for *runtime*."""
    return f"limit/memory/{runtime}"


def storage_limit_key(runtime: str) -> str:
    """Return the key of a storage limit that holds for *runtime*."""
    return f"limit/ephemeral-storage/{runtime}"


def gpu_key(runtime: str) -> str:
    """Return the key of a GPU that can be handed to a sandbox of *runtime*."""
    return f"gpu/{runtime}"


def required_by(runtime: str, limits: OptionalResources, *, enforced: bool) -> tuple[str, ...]:
    """Return what the host must be able to do for a sandbox of *runtime* with these *limits*.

    Where limits are enforced, there is always one on processes.
    """
    keys = [runtime_key(runtime)]
    for amount, key in (
        (limits.cpu_milli, LIMIT_CPU),
        (limits.memory_bytes, memory_limit_key(runtime)),
        (limits.ephemeral_storage_bytes, storage_limit_key(runtime)),
    ):
        if amount is not None:
            keys.append(key)
    return (*keys, LIMIT_PIDS) if enforced else tuple(keys)


def table(layout: Layout, *, enforced: bool, extensions: tuple[str, ...] = ()) -> tuple[Row, ...]:
    """Return every row for the host as *layout* uses it; limits only where they are *enforced*.

    *extensions* are what the configuration says of the node, `DOMAIN/NAME` with or without
    `=VALUE`.
    """
    return (
        *_of_cgroups(layout, enforced=enforced),
        Row(
            USER_NAMESPACES,
            "user namespaces with mapped ids",
            loss=ADMISSION_ONLY,
            probe=idmap.prove,
            identity=boot_id,
        ),
        Row(
            OVERLAY_UPPER,
            "the filestore can hold what is written through an overlay",
            loss=ADMISSION_ONLY,
            probe=_alone(layout, partial(overlay_probe.prove, layout.filestore)),
            identity=partial(_filestore_identity, layout.filestore),
        ),
        Row(
            PROJECT_QUOTA,
            "the filestore enforces XFS project quotas",
            loss=FAIL_STOP,
            probe=_alone(layout, partial(storage_proof.prove_quota, layout)),
            identity=partial(_quota_identity, layout.filestore),
        ),
        *(row for name in RUNTIMES for row in _of_runtime(name, layout, enforced=enforced)),
        Row(
            NETWORK,
            "sandboxes can have a network",
            loss=DEGRADE,
            probe=network_proof.prove,
            identity=network_proof.identity,
        ),
        *_of_gpu(),
        *(_of_extension(word) for word in extensions),
    )


def _of_gpu() -> Iterator[Row]:
    """Yield the devices, and to which runtime's sandboxes they can be handed."""
    yield Row(GPU, "a GPU to reserve", loss=DEGRADE, probe=gpu.prove, identity=gpu.identity)
    for runtime in RUNTIMES:
        yield Row(
            gpu_key(runtime),
            f"a GPU inside a {runtime} sandbox",
            loss=ADMISSION_ONLY,
            probe=partial(_hand_over_gpu, runtime),
            identity=boot_id,
            needs=(GPU, runtime_key(runtime)),
        )


def _of_extension(word: str) -> Row:
    key, _, value = word.partition("=")
    message = f"the configuration says {value or 'that it is there'}"
    return Row(
        key,
        "named by the configuration",
        loss=ADMISSION_ONLY,
        probe=partial(str, message),
        identity=partial(str, word),
        valid_ms=None,
    )


def _of_cgroups(layout: Layout, *, enforced: bool) -> Iterator[Row]:
    """Yield the controllers, and the limits that the kernel holds alike for every runtime."""
    for key, controller, probe, limit, loss in (
        (CGROUP_MEMORY, "memory", cgroup_probe.memory, None, FAIL_STOP),
        (CGROUP_PIDS, "pids", cgroup_probe.pids, LIMIT_PIDS, FAIL_STOP),
        (CGROUP_CPU, "cpu", cgroup_probe.cpu, LIMIT_CPU, DEGRADE),
    ):
        yield Row(
            key,
            f"the {controller} controller of cgroup version 2",
            loss=loss,
            probe=_alone(layout, partial(probe, layout.root)),
            identity=partial(cgroup_tree.identity, layout.root),
        )
        if limit is not None:
            yield Row(
                limit,
                f"a limit on {'processes' if controller == 'pids' else 'CPU'}",
                loss=ADMISSION_ONLY,
                probe=partial(str, "held by the kernel, whatever the runtime"),
                identity=boot_id,
                needs=(key,),
                disabled=None if enforced else NOT_ENFORCED,
            )


def _of_runtime(runtime: str, layout: Layout, *, enforced: bool) -> tuple[Row, ...]:
    """Return the rows of one runtime: the program, then the limits it was seen to obey."""
    paths = (getattr(layout, runtime), layout.conmon)
    identity = partial(_programs_identity, *paths)
    disabled = None if enforced else NOT_ENFORCED
    return (
        Row(
            runtime_key(runtime),
            f"{runtime} and its monitor",
            loss=ADMISSION_ONLY,
            probe=partial(_describe_programs, *paths),
            identity=identity,
            # Root in a runc sandbox without one could clear the project that its limit is on.
            needs=(USER_NAMESPACES,) if runtime == "runc" else (),
        ),
        Row(
            memory_limit_key(runtime),
            f"a memory limit kills a {runtime} sandbox as a whole",
            loss=ADMISSION_ONLY,
            probe=_alone_with_sandbox(layout, partial(memory_proof.prove, runtime, layout)),
            identity=identity,
            needs=(CGROUP_MEMORY, runtime_key(runtime)),
            is_self_test=True,
            disabled=disabled,
        ),
        Row(
            storage_limit_key(runtime),
            f"a storage limit stops a {runtime} sandbox",
            loss=ADMISSION_ONLY,
            probe=_alone_with_sandbox(layout, partial(storage_proof.prove, runtime, layout)),
            identity=identity,
            needs=(OVERLAY_UPPER, PROJECT_QUOTA, runtime_key(runtime)),
            is_self_test=True,
            disabled=disabled,
        ),
    )


def _alone(layout: Layout, probe: Callable[[], str]) -> Callable[[], str]:
    """Return *probe* for one process at a time: the doctor's leaves the same traces as a daemon's.

    What one cleans up under the other would look like a limit that does not hold.
    """
    return partial(_without_others, layout.run_dir, _PROBE_TURN_S, probe)


def _alone_with_sandbox(layout: Layout, probe: Callable[[], str]) -> Callable[[], str]:
    """Return the self-test *probe* for one process at a time; other probes go on meanwhile."""
    return partial(_without_others, layout.exits, _SELF_TEST_TURN_S, probe)


def _without_others(folder: str, timeout_s: float, probe: Callable[[], str]) -> str:
    with locks.alone_in(folder, timeout_s):
        return probe()


def _filestore_identity(filestore: str) -> str:
    """Name the mount; raise CapabilityMissing where there is no filestore yet, or no more."""
    try:
        return mounts.identity(filestore)
    except FileNotFoundError as err:
        raise CapabilityMissing(
            f"there is no filestore at {filestore}",
            syscall="open",
            path=filestore,
            hint="start axernd, which makes it, or axern node setup --filestore-size SIZE",
        ) from err


def _quota_identity(filestore: str) -> str:
    """Name the mount; raise CapabilityMissing as soon as its quotas are off, which is cheap."""
    project_quota.require_enforced(filestore)
    return mounts.identity(filestore)


def _programs_identity(*paths: str) -> str:
    return " ".join(map(programs.identity, paths))


def _describe_programs(*paths: str) -> str:
    return ", ".join(map(programs.described, paths))


def _hand_over_gpu(runtime: str) -> str:
    if runtime != "runc":
        raise CapabilityMissing(
            f"this version hands no devices to {runtime}",
            syscall="probe",
            hint="axern run --runtime-class runc",
        )
    return "its nodes are handed in, and no other device's"
