"""Sandboxes that Axern runs for itself, apart from the ledger: small, short, and always buried.

What a crash leaves of them the next daemon buries. Source: docs/decisions/0019-capabilities.md.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from typing import TYPE_CHECKING

from axern.errors import RuntimeFailure
from axern.runtime import launch, monitor, teardown, template
from axern.runtime.oci import SandboxSpec
from ledger.reservation import SANDBOX_LANES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.runtime.layout import Layout, SandboxPaths
    from axern.runtime.monitor import ExitRecord

TIMEOUT_S = 30.0
"""For each call of the runtime."""
_POLL_S = 0.02


def spec_of(runtime: str, layout: Layout, name: str, argv: tuple[str, ...]) -> SandboxSpec:
    """Return a sandbox that runs *argv* in the built-in template; *name* begins with `probe-`."""
    root = template.find(layout.templates, "busybox") or template.make_busybox(layout.templates)
    return SandboxSpec(
        sandbox_id=name,
        runtime=runtime,
        argv=argv,
        env=(),
        cwd="/",
        rootfs=root.rootfs,
        rootfs_readonly=False,
        lane=SANDBOX_LANES,
        hostname="probe",
    )


@contextlib.contextmanager
def running(spec: SandboxSpec, layout: Layout) -> Iterator[SandboxPaths]:
    """Start the sandbox of *spec*; afterwards nothing of it is left.

    Raises:
        AxernError: It was not started, or something of it resists its burial.
    """
    paths = layout.sandbox(spec.sandbox_id)
    try:
        launch.create(spec, layout, timeout_s=TIMEOUT_S)
        launch.start(spec, layout, timeout_s=TIMEOUT_S)
        yield paths
    finally:
        project = spec.quota.project if spec.quota else None
        teardown.bury(spec.runtime, layout, spec.sandbox_id, project)
        monitor.discard_exit(paths)
        shutil.rmtree(paths.run_folder, ignore_errors=True)


def wait_ended(what: str, paths: SandboxPaths, timeout_s: float) -> ExitRecord:
    """Return how the sandbox of *paths* has ended, once it has.

    Raises:
        RuntimeFailure: It has not in *timeout_s*; the message calls it *what*.
    """
    deadline_s = time.monotonic() + timeout_s
    while (ended := monitor.read_exit(paths)) is None:
        if time.monotonic() > deadline_s:
            raise RuntimeFailure(f"{what} did not end in {timeout_s:g} s")
        time.sleep(_POLL_S)
    return ended
