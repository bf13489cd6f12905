"""Shows that a folder's file system can hold what is written through an overlay."""

from __future__ import annotations

import os

from axern.errors import CapabilityMissing
from axern.host.filestore import remove_tree
from axern.host.linux import detached_mount

_FOLDER = ".probe-overlay"
_PARTS = ("lower", "upper", "work")


def prove(folder: str) -> str:
    """Write through an overlay whose upper layer is in *folder*, and remove it all.

    The overlay is mounted nowhere, so that no other mount namespace gets it, and a crash leaves
    no mount.

    Raises:
        CapabilityMissing: The kernel refused it.
        OSError: The folder can't be used at all.
    """
    top = f"{folder}/{_FOLDER}"
    remove_tree(top)
    try:
        lower, upper, work = (f"{top}/{part}" for part in _PARTS)
        for path in (top, lower, upper, work):
            os.mkdir(path, 0o700)
        _write_through({"lowerdir": lower, "upperdir": upper, "workdir": work}, folder)
        if not os.path.exists(f"{upper}/written"):
            raise CapabilityMissing(
                f"what is written through an overlay does not reach {upper}",
                syscall="mount",
                path=folder,
            )
    finally:
        remove_tree(top)
    return f"an overlay wrote into {folder}"


def _write_through(options: dict[str, str], folder: str) -> None:
    try:
        mount_fd = detached_mount("overlay", options)
    except OSError as err:
        raise CapabilityMissing(
            f"an overlay with its upper layer in {folder} can't be mounted",
            syscall="mount",
            path=folder,
            errno=err.errno,
            hint="modprobe overlay, and a filestore on XFS or ext4",
        ) from err
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open("written", flags, 0o600, dir_fd=mount_fd)
        os.write(descriptor, b"x")
        os.close(descriptor)
    finally:
        os.close(mount_fd)
