"""What the host has of sandboxes right now, by id; only looked at, nothing is changed.

Everything that a sandbox can leave is listed here once: whoever inspects one, and whoever searches
for what belongs to nobody, looks at the same things.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import HostError
from axern.host import filestore, mounts, network
from axern.host.cgroup import Cgroup
from axern.runtime import monitor
from axern.runtime.launch import runtime_for
from axern.runtime.record import exit_path, spec_path
from ledger.reservation import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.runtime.layout import Layout, SandboxPaths
    from axern.runtime.oci import Runtime

_ID = re.compile(r"[0-9a-f]{32}")
"""Ids as the daemon makes them, also inside the names that a runtime gives to its files."""
_MOST_PIDS = 100


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: `inode` is None where it is not there, `processes` counts all in it."""

    path: str
    inode: int | None
    populated: bool
    processes: int
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Traces:
    """What there is of one sandbox.

    `workload` is the group around everything that runs, `strays` the processes in it that are in
    none of its own groups; the process that holds its standard input open counts as neither.
    `folder` and `store` are paths, None where they are not there. `exit_code` is what the monitor
    wrote; a file that holds no number has none.
    `interface` is its end on the host.
    `run_folder_age_s` counts from its last change of names, 0 where it is not there.
    """

    sandbox_id: str
    workload: Group
    monitor: Group
    strays: tuple[int, ...]
    legacy_groups: tuple[str, ...]
    mounts: tuple[str, ...]
    folder: str | None
    store: str | None
    runtime_files: tuple[str, ...]
    exit_file: str | None
    exit_code: int | None
    run_folder: str | None
    run_folder_age_s: float
    has_spec: bool
    has_exit_record: bool
    interface: str | None = None

    @property
    def runs(self) -> bool:
        """Tell whether a process of it lives, its monitor apart."""
        return self.workload.populated

    @property
    def kernel(self) -> tuple[str, ...]:
        """Name what the kernel has of it."""
        groups = (self.workload, self.monitor)
        return (
            *(f"control group {group.path}" for group in groups if group.inode is not None),
            *(f"control group {path}" for path in self.legacy_groups),
            *(f"mount {path}" for path in self.mounts),
            *([f"interface {self.interface}"] if self.interface else []),
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Name the files and folders of it that go with its burial, the exit file too."""
        paths = (self.folder, self.store, *self.runtime_files, self.exit_file)
        return tuple(path for path in paths if path is not None)


class Host:
    """One look at the whole host: what is listed once for all sandboxes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._ports = network.ports()
        self._mounts = mounts.mounts_below(layout.sandboxes)
        self._runtimes: tuple[tuple[Runtime, list[str]], ...] = tuple(
            (runtime, _names(runtime.root))
            for runtime in (runtime_for(name, layout) for name in RUNTIMES)
        )

    def ids(self) -> set[str]:
        """Return the id of everything that there is of any sandbox or run."""
        layout = self._layout
        root = Cgroup(layout.hierarchies, layout.cgroup_root)
        legacy = (f"{mounted}/{layout.cgroup_root}" for mounted in layout.hierarchies.legacy)
        groups = (root.folder, *legacy)
        folders = (
            *(f"{group}/{kind}" for group in groups for kind in ("sandboxes", "monitors")),
            layout.sandboxes,
            layout.filestore,
            layout.exits,
            layout.runs,
        )
        found = {name for folder in folders for name in _names(folder) if _ID.fullmatch(name)}
        found.update(name for name in self._ports if _ID.fullmatch(name))
        for _, names in self._runtimes:
            found.update(hit[0] for name in names for hit in _ID.finditer(name))
        return found

    def traces(self, sandbox_id: str) -> Traces:
        """Return what there is of *sandbox_id*, an id that may be known to nobody."""
        paths = self._layout.sandbox(sandbox_id)
        folder = paths.folder
        helpers = (paths.stdin_holder, paths.exec_groups)
        return Traces(
            sandbox_id=sandbox_id,
            workload=_group(paths.wall, *helpers),
            monitor=_group(paths.monitor),
            strays=paths.wall.pids(paths.birth, paths.workload, *helpers),
            legacy_groups=paths.wall.legacy_folders() + paths.monitor.legacy_folders(),
            mounts=tuple(
                point for point in self._mounts if point == folder or point.startswith(f"{folder}/")
            ),
            folder=_present(folder),
            store=_present(paths.store),
            runtime_files=tuple(
                f"{runtime.root}/{name}"
                for runtime, names in self._runtimes
                for name in runtime.state_names(names, sandbox_id)
            ),
            exit_file=_present(paths.exit_file),
            exit_code=_exit_code(paths),
            run_folder=_present(paths.run_folder),
            run_folder_age_s=_age_s(paths.run_folder),
            has_spec=os.path.lexists(spec_path(paths.run_folder)),
            has_exit_record=os.path.lexists(exit_path(paths.run_folder)),
            interface=self._ports.get(sandbox_id),
        )

    def all_traces(self, more: Iterable[str] = ()) -> dict[str, Traces]:
        """Return the traces of every id there is, and of *more*."""
        return {name: self.traces(name) for name in {*self.ids(), *more}}


def of(layout: Layout, sandbox_id: str) -> Traces:
    """Return what there is of one sandbox."""
    return Host(layout).traces(sandbox_id)


def usage_bytes(traces: Traces) -> int | None:
    """Return the bytes that the sandbox has written, None without a folder or for too many files.

    What is shared with a template is not counted.
    """
    return None if traces.store is None else filestore.usage_bytes(traces.store)


def _group(group: Cgroup, *apart: Cgroup) -> Group:
    """Look at *group*; what is in *apart* does not count."""
    identity = group.identity()
    pids = group.pids(*apart)
    others = any(each.is_populated() for each in apart)
    return Group(
        path=group.folder,
        inode=identity.inode if identity else None,
        populated=group.is_populated() and (bool(pids) or not others),
        processes=len(pids),
        pids=pids[:_MOST_PIDS],
    )


def _exit_code(paths: SandboxPaths) -> int | None:
    with contextlib.suppress(HostError):
        ended = monitor.read_exit(paths)
        return ended.exit_code if ended else None
    return None


def _present(path: str) -> str | None:
    return path if os.path.lexists(path) else None


def _age_s(path: str) -> float:
    try:
        return time.time() - os.stat(path, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
