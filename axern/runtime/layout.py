"""Where everything of a sandbox is: derived from its id and the configured roots, nothing else."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from axern.errors import HostError
from axern.host import loop_file
from axern.host.cgroup import Cgroup, Hierarchies, remove_folder
from axern.host.filestore import secure_folder
from axern.host.mounts import make_private, unmount_below

SANDBOX_ID = re.compile(r"[a-z0-9][a-z0-9-]{7,63}")
"""Safe as a file name, a cgroup name, and an id for runc, runsc and conmon."""
_OVERLAY_UNSAFE = re.compile(r"[,:\\\s]")
"""Characters that would end a value in overlay's mount options."""
_DISMANTLE_TIMEOUT_S = 10
_MODE_ROOT = 0o755
_MODE_PRIVATE = 0o700
_MODE_TRAVERSE = 0o711
"""A sandbox's root is another user on the host and must reach its own folder below this one."""


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """Every path of one sandbox; all may be absent. Holds no state of its own.

    `folder` has what a run needs and goes with it; `store` has what the workload writes; `log`
    and the exit file stay after the burial until the run's record is durable. `wall` is the control
    group around everything: the runtime is born in `birth` and may move its processes to
    `workload`; only the monitor lives elsewhere, in `monitor`. `network` is a mount of the network
    namespace that a runtime is given. `stdin_taken` says how much of a
    run's standard input was taken, and `stdin_holder` has the process that keeps its pipe open.
    `execs` has a folder for each process that was added later, `exec_groups` its helpers.
    """

    sandbox_id: str
    folder: str
    bundle: str
    config: str
    skeleton: str
    lower: str
    rootfs: str
    pid_file: str
    exit_file: str
    run_folder: str
    log: str
    store: str
    upper: str
    work: str
    overlay: str
    wall: Cgroup
    birth: Cgroup
    workload: Cgroup
    monitor: Cgroup
    network: str
    stdin_taken: str
    stdin_holder: Cgroup
    execs: str
    exec_groups: Cgroup


@dataclass(frozen=True, slots=True)
class Layout:
    """The configured roots; absolute paths, and `cgroup_root` relative to the cgroup2 mount.

    `run_dir` must survive a restart of the daemon but not a reboot; `state_dir` and `filestore`
    survive both.
    """

    state_dir: str
    run_dir: str
    filestore: str
    templates: str
    cgroup_root: str
    hierarchies: Hierarchies
    runc: str = "/usr/bin/runc"
    runsc: str = "/usr/bin/runsc"
    conmon: str = "/usr/bin/conmon"
    bridge: str = "axern0"

    def __post_init__(self) -> None:
        for path in (self.state_dir, self.run_dir, self.filestore, self.templates):
            if not os.path.isabs(path) or _OVERLAY_UNSAFE.search(path):
                raise ValueError(
                    f"{path!r} must be absolute, without commas, colons, backslashes or spaces"
                )

    @property
    def filestore_image(self) -> str:
        """The file that holds the filestore's file system, where `node setup` made one."""
        return f"{self.filestore}.img"

    @property
    def root(self) -> Cgroup:
        """The control group below which all of Axern is."""
        return Cgroup(self.hierarchies, self.cgroup_root)

    @property
    def exits(self) -> str:
        """The folder of exit files, one a sandbox, named by its id."""
        return f"{self.run_dir}/exits"

    @property
    def sandboxes(self) -> str:
        """The folder of sandbox folders, a private mount of its own."""
        return f"{self.run_dir}/sandboxes"

    @property
    def runs(self) -> str:
        """The folder of run folders: spec, log and exit record of each run."""
        return f"{self.state_dir}/runs"

    @property
    def names(self) -> str:
        """The folder of hosts files, one a namespace."""
        return f"{self.run_dir}/names"

    def names_of(self, namespace: str) -> str:
        """Return the hosts file that the sandboxes of *namespace* share."""
        return f"{self.names}/{namespace}"

    def runtime_root(self, runtime: str) -> str:
        """Return where *runtime* keeps its state of all sandboxes."""
        return f"{self.run_dir}/{runtime}"

    def sandbox(self, sandbox_id: str) -> SandboxPaths:
        """Derive the paths of one sandbox.

        Raises:
            ValueError: The id could not be a plain name everywhere.
        """
        if SANDBOX_ID.fullmatch(sandbox_id) is None:
            raise ValueError(f"sandbox id {sandbox_id!r} does not match {SANDBOX_ID.pattern}")
        folder = f"{self.sandboxes}/{sandbox_id}"
        store = f"{self.filestore}/{sandbox_id}"
        run_folder = f"{self.runs}/{sandbox_id}"
        root = self.root
        wall = root.child("sandboxes").child(sandbox_id)
        return SandboxPaths(
            sandbox_id=sandbox_id,
            folder=folder,
            bundle=f"{folder}/bundle",
            config=f"{folder}/bundle/config.json",
            skeleton=f"{folder}/skeleton",
            lower=f"{folder}/lower",
            rootfs=f"{folder}/rootfs",
            pid_file=f"{folder}/pid",
            exit_file=f"{self.exits}/{sandbox_id}",
            run_folder=run_folder,
            log=f"{run_folder}/output.log",
            store=store,
            upper=f"{store}/upper",
            work=f"{store}/work",
            overlay=f"{store}/overlay",
            wall=wall,
            birth=wall.child("birth"),
            workload=wall.child("workload"),
            monitor=root.child("monitors").child(sandbox_id),
            network=f"{folder}/network",
            stdin_taken=f"{folder}/stdin.taken",
            stdin_holder=wall.child("stdin"),
            execs=f"{folder}/execs",
            exec_groups=wall.child("execs"),
        )

    def prepare(self) -> None:
        """Make the roots where missing, and `sandboxes` a private mount; safe to repeat.

        Private, so that no mount of a sandbox spreads into the mount namespaces of other services
        and outlives it there. The caller holds the daemon's single-instance lock.

        Raises:
            HostError: A root leads through a link or is not our own, or the mount can't be made.
        """
        for path in (self.state_dir, self.run_dir, self.filestore, self.templates):
            if os.path.realpath(path) != path:
                raise HostError(
                    f"{path} leads through a link, so that its mounts could not be found again",
                    syscall="realpath",
                    path=path,
                    hint=f"configure {os.path.realpath(path)}",
                )
            secure_folder(path, _MODE_ROOT)
        if self.mount_filestore():
            secure_folder(self.filestore, _MODE_ROOT)
        for path in (self.runs, self.exits, self.runtime_root("runc"), self.runtime_root("runsc")):
            secure_folder(path, _MODE_PRIVATE)
        os.makedirs(self.sandboxes, exist_ok=True)
        os.chmod(self.sandboxes, _MODE_TRAVERSE)
        make_private(self.sandboxes)

    def mount_filestore(self) -> bool:
        """Mount the filestore where it has a file of its own and is not mounted; say if it was.

        Without it nobody could tell what of a sandbox is left. Mounts outlive the daemon.

        Raises:
            HostError: The kernel refused.
        """
        if not os.path.lexists(self.filestore_image):
            return False
        return loop_file.mount(self.filestore_image, self.filestore)

    def dismantle(self) -> None:
        """Undo what `prepare` and the sandboxes left in the kernel; all must be buried. Files stay.

        Raises:
            HostError: A sandbox is still there.
        """
        unmount_below(self.sandboxes, _DISMANTLE_TIMEOUT_S)
        if os.path.lexists(self.filestore_image):
            unmount_below(self.filestore, _DISMANTLE_TIMEOUT_S)
        for mounted in (self.hierarchies.unified, *self.hierarchies.legacy):
            remove_folder(f"{mounted}/{self.cgroup_root}", _DISMANTLE_TIMEOUT_S)
