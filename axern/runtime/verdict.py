"""Why a sandbox ended, where the kernel knows better than the exit code.

The counters of the sandbox's own group tell, and its quota record; they stay until its burial,
unlike those of the runtime's group below. No exit code does: a workload may end with any, and
runtimes differ.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from axern.errors import HostError
from axern.host.cgroup_files import read_counters
from axern.runtime import storage
from axern.runtime.outcome import FAILED
from ledger.units import format_bytes, format_short

if TYPE_CHECKING:
    from axern.host.project_quota import Project
    from axern.runtime.layout import SandboxPaths
    from axern.runtime.outcome import Outcome
    from ledger.reservation import Reservation

MEMORY_LIMIT_EXCEEDED = "memory-limit-exceeded"
STORAGE_LIMIT_EXCEEDED = "storage-limit-exceeded"
MEMORY_EVENTS = "memory.events"
KILLED = 137
"""128 + SIGKILL: what a workload of which the kernel killed everything has as its code."""

_BY_ITSELF = ("process-exited", "runtime-start-error")
"""What an end is called that nobody asked for; whoever was asked to end is told why by that."""

_log = logging.getLogger(__name__)


def judged(
    outcome: Outcome,
    paths: SandboxPaths,
    row: Reservation,
    hit_storage: bool | None = None,  # noqa: FBT001 - it is called through a list of arguments
) -> Outcome:
    """Return *outcome*, as that of a limit where the kernel tells that it was the cause.

    What ended well, or because it was asked to, stays as it is. A group or a quota record that is
    gone, as after a reboot, or that can't be read, tells nothing. *hit_storage* is whether the
    storage limit was hit, by the kernel's own word; None where nobody heard it.
    """
    if outcome.diagnostic_code not in _BY_ITSELF:
        return outcome
    try:
        events = read_counters(paths.wall, MEMORY_EVENTS)
        outcome = of_events(outcome, events, row.limits.memory_bytes)
    except HostError as error:
        _log.warning("%s: %s", paths.wall.folder, error)
    if outcome.diagnostic_code not in _BY_ITSELF:
        return outcome
    try:
        found = storage.record_of(row, paths)
    except HostError as error:
        _log.warning("%s: %s", paths.store, error)
        return outcome
    return outcome if found is None else of_usage(outcome, found, hit=hit_storage)


def of_usage(outcome: Outcome, found: Project, *, hit: bool | None = None) -> Outcome:
    """Return *outcome* in the light of a *hit* of the limit, and of what was in use at the end.

    Pure. Without a word of the kernel's, what was in use stands for it. No error of the workload's
    tells: that of a project quota is the one of a full disk.
    """
    if not (storage.is_full(found) if hit is None else hit):
        return outcome
    used, limit = (
        format_short(amount, format_bytes) for amount in (found.used_bytes, found.limits.bytes)
    )
    what = "hit" if hit else "has all but used up"
    return replace(
        outcome,
        diagnostic_code=STORAGE_LIMIT_EXCEEDED,
        message=f"out of storage: it {what} its limit of {limit} "
        f"and {found.limits.inodes} files and folders; {used} and {found.used_inodes} were in use "
        "when it had ended",
    )


def of_events(outcome: Outcome, events: dict[str, int], memory_limit_bytes: int | None) -> Outcome:
    """Return *outcome* in the light of the counters of `memory.events`; pure.

    `oom` counts what came up against a limit of this group or below it, `oom_kill` the processes
    that were killed, for whatever reason: also for the limit that all sandboxes share, or for a
    host without free memory.
    """
    killed = events.get("oom_kill", 0)
    if not killed:
        return outcome
    own = events.get("oom", 0) > 0 and memory_limit_bytes is not None
    why = (
        f"its limit of {format_short(memory_limit_bytes or 0, format_bytes)} was reached"
        if own
        else "the memory of all sandboxes on this node, or of its host, was used up"
    )
    whole = events.get("oom_group_kill", 0) > 0
    what = "all of it" if whole else f"{killed} of its processes"
    ran = outcome.exit_code is not None
    return replace(
        outcome,
        status=FAILED,
        exit_code=KILLED if whole and ran else outcome.exit_code,
        cli_exit_code=KILLED if whole and ran else outcome.cli_exit_code,
        diagnostic_code=MEMORY_LIMIT_EXCEEDED,
        message=f"out of memory: {why}, and the kernel killed {what}",
    )
