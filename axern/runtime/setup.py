"""Give a node its filestore: an XFS with project quotas in one file, made once and kept."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing
from axern.host import loop_file, mounts, project_quota
from axern.host.filestore import secure_folder
from axern.runtime import storage
from axern.runtime.configured import layout_of, sole_user_of
from ledger.errors import InvalidArgument, PermissionDenied, StateConflict
from ledger.units import format_bytes

if TYPE_CHECKING:
    from axern.runtime.layout import Layout
    from axern.settings import Settings

HOLDER = "axern node setup"
LOCK_TIMEOUT_S = 5.0
_FOLDER_MODE = 0o755


@dataclass(frozen=True, slots=True)
class Filestore:
    """The filestore as it stands; `image` is the file it is in, None for a mount of your own."""

    path: str
    image: str | None
    made: bool
    size_bytes: int
    free_bytes: int


def set_up(settings: Settings, size_bytes: int | None) -> Filestore:
    """Make and mount the filestore where there is none with project quotas; safe to repeat.

    Nothing is ever formatted but the file that this call makes. No daemon may run meanwhile.

    Args:
        settings: Where everything is.
        size_bytes: How large a new one shall be; one that is there keeps its size.
    Raises:
        PermissionDenied: Not root.
        LedgerBusy: A daemon runs.
        InvalidArgument: There is none, and no size or too small a one was given.
        StateConflict: The folder that it would be mounted on holds something.
        CapabilityMissing: The kernel has no project quotas.
        HostError: The disk is too small, or mkfs.xfs is missing.
    """
    if os.geteuid() != 0:
        raise PermissionDenied("only root may set up a node", hint="sudo axern node setup")
    os.makedirs(settings.state_dir, mode=_FOLDER_MODE, exist_ok=True)
    layout = layout_of(settings)
    with sole_user_of(settings.run_dir, HOLDER, LOCK_TIMEOUT_S):
        secure_folder(layout.filestore, _FOLDER_MODE)
        made = not _is_there(layout)
        if made:
            _make(layout, size_bytes)
        project_quota.require_enforced(layout.filestore)
        storage.clear_unheld(layout.filestore, ())  # without a daemon nothing is launched
        disk = os.statvfs(layout.filestore)
    has_image = os.path.lexists(layout.filestore_image)
    return Filestore(
        layout.filestore,
        layout.filestore_image if has_image else None,
        made,
        disk.f_blocks * disk.f_frsize,
        disk.f_bavail * disk.f_frsize,
    )


def _is_there(layout: Layout) -> bool:
    layout.mount_filestore()
    with contextlib.suppress(CapabilityMissing):
        project_quota.require_enforced(layout.filestore)
        return True
    return False


def _make(layout: Layout, size_bytes: int | None) -> None:
    path, image = layout.filestore, layout.filestore_image
    smallest = format_bytes(loop_file.SMALLEST_BYTES)
    if size_bytes is None:
        raise InvalidArgument(
            f"{path} has no project quotas, and nothing says how large to make one that has",
            hint=f"axern node setup --filestore-size SIZE, {smallest} or more, "
            f"or mount an XFS on {path} with the option prjquota",
        )
    if size_bytes < loop_file.SMALLEST_BYTES:
        raise InvalidArgument(
            f"--filestore-size: {format_bytes(size_bytes)} is below the smallest, {smallest}"
        )
    if path in mounts.mounts_below(path):
        raise StateConflict(
            f"{path} is a mount of its own, without project quotas",
            hint="mount it again with the option prjquota, or unmount it",
        )
    if held := os.listdir(path):
        raise StateConflict(
            f"{path} is not empty: {len(held)} entries, such as {held[0]}",
            hint="release the sandboxes that have their files there: axern reservations",
        )
    loop_file.create(image, size_bytes)
    try:
        loop_file.mount(image, path)
    except BaseException:
        os.unlink(image)  # made by this very call, and never used
        raise
