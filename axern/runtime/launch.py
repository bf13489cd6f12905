"""Makes and starts one sandbox, step by step; whoever calls has charged it before."""

from __future__ import annotations

import os
from contextlib import nullcontext

from axern.errors import CommandFailed, MonitorFailed
from axern.failpoint import failpoint
from axern.host import gpu, idmap
from axern.runtime import (
    bundle,
    command,
    confinement,
    connection,
    monitor,
    rootfs,
    segments,
    standard_input,
    storage,
    user,
)
from axern.runtime.layout import Layout, SandboxPaths
from axern.runtime.monitor import Created
from axern.runtime.oci import Runtime, SandboxSpec
from axern.runtime.runc import Runc
from axern.runtime.runsc import Runsc
from axern.runtime.user import Identity


def runtime_for(name: str, layout: Layout) -> Runtime:
    """Return the runtime called `runc` or `runsc`.

    Raises:
        ValueError: There is no runtime of this name.
    """
    match name:
        case "runc":
            return Runc(layout.runc, layout.runtime_root("runc"))
        case "runsc":
            return Runsc(layout.runsc, layout.runtime_root("runsc"))
        case _:
            raise ValueError(f"unknown runtime {name!r}")


def create(
    spec: SandboxSpec,
    layout: Layout,
    *,
    timeout_s: float = command.TIMEOUT_S,
    log_max_bytes: int = segments.DEFAULT_MAX_BYTES,
) -> Created:
    """Make everything of a sandbox up to its first process, which waits for `start`.

    After any error the sandbox must be buried; nothing is undone here, since a crash could not
    undo it either.

    Raises:
        ProgramNotFound: The root file system has no such program.
        ProgramNotExecutable: It has, but it can't be executed.
        RootfsRefused: The root file system can't be used with this runtime.
        RuntimeFailure: The runtime or its monitor failed.
        HostError: The kernel refused a step.
    """
    runtime = runtime_for(spec.runtime, layout)
    paths = layout.sandbox(spec.sandbox_id)
    os.makedirs(paths.run_folder, mode=0o700, exist_ok=True)
    storage.limit(spec, paths)
    failpoint("launch.quota")
    rootfs.create_folders(spec, paths, maps_ids=runtime.maps_ids)
    failpoint("launch.folders")
    confinement.erect(spec, paths)
    paths.birth.create()
    paths.monitor.create()
    failpoint("launch.cgroup")
    rootfs.mount(spec, paths, maps_ids=runtime.maps_ids)
    rootfs.check_program(spec, paths)
    failpoint("launch.rootfs")
    identity = user.resolve(spec.user, paths.rootfs) if spec.user is not None else None
    _write_bundle(spec, paths, identity, maps_ids=runtime.maps_ids)
    connection.prepare(spec, paths, runtime)
    segments.begin(paths.log)
    host_ids = _host_ids(spec, identity, maps_ids=runtime.maps_ids)
    try:
        with standard_input.prepared(paths, *host_ids) if spec.stdin else nullcontext() as stdin:
            created = monitor.create(
                layout.conmon,
                runtime,
                paths,
                overlay=None if spec.rootfs_readonly else paths.overlay,
                timeout_s=timeout_s,
                log_segment_bytes=segments.segment_bytes(log_max_bytes),
                enforced=spec.limits is not None,
                stdin=stdin,
                network=connection.mode_of(spec),
            )
    except MonitorFailed as err:
        raise runtime.program_error(spec.argv[0], err.message) or err from err
    confinement.close(spec, paths, created.init)
    if runtime.maps_ids:
        monitor.hand_over_outputs(created, *host_ids)
    failpoint("launch.created")
    connection.complete(spec, runtime, created.init)
    return created


def _host_ids(spec: SandboxSpec, identity: Identity | None, *, maps_ids: bool) -> tuple[int, int]:
    first_id = idmap.first_id(spec.lane) if maps_ids else 0
    uid, gid = (identity.uid, identity.gid) if identity else (0, 0)
    return first_id + uid, first_id + gid


def _write_bundle(
    spec: SandboxSpec, paths: SandboxPaths, identity: Identity | None, *, maps_ids: bool
) -> None:
    devices = gpu.nodes_of(spec.gpu_device) if spec.gpu_device is not None else ()
    config = bundle.build(spec, paths, maps_ids=maps_ids, identity=identity, devices=devices)
    bundle.write(config, paths.config)
    failpoint("launch.bundle")


def start(spec: SandboxSpec, layout: Layout, *, timeout_s: float = command.TIMEOUT_S) -> None:
    """Let the created sandbox's workload run.

    Raises:
        ProgramNotFound: The program is gone, or the runtime only looks for it now.
        ProgramNotExecutable: The kernel could not execute it.
        RuntimeFailure: The runtime failed.
    """
    runtime = runtime_for(spec.runtime, layout)
    network = connection.mode_of(spec)
    call = (runtime.binary, *runtime.options(network), "start", spec.sandbox_id)
    argv = (*runtime.start_through(network), *call)
    try:
        command.run(argv, timeout_s=timeout_s)
    except CommandFailed as err:
        raise runtime.program_error(spec.argv[0], err.stderr) or err from err
    failpoint("launch.start")
