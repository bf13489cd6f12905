"""A jail for one process and what it starts: one folder to write to, no network, no way out."""

from __future__ import annotations

import contextlib
import os

from axern.errors import CapabilityMissing
from axern.host import linux

_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC
_HARMLESS = linux.MOUNT_ATTR_NODEV | linux.MOUNT_ATTR_NOSUID


def confine(writable: str, hidden: str) -> None:
    """Make everything but the folder *writable* read-only for this process, for good.

    It has a mount namespace of its own afterwards, so that the kernel refuses what a path that
    leads out would do, hard links included. Call it before there is a second thread.

    Args:
        writable: An absolute path without links.
        hidden: A mount that is not to be kept alive here, with all below it; may be none.

    Raises:
        CapabilityMissing: The kernel refused.
    """
    try:
        linux.unshare(_NAMESPACES)
        linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        with contextlib.suppress(OSError):
            linux.unmount(hidden, linux.MNT_DETACH | linux.UMOUNT_NOFOLLOW)
        linux.mount(writable, writable, flags=linux.MS_BIND)
        linux.change_mount("/", add=linux.MOUNT_ATTR_RDONLY, recursive=True)
        linux.change_mount(writable, add=_HARMLESS, clear=linux.MOUNT_ATTR_RDONLY)
        os.chdir("/")
    except OSError as err:
        raise CapabilityMissing(
            "cannot confine an import",
            syscall="unshare",
            path=writable,
            errno=err.errno,
            hint="mount namespaces and mount_setattr (Linux 5.12) are needed",
        ) from err
