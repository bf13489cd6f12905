"""What a sandbox may write, held by the kernel: one project per lane, limited before it is used.

    lane 7  ->  project 0x70000007  on the sandbox's folder in the filestore, upper and work inside

The limits come before the folder has the project, so that no byte is ever written without them, and
go after the last inode, so that a record with limits that nobody uses is all a crash can leave.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import QuotaError
from axern.host import project_quota
from axern.host.project_quota import NOTHING, Limits, Project
from ledger.reservation import LANES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.runtime.layout import SandboxPaths
    from axern.runtime.oci import SandboxSpec
    from ledger.reservation import Reservation

FIRST_PROJECT = 0x70000000
"""Far above the ids that container engines count up from 1 or a million."""
PROOF_PROJECT = FIRST_PROJECT + LANES
"""One that no lane has: for the proof that the filestore holds a limit."""
SELF_TEST_PROJECT = PROOF_PROJECT + 1
"""The same for the proof by a sandbox, which may be under way meanwhile."""
_PROJECTS = range(FIRST_PROJECT, SELF_TEST_PROJECT + 1)
_FEWEST_INODES = 1024
_BYTES_PER_INODE = 4096
_LEAST_BLOCK_BYTES = 4096
_CLEAR_TIMEOUT_S = 10.0
"""XFS gives inodes back in the background, a moment after the last name is gone."""
_BACK_OFF_START_S = 0.001
_BACK_OFF_LIMIT_S = 0.1
_MOST_SLACK_BYTES = 1024**2
_SLACK_PART = 16


@dataclass(frozen=True, slots=True)
class Quota:
    """The project that holds all that a sandbox writes, and its hard limit as it was asked for."""

    project: int
    limit_bytes: int


def project_id(lane: int) -> int:
    """Return the project id of *lane*, 0 <= lane < 4096.

    Raises:
        ValueError: There is no such lane.
    """
    if not 0 <= lane < LANES:
        raise ValueError(f"lane {lane} is not in 0..{LANES - 1}")
    return FIRST_PROJECT + lane


def limits_of(limit_bytes: int, block_bytes: int) -> Limits:
    """Return the hard limits of *limit_bytes*, rounded down to blocks of *block_bytes*."""
    inodes = max(_FEWEST_INODES, limit_bytes // _BYTES_PER_INODE)
    return Limits(limit_bytes - limit_bytes % block_bytes, inodes)


def block_bytes(folder: str) -> int:
    """Return the unit of limits on the file system of *folder*: its block, 4 KiB at least."""
    return max(_LEAST_BLOCK_BYTES, os.statvfs(folder).f_frsize)


def limit(spec: SandboxSpec, paths: SandboxPaths) -> None:
    """Limit the project of the sandbox's lane, which nobody may use yet; no limit, no project.

    Raises:
        CapabilityMissing: The filestore has no project quotas.
        QuotaError: Something on the filestore has this project already, or the kernel refused.
    """
    if spec.quota is None:
        return
    filestore, project = os.path.dirname(paths.store), spec.quota.project
    project_quota.require_enforced(filestore)
    found = project_quota.read(filestore, project)
    if found is not None and found.is_used:
        raise QuotaError(
            f"project {project}, which is to be this sandbox's, is used by something else on "
            f"{filestore}: {found.used_bytes} bytes, {found.used_inodes} inodes",
            syscall="Q_XGETQUOTA",
            path=filestore,
            hint="the lane is passed over from now on; find what it is: axern reservations doctor",
        )
    limits = limits_of(spec.quota.limit_bytes, block_bytes(filestore))
    project_quota.set_limits(filestore, project, limits)


def enter(spec: SandboxSpec, paths: SandboxPaths) -> None:
    """Give the sandbox's new, empty folder the lane's project.

    Raises:
        QuotaError: The kernel refused.
    """
    if spec.quota is not None:
        project_quota.set_project(paths.store, spec.quota.project)


def verify(spec: SandboxSpec, paths: SandboxPaths) -> None:
    """Prove that every folder that the workload can write below is in the limited project.

    Raises:
        QuotaError: One is not, or the record has other limits.
    """
    if spec.quota is None:
        return
    project = spec.quota.project
    for folder in (paths.store, paths.upper, paths.work, paths.overlay):
        if not os.path.lexists(folder):
            continue
        found_id = project_quota.project_of(folder)
        if found_id != project or not project_quota.inherits(folder):
            raise QuotaError(
                f"{folder} has the project {found_id} and not {project}",
                syscall="FS_IOC_FSGETXATTR",
                path=folder,
            )
    limits = limits_of(spec.quota.limit_bytes, block_bytes(paths.store))
    record = project_quota.read(paths.store, project)
    if record is None or record.limits != limits or not record.is_used:
        raise QuotaError(
            f"project {project} should have {limits} and has {record}",
            syscall="Q_XGETQUOTA",
            path=paths.store,
        )


def quota_of(row: Reservation) -> Quota | None:
    """Return what holds the writes of the sandbox of *row*, or None where nothing is enforced."""
    limit_bytes = row.limits.ephemeral_storage_bytes
    if not row.enforced or row.lane is None or limit_bytes is None:
        return None
    return Quota(project_id(row.lane), limit_bytes)


def project_for(row: Reservation) -> int | None:
    """Return the project that the sandbox of *row* has, or None where nothing is enforced."""
    quota = quota_of(row)
    return quota.project if quota else None


def found_on(store: str) -> int | None:
    """Return the project of a sandbox's folder if it is one of ours, else None."""
    with contextlib.suppress(QuotaError):
        found = project_quota.project_of(store)
        return found if found in _PROJECTS else None
    return None


def clear(filestore: str, project: int, timeout_s: float = _CLEAR_TIMEOUT_S) -> bool:
    """Prove that *project* is used by nothing, and take its limits away; safe to repeat.

    Return False for one that is in use and was never limited, which no sandbox ever had: it is
    left alone.

    Raises:
        CapabilityMissing: The filestore has no project quotas, so that nobody can tell.
        QuotaError: It is still in use after *timeout_s*.
    """
    project_quota.require_enforced(filestore)
    deadline_s = time.monotonic() + timeout_s
    pause_s = _BACK_OFF_START_S
    while (found := project_quota.read(filestore, project)) is not None and found.is_used:
        if found.limits == NOTHING:
            return False
        if time.monotonic() > deadline_s:
            raise QuotaError(
                f"project {project} on {filestore} is still in use: {found.used_bytes} bytes, "
                f"{found.used_inodes} inodes",
                syscall="Q_XGETQUOTA",
                path=filestore,
                hint=f"somebody may hold removed files of it open: lsof +L1 {filestore}",
            )
        os.statvfs(filestore)  # which lets XFS give inodes back at once (xfs_fs_statfs)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, _BACK_OFF_LIMIT_S)
    if found is not None:
        project_quota.set_limits(filestore, project, NOTHING)
    return True


def lanes(filestore: str) -> dict[int, Project]:
    """Return every lane whose project the kernel knows of, used or limited.

    Raises:
        QuotaError: The file system can't tell.
    """
    found = project_quota.projects(filestore, FIRST_PROJECT, LANES)
    return {project.id - FIRST_PROJECT: project for project in found}


def clear_unheld(filestore: str, held: Iterable[int]) -> int:
    """Clear the records that have limits and no use, of lanes that nobody holds; return how many.

    Only while nothing is launched: a launch sets the limits before there is any use.
    """
    holders = {project_id(lane) for lane in held}
    ours = project_quota.projects(filestore, FIRST_PROJECT, len(_PROJECTS))
    idle = [each.id for each in ours if each.id not in holders and not each.is_used]
    for project in idle:
        project_quota.set_limits(filestore, project, NOTHING)
    return len(idle)


def record_of(row: Reservation, paths: SandboxPaths) -> Project | None:
    """Return the quota record of the sandbox of *row*, or None where it has none.

    Raises:
        QuotaError: The filestore can't tell.
    """
    project = project_for(row)
    if project is None:
        return None
    return project_quota.read(os.path.dirname(paths.store), project)


def is_full(found: Project) -> bool:
    """Tell whether a project has hit a limit: so little is left that a usual write fails.

    A write is refused as a whole, so that what is left may be as large as one: up to a sixteenth of
    the limit, at most 1 MiB.
    """
    limits = found.limits
    slack = min(_MOST_SLACK_BYTES, limits.bytes // _SLACK_PART)
    return (limits.bytes > 0 and found.used_bytes >= limits.bytes - slack) or (
        limits.inodes > 0 and found.used_inodes >= limits.inodes
    )
