"""Runs a real sandbox of a runtime from its birth to its burial, apart from the ledger.

It is bounded in size and time and always buried. Source: docs/decisions/0019-capabilities.md.
"""

from __future__ import annotations

import secrets
import shutil
import time
from typing import TYPE_CHECKING

from axern.errors import RuntimeFailure
from axern.runtime import launch, monitor, teardown, template
from axern.runtime.oci import SandboxSpec
from ledger.reservation import SANDBOX_LANES

if TYPE_CHECKING:
    from axern.runtime.layout import Layout

TIMEOUT_S = 30.0
_EXIT_CODE = 7
_POLL_S = 0.01


def prove(runtime: str, layout: Layout) -> str:
    """Let a sandbox of *runtime* end with a code, and return how long that took.

    Raises:
        AxernError: It was not started, did not end, or the code did not come through.
    """
    root = template.find(layout.templates, "busybox") or template.make_busybox(layout.templates)
    spec = SandboxSpec(
        sandbox_id=f"probe-sandbox-{runtime}-{secrets.token_hex(4)}",
        runtime=runtime,
        argv=("sh", "-c", f"exit {_EXIT_CODE}"),
        env=(),
        cwd="/",
        rootfs=root.rootfs,
        rootfs_readonly=False,
        lane=SANDBOX_LANES,
        hostname="probe",
    )
    paths = layout.sandbox(spec.sandbox_id)
    begun_s = time.monotonic()
    try:
        launch.create(spec, layout, timeout_s=TIMEOUT_S)
        launch.start(spec, layout, timeout_s=TIMEOUT_S)
        while (ended := monitor.read_exit(paths)) is None:
            if time.monotonic() - begun_s > TIMEOUT_S:
                raise RuntimeFailure(f"a {runtime} sandbox did not end in {TIMEOUT_S:g} s")
            time.sleep(_POLL_S)
        took_ms = (time.monotonic() - begun_s) * 1000
    finally:
        teardown.bury(runtime, layout, spec.sandbox_id)
        monitor.discard_exit(paths)
        shutil.rmtree(paths.run_folder, ignore_errors=True)
    if ended.exit_code != _EXIT_CODE:
        raise RuntimeFailure(f"a {runtime} sandbox ended with {ended.exit_code}, not {_EXIT_CODE}")
    return f"a {runtime} sandbox was started, ended and buried; {took_ms:.0f} ms to its end"
