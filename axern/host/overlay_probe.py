"""Shows that a folder's file system can hold what is written through an overlay."""

from __future__ import annotations

import contextlib
import os

from axern.errors import CapabilityMissing
from axern.host.filestore import remove_tree
from axern.host.linux import mount, unmount

_FOLDER = ".probe-overlay"
_PARTS = ("lower", "upper", "work", "merged")


def prove(folder: str) -> str:
    """Mount an overlay whose upper layer is in *folder*, write through it, and remove it all.

    Raises:
        CapabilityMissing: The kernel refused it.
        OSError: The folder can't be used at all.
    """
    top = f"{folder}/{_FOLDER}"
    _remove(top)
    try:
        lower, upper, work, merged = (f"{top}/{part}" for part in _PARTS)
        for path in (top, lower, upper, work, merged):
            os.mkdir(path, 0o700)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        try:
            mount("overlay", merged, "overlay", options=options)
        except OSError as err:
            raise CapabilityMissing(
                f"an overlay with its upper layer in {folder} can't be mounted",
                syscall="mount",
                path=folder,
                errno=err.errno,
                hint="modprobe overlay, and a filestore on XFS or ext4",
            ) from err
        with open(f"{merged}/written", "wb") as file:
            file.write(b"x")
        if not os.path.exists(f"{upper}/written"):
            raise CapabilityMissing(
                f"what is written through an overlay does not reach {upper}",
                syscall="mount",
                path=folder,
            )
    finally:
        _remove(top)
    return f"an overlay wrote into {folder}"


def _remove(top: str) -> None:
    with contextlib.suppress(OSError):
        unmount(f"{top}/merged")
    remove_tree(top)
