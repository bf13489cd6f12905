"""The one way out: stops a sandbox, removes all that it ever had, and proves that it is gone.

Everything is derived from the sandbox's id and the configured roots, so that it works after a
crash at any step of a launch or of an earlier burial, and twice.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

from axern.errors import CommandFailed, CommandTimeout, HostError, NotProvedGone
from axern.failpoint import failpoint
from axern.host import cgroup, filestore, mounts
from axern.host.process import boot_id
from axern.runtime import command, monitor
from axern.runtime.launch import runtime_for
from axern.runtime.layout import Layout, SandboxPaths
from axern.runtime.oci import Runtime

EMPTY_TIMEOUT_S = 30.0
"""From `cgroup.kill` to an empty folder; four milliseconds on an idle host."""
EXIT_TIMEOUT_S = 10.0
"""From the death of the workload to the monitor's own end, the exit file written."""
REMOVE_TIMEOUT_S = 10.0
"""For what stays busy a moment after its last process died."""
STOP_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a burial found and removed; its existence proves that nothing is left.

    `exit_code` is None if the workload never ran to an exit that anybody saw. `killed` counts the
    processes that still lived when the burial began, the monitor not among them.
    """

    sandbox_id: str
    boot_id: str
    exit_code: int | None
    killed: int
    unmounted: tuple[str, ...]
    removed: tuple[str, ...]


def stop(
    runtime_name: str, layout: Layout, sandbox_id: str, *, grace_s: float = STOP_GRACE_S
) -> None:
    """Ask the first process to end with SIGTERM; after *grace_s* kill everything.

    Returns when no process of the workload lives. Safe for a sandbox that has ended or never was.

    Raises:
        NotProvedGone: A process survived even that.
    """
    paths = layout.sandbox(sandbox_id)
    if grace_s > 0 and paths.wall.is_populated():
        terminate(runtime_name, layout, sandbox_id)
        if paths.wall.wait_empty(grace_s):
            return
    _kill(paths)


def terminate(runtime_name: str, layout: Layout, sandbox_id: str) -> None:
    """Send SIGTERM to the first process, and don't wait for what it makes of it."""
    _call_runtime(runtime_for(runtime_name, layout), "kill", sandbox_id, signal.SIGTERM.name)


def kill(layout: Layout, sandbox_id: str) -> None:
    """Kill everything in the sandbox, and let its monitor write the exit and end.

    Raises:
        NotProvedGone: A process survived even that.
    """
    paths = layout.sandbox(sandbox_id)
    _kill(paths)
    _end_monitor(paths)


def bury(runtime_name: str, layout: Layout, sandbox_id: str) -> Evidence:
    """Kill what lives, remove what is there, and prove that nothing of the sandbox is left.

    The log and the exit file stay for the run's record; see `monitor.discard_exit`.

    Raises:
        NotProvedGone: Something resists; all other steps were still tried. Call again.
    """
    paths = layout.sandbox(sandbox_id)
    runtime = runtime_for(runtime_name, layout)
    failpoint("bury.begin")
    # The order matters: 1 the dead can't make anything new; 2 their monitor sees them die and
    # writes the exit; 3 the runtime forgets them while its state is whole; 4 mounts go before the
    # folders they cover; 5 control groups go last, since they are what keeps a late process away.
    killed = len(paths.wall.pids())
    _kill(paths)
    failpoint("bury.killed")
    _end_monitor(paths)
    failpoint("bury.exited")
    removed: list[str] = []
    problems: list[str] = []
    unmounted: tuple[str, ...] = ()
    if _state_files(runtime, sandbox_id):
        _call_runtime(runtime, "delete", "--force", sandbox_id)
    failpoint("bury.deleted")
    try:
        unmounted = mounts.unmount_below(paths.folder, REMOVE_TIMEOUT_S)
        failpoint("bury.unmounted")
        removed += _remove_folders(runtime, paths)
        failpoint("bury.folders")
        removed += _remove_cgroups(paths)
        failpoint("bury.cgroups")
    except HostError as err:
        problems.append(err.message)
    problems += _leftovers(runtime, paths)
    if problems:
        raise NotProvedGone(sandbox_id, problems)
    failpoint("bury.proved")
    ended = monitor.read_exit(paths)
    return Evidence(
        sandbox_id=sandbox_id,
        boot_id=boot_id(),
        exit_code=ended.exit_code if ended else None,
        killed=killed,
        unmounted=unmounted,
        removed=tuple(removed),
    )


def _kill(paths: SandboxPaths) -> None:
    paths.wall.kill()
    if not paths.wall.wait_empty(EMPTY_TIMEOUT_S):
        raise NotProvedGone(
            paths.sandbox_id,
            [f"processes {paths.wall.pids()} survive SIGKILL in {paths.wall.folder}"],
        )


def _end_monitor(paths: SandboxPaths) -> None:
    """Wait for the monitor to write the exit and end; kill it if it doesn't."""
    if paths.monitor.wait_empty(EXIT_TIMEOUT_S):
        return
    paths.monitor.kill()
    if not paths.monitor.wait_empty(EMPTY_TIMEOUT_S):
        raise NotProvedGone(
            paths.sandbox_id, [f"the monitor {paths.monitor.pids()} survives SIGKILL"]
        )


def _call_runtime(runtime: Runtime, *arguments: str) -> None:
    """Call the runtime where its answer proves nothing, so that a failure is none either."""
    try:
        command.run((runtime.binary, *runtime.options(), *arguments))
    except (CommandFailed, CommandTimeout):
        return


def _state_files(runtime: Runtime, sandbox_id: str) -> list[str]:
    try:
        entries = os.listdir(runtime.root)
    except FileNotFoundError:
        return []
    return [f"{runtime.root}/{name}" for name in runtime.state_names(entries, sandbox_id)]


def _folders(runtime: Runtime, paths: SandboxPaths) -> tuple[str, ...]:
    return (*_state_files(runtime, paths.sandbox_id), paths.folder, paths.store)


def _remove_folders(runtime: Runtime, paths: SandboxPaths) -> list[str]:
    return [folder for folder in _folders(runtime, paths) if filestore.remove_tree(folder)]


def _cgroup_folders(paths: SandboxPaths) -> tuple[str, ...]:
    ours = (group.folder for group in (paths.wall, paths.monitor) if group.exists())
    return (*paths.wall.legacy_folders(), *ours)


def _remove_cgroups(paths: SandboxPaths) -> tuple[str, ...]:
    present = _cgroup_folders(paths)
    for folder in present:
        cgroup.remove_folder(folder, REMOVE_TIMEOUT_S)
    return present


def _leftovers(runtime: Runtime, paths: SandboxPaths) -> list[str]:
    """Name whatever of the sandbox the kernel still knows."""
    found = [f"process {pid}" for group in (paths.wall, paths.monitor) for pid in group.pids()]
    found += [f"mount {point}" for point in mounts.mounts_below(paths.folder)]
    found += [f"folder {path}" for path in _folders(runtime, paths) if os.path.lexists(path)]
    return found + [f"control group {folder}" for folder in _cgroup_folders(paths)]
