"""Find a sandbox that another run of the daemon has made, and tell whether it was started."""

from __future__ import annotations

import json

from axern.errors import CommandFailed
from axern.host.process import identify
from axern.runtime import command
from axern.runtime.launch import runtime_for
from axern.runtime.layout import Layout, SandboxPaths
from ledger.reservation import ProcessIdentity

_STARTED = ("running", "paused", "stopped")
"""States of an OCI container after its start. Source: runtime-spec, runtime.md, "State"."""


def find_monitor(paths: SandboxPaths) -> ProcessIdentity | None:
    """Return the monitor of the sandbox, alone in its cgroup, or None if it has ended."""
    for pid in paths.monitor.pids():
        identity = identify(pid)
        if identity is not None:
            return identity
    return None


def was_started(runtime_name: str, layout: Layout, sandbox_id: str) -> bool:
    """Tell whether the runtime says that the workload was started; False if it knows nothing.

    Raises:
        CommandTimeout: It did not answer.
    """
    runtime = runtime_for(runtime_name, layout)
    try:
        answer = command.run((runtime.binary, *runtime.options(), "state", sandbox_id))
        state = json.loads(answer.stdout)
    except (CommandFailed, ValueError):
        return False
    return isinstance(state, dict) and state.get("status") in _STARTED
