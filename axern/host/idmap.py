"""User and group id ranges: a lane's own 65,536 ids, and mounts that show files through them."""

from __future__ import annotations

import os
import subprocess
import threading

from axern.errors import CapabilityMissing, MountError
from axern.host.linux import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    mount_setattr,
    open_tree,
)

FIRST_ID = 0x70000000
"""Above every range that adduser, systemd or container engines hand out by default."""
IDS_PER_LANE = 65_536
LANES = 4_096
"""FIRST_ID + LANES * IDS_PER_LANE = 2**31, so that ids stay positive in signed 32 bits."""

_CLONE_ATTRIBUTES = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID
_CACHED_NAMESPACES = 64
_MAKER = ("/usr/bin/unshare", "--user", "--", "/bin/cat")

_namespaces: dict[int, int] = {}
_namespaces_lock = threading.Lock()


def first_id(lane: int) -> int:
    """Return the host id that is root inside the sandboxes of *lane*, 0 <= lane < 4096.

    Raises:
        ValueError: There is no such lane.
    """
    if not 0 <= lane < LANES:
        raise ValueError(f"lane {lane} is not in 0..{LANES - 1}")
    return FIRST_ID + lane * IDS_PER_LANE


def prove() -> str:
    """Make a user namespace in which root is somebody else on the host.

    Raises:
        CapabilityMissing: The kernel refuses one.
    """
    host_id = first_id(LANES - 1)
    try:
        os.close(_make_namespace(host_id))
    except OSError as err:
        raise CapabilityMissing(
            "ids can't be mapped in a user namespace",
            syscall="uid_map",
            errno=err.errno,
            hint="check /proc/sys/user/max_user_namespaces, and the security modules' rules",
        ) from err
    return f"root inside was uid {host_id} outside"


def clone_tree(source: str, lane: int | None) -> int:
    """Return a detached, read-only clone of the mount at *source*, with ids shifted to *lane*.

    Without a lane ids stay as they are. Only that one mount is cloned, without mounts below it;
    devices and setuid bits are dead in it. The caller attaches and closes the descriptor.

    Raises:
        MountError: *source* is missing, or its file system can't be mapped.
        CapabilityMissing: The host refuses user namespaces.
    """
    tree_fd = -1
    try:
        tree_fd = open_tree(source)
        if lane is None:
            mount_setattr(tree_fd, _CLONE_ATTRIBUTES)
        else:
            with _namespaces_lock:
                mount_setattr(tree_fd, _CLONE_ATTRIBUTES, _namespace(first_id(lane)))
    except OSError as err:
        if tree_fd >= 0:
            os.close(tree_fd)
        raise MountError(
            f"cannot use {source} as a root file system",
            syscall="mount_setattr" if tree_fd >= 0 else "open_tree",
            path=source,
            errno=err.errno,
            hint="the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)",
        ) from err
    return tree_fd


def _namespace(host_id: int) -> int:
    """Return the descriptor of a user namespace 0 -> *host_id*, made or remembered.

    A namespace is only a table of ids here, so one may serve any number of mounts; the oldest is
    closed when there are too many.
    """
    if host_id not in _namespaces:
        if len(_namespaces) >= _CACHED_NAMESPACES:
            os.close(_namespaces.pop(next(iter(_namespaces))))
        _namespaces[host_id] = _make_namespace(host_id)
    return _namespaces[host_id]


def _make_namespace(host_id: int) -> int:
    """Let a short-lived child enter a new user namespace, and keep that namespace open.

    The child must be another program: a process with threads can't enter one itself. Its echo
    shows that it has entered.
    """
    with subprocess.Popen(
        _MAKER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    ) as child:
        try:
            stdin, stdout = child.stdin, child.stdout
            if stdin is None or stdout is None:
                raise RuntimeError("subprocess gave no pipes")
            stdin.write(b".")
            stdin.flush()
            if stdout.read(1) != b".":
                raise CapabilityMissing(
                    "cannot make a user namespace",
                    syscall="unshare",
                    hint="check /proc/sys/user/max_user_namespaces",
                )
            for table in ("uid_map", "gid_map"):
                with open(f"/proc/{child.pid}/{table}", "w", encoding="ascii") as file:
                    file.write(f"0 {host_id} {IDS_PER_LANE}")
            return os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            child.kill()
