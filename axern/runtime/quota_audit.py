"""Compares quota records with entries, both ways: limits that drifted, projects that leaked.

Pure but for `look`; a part of what `runtime.doctor` tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from axern.host import project_quota
from axern.host.project_quota import NOTHING, Limits
from axern.runtime import storage
from ledger.findings import PROBLEM, WARNING, Finding
from ledger.reservation import RUNNING, STOPPING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from axern.host.project_quota import Project
    from ledger.reservation import Reservation

DRIFTING_QUOTA = "drifting-quota"
LEAKED_QUOTA = "leaked-quota"
LEAKED_PROJECT = "leaked-project"
FOREIGN_PROJECT = "foreign-project"

CODES = {
    DRIFTING_QUOTA: PROBLEM,
    LEAKED_QUOTA: WARNING,
    LEAKED_PROJECT: PROBLEM,
    FOREIGN_PROJECT: PROBLEM,
}
"""Each kind of finding with its severity."""


@dataclass(frozen=True, slots=True)
class Records:
    """The quota records of all lanes; `lanes` is None where the filestore has no project quotas."""

    filestore: str
    block_bytes: int
    lanes: Mapping[int, Project] | None


def look(filestore: str) -> Records:
    """Read every record.

    Raises:
        HostError: The file system can't tell.
    """
    try:
        project_quota.require_enforced(filestore)
        lanes = storage.lanes(filestore)
    except CapabilityMissing:
        return Records(filestore, 0, None)
    return Records(filestore, storage.block_bytes(filestore), lanes)


def examine(
    rows: Iterable[Reservation], held: Iterable[int], records: Records
) -> tuple[Finding, ...]:
    """Return every finding.

    Args:
        rows: The entries to judge.
        held: The lanes of all entries, also of those that move and are not judged.
        records: What `look` saw.
    """
    found = [finding for row in rows for finding in _of_entry(row, records)]
    holders = set(held)
    for lane, project in sorted((records.lanes or {}).items()):
        if lane not in holders:
            found.append(_without_entry(lane, project, records.filestore))
    return tuple(found)


def _of_entry(row: Reservation, records: Records) -> Iterator[Finding]:
    quota = storage.quota_of(row)
    if quota is None or row.lane is None or row.phase not in (RUNNING, STOPPING):
        return
    if records.lanes is None:
        words = f"{records.filestore} has no project quotas any more"
    else:
        wanted = storage.limits_of(quota.limit_bytes, records.block_bytes)
        project = records.lanes.get(row.lane)
        if project is not None and project.limits == wanted and project.is_used:
            return
        words = f"project {quota.project} must have {_words(wanted)}, and has "
        words += _words(project.limits) if project else "no record"
    remedy = f"axern reservations release {row.id} --force --reason TEXT"
    yield _finding(DRIFTING_QUOTA, row.id, words, remedy)


def _without_entry(lane: int, project: Project, filestore: str) -> Finding:
    use = f"{project.used_bytes} bytes, {project.used_inodes} files and folders"
    if not project.is_used:
        words = f"no entry holds lane {lane}, but {_words(project.limits)} are left of it"
        return _finding(LEAKED_QUOTA, str(project.id), words, "systemctl restart axernd")
    code = FOREIGN_PROJECT if project.limits == NOTHING else LEAKED_PROJECT
    words = f"no entry holds lane {lane}, but something has its project: {use}; it is not given out"
    return _finding(code, str(project.id), words, f"lsattr -pR {filestore} | grep {project.id}")


def _words(limits: Limits) -> str:
    return f"limits of {limits.bytes} bytes and {limits.inodes} inodes"


def _finding(code: str, name: str, found: str, remedy: str) -> Finding:
    return Finding(code, CODES[code], name, found, remedy)
