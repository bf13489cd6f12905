"""A control group's limits: written, and read back, since only what the kernel repeats is held."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing, CgroupError, HostError
from axern.host.control_files import open_folder, read_at, write_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from axern.host.cgroup import Cgroup

_GONE = (errno.ENOENT, errno.ENODEV)
_HUGE_PAGES_MAX = re.compile(r"hugetlb\..+\.max")


def apply(group: Cgroup, files: Mapping[str, str]) -> None:
    """Write each of *files* in order, and read each back.

    Raises:
        CapabilityMissing: The group has no such file: its controller is not enabled.
        CgroupError: The kernel refused a value, or made another of it.
    """
    with open_folder(group.folder) as folder_fd:
        for name, text in files.items():
            try:
                write_at(folder_fd, name, text)
            except HostError as error:
                raise _refused(group, name, text, error) from error
    require(group, files)


def require(group: Cgroup, files: Mapping[str, str]) -> None:
    """Do nothing if the group holds exactly *files*.

    Raises:
        CgroupError: It does not; the message names each file with both values.
    """
    if wrong := mismatches(group, files):
        raise CgroupError(
            f"limits are not as they must be: {'; '.join(wrong)}",
            syscall="read",
            path=group.folder,
        )


def mismatches(group: Cgroup, files: Mapping[str, str]) -> tuple[str, ...]:
    """Name every file of *files* that holds something else, or isn't there; empty if none.

    Raises:
        HostError: The group is missing or can't be read.
    """
    found = []
    with open_folder(group.folder) as folder_fd:
        for name, text in files.items():
            try:
                there = read_at(folder_fd, name).strip()
            except HostError as error:
                if error.errno not in _GONE:
                    raise
                there = "nothing"
            if there != text:
                found.append(f"{group.folder}/{name} holds {there}, not {text}")
    return tuple(found)


def without_huge_pages(group: Cgroup) -> dict[str, str]:
    """Return the files with which *group* has no huge pages, two for each size of them.

    They count in no `memory.max`, so that a sandbox could take all that its host has set aside. The
    files are missing where the kernel lacks the controller.
    Source: Documentation/admin-guide/cgroup-v2.rst, "HugeTLB".

    Raises:
        HostError: The group is missing.
    """
    try:
        names = os.listdir(group.folder)
    except OSError as err:
        raise CgroupError(
            f"cannot list {group.folder}", syscall="open", path=group.folder, errno=err.errno
        ) from err
    return {name: "0" for name in sorted(names) if _HUGE_PAGES_MAX.fullmatch(name)}


def read_number(group: Cgroup, name: str) -> int | None:
    """Return the number in a file of the group, or None for `max`, or where there is no such file.

    Raises:
        HostError: It can't be read.
    """
    try:
        with open_folder(group.folder) as folder_fd:
            text = read_at(folder_fd, name).strip()
    except HostError as error:
        if error.errno not in _GONE:
            raise
        return None
    return int(text) if text.isdecimal() else None


def read_counters(group: Cgroup, name: str) -> dict[str, int]:
    """Return the flat keyed numbers of a file such as `memory.events`; none without the group.

    Raises:
        HostError: It can't be read.
    """
    try:
        with open_folder(group.folder) as folder_fd:
            return counters_from_text(read_at(folder_fd, name))
    except HostError as error:
        if error.errno not in _GONE:
            raise
        return {}


def counters_from_text(text: str) -> dict[str, int]:
    """Return the numbers by key from lines such as `oom_kill 2`; other lines are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}  # noqa: PLR2004


def _refused(group: Cgroup, name: str, text: str, error: HostError) -> HostError:
    if error.errno in _GONE and group.exists():
        controller = name.partition(".")[0]
        return CapabilityMissing(
            f"{group.folder} has no {name}: the {controller} controller is not enabled there",
            syscall="write",
            path=f"{group.folder}/{name}",
            hint=f"enable it in cgroup.subtree_control of each folder above {group.folder}",
        )
    return CgroupError(
        f"cannot set {name} to {text}",
        syscall="write",
        path=f"{group.folder}/{name}",
        errno=error.errno,
        data=text,
    )
