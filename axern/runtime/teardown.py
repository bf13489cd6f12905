"""The one way out: stops a sandbox, removes all that it ever had, and proves that it is gone.

Everything is derived from the sandbox's id and the configured roots, so that it works after a
crash at any step of a launch or of an earlier burial, and twice.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from axern.errors import HostError, NotProvedGone, RuntimeFailure
from axern.failpoint import failpoint
from axern.host import cgroup, filestore, mounts, network, process
from axern.host.cgroup import Cgroup
from axern.host.process import boot_id
from axern.runtime import command, confinement, monitor, storage
from axern.runtime.launch import runtime_for
from axern.runtime.layout import Layout, SandboxPaths
from axern.runtime.oci import Runtime

KILL_TIMEOUT_S = 30.0
"""From `cgroup.kill` to a removed folder; a few milliseconds on an idle host."""
MONITOR_TIMEOUT_S = 10.0
"""From the death of the workload to the monitor's own end, the exit file written."""
REMOVE_TIMEOUT_S = 10.0
"""For what stays busy a moment after its last process died."""
TERM_TIMEOUT_S = 10.0
"""For a runtime to pass a signal on; what follows needs no runtime."""
STOP_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a burial found and removed; its existence proves that nothing is left.

    `exit_code` is None if the workload never ran to an exit that anybody saw. `killed` counts the
    processes that still lived when the burial began, the monitor not among them. `project` is the
    id whose quota record was proved unused and cleared.
    """

    sandbox_id: str
    boot_id: str
    exit_code: int | None
    killed: int
    unmounted: tuple[str, ...]
    removed: tuple[str, ...]
    project: int | None = None

    def text(self) -> str:
        """Return what was proved, as one line for the journal."""
        quota = "" if self.project is None else f"project {self.project} unused and unlimited, "
        return (
            f"boot {self.boot_id}: exit {self.exit_code}, killed {self.killed}, "
            f"unmounted {len(self.unmounted)}, removed {len(self.removed)}, {quota}nothing left"
        )


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
    """Send SIGTERM to the first process, and don't wait for what it makes of it.

    A runtime that can't pass the signal on is no error: what follows is SIGKILL.
    """
    runtime = runtime_for(runtime_name, layout)
    with contextlib.suppress(RuntimeFailure):
        argv = (runtime.binary, *runtime.options(), "kill", sandbox_id, "TERM")
        command.run(argv, timeout_s=TERM_TIMEOUT_S)


def kill(layout: Layout, sandbox_id: str) -> None:
    """Kill everything in the sandbox, and let its monitor write the exit and end.

    Raises:
        NotProvedGone: A process survived even that.
    """
    paths = layout.sandbox(sandbox_id)
    _kill(paths)
    _end_children(paths)
    paths.monitor.wait_empty(MONITOR_TIMEOUT_S)


def _end_children(paths: SandboxPaths) -> None:
    """Kill what the monitor still has: a process of the sandbox that somebody moved out of it.

    All others have died with the wall. Without them it writes down the exit and ends.
    """
    for watcher in paths.monitor.pids():
        for pid in process.children(watcher):
            process.kill_child(pid, watcher)


def _kill(paths: SandboxPaths) -> None:
    confinement.loosen(paths)
    paths.wall.kill()
    if not paths.wall.wait_empty(KILL_TIMEOUT_S):
        raise NotProvedGone(paths.sandbox_id, [f"processes {paths.wall.pids()} survive SIGKILL"])


def bury(
    runtime_name: str, layout: Layout, sandbox_id: str, project: int | None = None
) -> Evidence:
    """Kill what lives, remove what is there, and prove that nothing of the sandbox is left.

    The runtime's own `delete` is not called: it may hang, its success proves nothing, and all that
    it would remove is removed here. The log and the exit file stay for the run's record; see
    `monitor.discard_exit`. Source: docs/decisions/0004-disabled-dev-and-proof-of-death.md.

    Args:
        runtime_name: `runc` or `runsc`.
        layout: Where everything is.
        sandbox_id: Which one.
        project: The project that limits its storage; where nobody knows, its folder tells.
    Raises:
        NotProvedGone: Something resists, and is named. Call again.
    """
    paths = layout.sandbox(sandbox_id)
    runtime = runtime_for(runtime_name, layout)
    failpoint("bury.begin")
    killed = len(paths.wall.pids())
    try:
        if project is None:
            project = storage.found_on(paths.store)
        removed, unmounted = _remove_all(runtime, paths)
        if project is not None and not storage.clear(layout.filestore, project):
            project = None
        failpoint("bury.quota")
        _remove_legacy(paths, removed)
    except HostError as err:
        why = f"{err.message} ({err.hint})" if err.hint else err.message
        raise NotProvedGone(sandbox_id, [why, *_leftovers(runtime, paths)]) from err
    if leftovers := _leftovers(runtime, paths):
        raise NotProvedGone(sandbox_id, leftovers)
    failpoint("bury.proved")
    return Evidence(
        sandbox_id=sandbox_id,
        boot_id=boot_id(),
        exit_code=_exit_code(paths),
        killed=killed,
        unmounted=unmounted,
        removed=tuple(removed),
        project=project,
    )


def _exit_code(paths: SandboxPaths) -> int | None:
    """Return the workload's exit code; a damaged exit file tells none and holds up no burial."""
    with contextlib.suppress(HostError):
        ended = monitor.read_exit(paths)
        return ended.exit_code if ended else None
    return None


def _remove_all(runtime: Runtime, paths: SandboxPaths) -> tuple[list[str], tuple[str, ...]]:
    """Remove everything in the one order that leaves no gap; return what was removed, unmounted.

    1. Without the wall no process lives and none can enter, even one whose launch is under way.
    2. The monitor sees the death, writes the exit and ends.
    3. Its interface goes with both ends, whoever still holds its network namespace.
    4. Mounts go before the folders that hold them.
    """
    confinement.loosen(paths)
    removed = _destroy(paths.wall)
    _end_children(paths)
    failpoint("bury.killed")
    paths.monitor.wait_empty(MONITOR_TIMEOUT_S)
    removed += _destroy(paths.monitor)
    failpoint("bury.monitor")
    if network.disconnect(paths.sandbox_id):
        removed.append(f"interface {network.port_name(paths.sandbox_id)}")
    failpoint("bury.disconnected")
    unmounted = mounts.unmount_below(paths.folder, REMOVE_TIMEOUT_S)
    failpoint("bury.unmounted")
    removed += (folder for folder in _folders(runtime, paths) if filestore.remove_tree(folder))
    failpoint("bury.folders")
    return removed, unmounted


def _remove_legacy(paths: SandboxPaths, removed: list[str]) -> None:
    """Remove what a runtime left in version 1, last of all: its processes were in the wall too."""
    for folder in paths.wall.legacy_folders():
        cgroup.remove_folder(folder, REMOVE_TIMEOUT_S)
        removed.append(folder)
    failpoint("bury.cgroups")


def _destroy(group: Cgroup) -> list[str]:
    return [group.folder] if group.destroy(KILL_TIMEOUT_S) else []


def _folders(runtime: Runtime, paths: SandboxPaths) -> list[str]:
    """Return the folders and files that a sandbox may have; the monitor's are in its folder."""
    try:
        entries = os.listdir(runtime.root)
    except FileNotFoundError:
        entries = []
    states = runtime.state_names(entries, paths.sandbox_id)
    return [*(f"{runtime.root}/{name}" for name in states), paths.folder, paths.store]


def _leftovers(runtime: Runtime, paths: SandboxPaths) -> list[str]:
    """Name whatever of the sandbox the kernel still knows."""
    groups = (paths.wall, paths.monitor)
    found = [f"process {pid}" for group in groups for pid in group.pids()]
    found += [f"mount {point}" for point in mounts.mounts_below(paths.folder)]
    found += [f"folder {path}" for path in _folders(runtime, paths) if os.path.lexists(path)]
    found += [f"control group {group.folder}" for group in groups if group.exists()]
    if network.is_connected(paths.sandbox_id):
        found.append(f"interface {network.port_name(paths.sandbox_id)}")
    return found + [f"control group {folder}" for folder in paths.wall.legacy_folders()]
