"""The block device that a folder's file system is on, as the io controller names it."""

from __future__ import annotations

import os

from axern.errors import CapabilityMissing

_BLOCK = "/sys/dev/block"


def disk_of(folder: str) -> str:
    """Return `MAJOR:MINOR` of the whole disk that holds *folder*; a partition is part of one.

    Source: Documentation/admin-guide/cgroup-v2.rst, "IO Interface Files".

    Raises:
        CapabilityMissing: Its file system is on no single block device.
    """
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    entry = os.path.realpath(f"{_BLOCK}/{number}")
    if os.path.exists(f"{entry}/partition"):
        entry = os.path.dirname(entry)
    try:
        with open(f"{entry}/dev", encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        raise CapabilityMissing(
            f"{folder} is on no block device ({number}), so that reading and writing can't be "
            "limited there",
            syscall="stat",
            path=folder,
            hint="leave out io_read_max and io_write_max, or put the filestore on a disk",
        ) from None
