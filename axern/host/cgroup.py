"""Control groups: makes, identifies, empties and removes them, and proves that nothing is left.

Ours are in version 2; runtimes may leave folders of their own in version 1, which are removed too.
A path here is relative to the root of a hierarchy, without a leading slash. The kernel's
`cgroup.kill` and `cgroup.events` prove that nothing lives in a folder; a folder is never used for
a second workload.
"""

from __future__ import annotations

import errno
import os
import select
import time
from dataclasses import dataclass

from axern.errors import CapabilityMissing, CgroupError, HostError
from axern.host.control_files import open_folder, read_at, write_at
from axern.host.process import boot_id
from ledger.reservation import CgroupIdentity

# Documentation/admin-guide/cgroup-v2.rst, "Core Interface Files"
PROCS = "cgroup.procs"
EVENTS = "cgroup.events"
KILL = "cgroup.kill"

_RECHECK_S = 0.1
"""A lost notification of `cgroup.events` costs at most this long."""
_BACK_OFF_START_S = 0.001
_BACK_OFF_LIMIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where control groups are mounted: version 2 for proof, version 1 for leftovers."""

    unified: str
    legacy: tuple[str, ...]


def hierarchies_from_text(mountinfo: str) -> Hierarchies:
    """Find the mounts of both versions in the text of /proc/self/mountinfo.

    Raises:
        CapabilityMissing: No cgroup version 2 is mounted.
    """
    unified: str | None = None
    legacy: list[str] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        mounted_root, target = fields[3], fields[4]
        match after.split()[0]:
            case "cgroup2" if mounted_root == "/" and unified is None:
                unified = target
            case "cgroup" if mounted_root == "/":
                legacy.append(target)
    if unified is None:
        raise CapabilityMissing(
            "no cgroup version 2 hierarchy is mounted",
            syscall="mountinfo",
            path="/proc/self/mountinfo",
            hint="mount -t cgroup2 none /sys/fs/cgroup/unified",
        )
    return Hierarchies(unified, tuple(legacy))


def find_hierarchies() -> Hierarchies:
    """Return this host's control group mounts; raise CapabilityMissing without version 2."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        return hierarchies_from_text(file.read())


def populated_from_text(events: str) -> bool:
    """Say from the text of `cgroup.events` whether a process lives in or below the folder."""
    return "populated 1" in events.splitlines()


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One folder in the version 2 hierarchy, present or not."""

    hierarchies: Hierarchies
    path: str

    @property
    def folder(self) -> str:
        """The absolute path of the folder."""
        return os.path.join(self.hierarchies.unified, self.path)

    def child(self, name: str) -> Cgroup:
        """Return the folder *name* below this one."""
        return Cgroup(self.hierarchies, f"{self.path}/{name}")

    def legacy_folders(self) -> tuple[str, ...]:
        """Return the version 1 folders of the same path that a runtime has left."""
        folders = (f"{mounted}/{self.path}" for mounted in self.hierarchies.legacy)
        return tuple(folder for folder in folders if os.path.isdir(folder))

    def exists(self) -> bool:
        """Say whether the folder is there."""
        return os.path.isdir(self.folder)

    def create(self) -> CgroupIdentity:
        """Make the folder and its parents where missing, and return its identity.

        Raises:
            CgroupError: The kernel refused.
        """
        try:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
        except OSError as err:
            raise self._error("cannot make", "mkdir", err) from err
        identity = self.identity()
        if identity is None:
            raise CgroupError(f"{self.folder} vanished", syscall="stat", path=self.folder)
        return identity

    def identity(self) -> CgroupIdentity | None:
        """Return what tells this folder from a later one of the same name; None without one."""
        try:
            return CgroupIdentity(boot_id(), self.path, os.stat(self.folder).st_ino)
        except FileNotFoundError:
            return None

    def pids(self, *without: Cgroup) -> tuple[int, ...]:
        """Return the processes in and below the folder, but none that is in or below *without*.

        Zombies and a missing folder have none.
        """
        found: list[int] = []
        left_out = {group.folder for group in without}
        for folder, below, _ in os.walk(self.folder):
            below[:] = [name for name in below if f"{folder}/{name}" not in left_out]
            try:
                with open_folder(folder) as folder_fd:
                    found.extend(int(pid) for pid in read_at(folder_fd, PROCS).split())
            except HostError as err:
                if err.errno not in (errno.ENOENT, errno.ENODEV):
                    raise
        return tuple(found)

    def add(self, pid: int) -> None:
        """Move a process, with all its threads, into the folder; raise HostError if it can't be."""
        with open_folder(self.folder) as folder_fd:
            write_at(folder_fd, PROCS, str(pid))

    def is_populated(self) -> bool:
        """Say whether a live process is in or below the folder; a missing one has none."""
        try:
            with open_folder(self.folder) as folder_fd:
                return populated_from_text(read_at(folder_fd, EVENTS))
        except HostError as err:
            if err.errno in (errno.ENOENT, errno.ENODEV):
                return False
            raise

    def kill(self) -> None:
        """Kill every process in and below the folder at once; a fork in flight dies with them.

        Source: Documentation/admin-guide/cgroup-v2.rst, "cgroup.kill"; Linux 5.14.
        """
        try:
            with open_folder(self.folder) as folder_fd:
                write_at(folder_fd, KILL, "1")
        except HostError as err:
            if err.errno not in (errno.ENOENT, errno.ENODEV):
                raise

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no live process is in or below the folder; return False after *timeout_s*."""
        deadline_s = time.monotonic() + timeout_s
        try:
            events_fd = os.open(os.path.join(self.folder, EVENTS), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            poller = select.poll()
            poller.register(events_fd, select.POLLPRI)
            while self.is_populated():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                poller.poll(min(left_s, _RECHECK_S) * 1000)
                os.pread(events_fd, 256, 0)
        finally:
            os.close(events_fd)
        return True

    def destroy(self, timeout_s: float) -> bool:
        """Kill all that lives in and below the folder, remove it, and return whether it was there.

        Afterwards nothing lives in it and nothing can enter: a process that was on its way in finds
        no folder, and one that slipped in between is killed in the next round.

        Raises:
            CgroupError: Something survives SIGKILL for *timeout_s*.
        """
        if not self.exists():
            return False
        deadline_s = time.monotonic() + timeout_s
        while True:
            self.kill()
            self.wait_empty(max(deadline_s - time.monotonic(), 0))
            try:
                remove_folder(self.folder, _RECHECK_S)
            except CgroupError:
                if time.monotonic() > deadline_s:
                    raise
            else:
                return True

    def _error(self, what: str, syscall: str, err: OSError) -> CgroupError:
        return CgroupError(
            f"{what} {self.folder}", syscall=syscall, path=self.folder, errno=err.errno
        )


def remove_folder(folder: str, timeout_s: float) -> None:
    """Remove a control group of either version and all below it, bottom up; a missing one is fine.

    A process that has just died can keep its folder busy for a moment, so EBUSY is tried again
    with growing pauses.

    Raises:
        CgroupError: It is still busy after *timeout_s*.
    """
    deadline_s = time.monotonic() + timeout_s
    pause_s = _BACK_OFF_START_S
    while True:
        try:
            for below, _, _ in os.walk(folder, topdown=False):
                os.rmdir(below)
        except FileNotFoundError:
            continue
        except OSError as err:
            if err.errno != errno.EBUSY or time.monotonic() > deadline_s:
                raise CgroupError(
                    f"cannot remove {folder}", syscall="rmdir", path=folder, errno=err.errno
                ) from err
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACK_OFF_LIMIT_S)
        else:
            return
