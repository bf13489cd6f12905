"""A file that is a file system: allocated in full, made an XFS once, mounted with project quotas.

Nothing is ever formatted but a file that this very call has made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess

from axern.errors import CapabilityMissing, FilestoreError
from axern.host import linux, project_quota
from axern.host.mounts import mounts_below

SMALLEST_BYTES = 512 * 1024**2
"""mkfs.xfs makes nothing below 300 MiB; 5.19's release notes of xfsprogs."""
_MAKER = ("/usr/sbin/mkfs.xfs", "-q", "-K")
"""-K: no discard, which would take the file's blocks away again."""
_MAKER_LIMIT_S = 120
_MOUNT_OPTIONS = "prjquota"
_MOUNT_FLAGS = linux.MS_NODEV | linux.MS_NOSUID
_NOT_SUPPORTED = (errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP)

# include/uapi/linux/loop.h
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_LO_FLAGS_DIRECT_IO = 16
_LOOP_CONFIG = struct.Struct("=II40x12xI64s64x32x16x64x")
"""struct loop_config: fd, block size, then struct loop_info64 with its flags and file name."""
_NAME_BYTES = 63
_CONTROL = "/dev/loop-control"
_MODPROBE_LIMIT_S = 30
_ATTEMPTS = 16
"""Between finding a free loop device and taking it, somebody else may take it."""


def create(path: str, size_bytes: int) -> None:
    """Make the file *path* of *size_bytes*, an XFS inside, its blocks taken from the disk for good.

    It appears whole or not at all; one that a crash left half made is made anew.

    Raises:
        FilestoreError: It exists, the disk has no room, or mkfs.xfs is missing or failed.
    """
    if os.path.lexists(path):
        raise FilestoreError(
            f"{path} exists, and is never formatted again", syscall="open", path=path
        )
    unfinished = f"{path}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        try:
            _allocate(unfinished, size_bytes)
            _format(unfinished)
            linux.rename_new(unfinished, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        _sync(os.path.dirname(path))
    except OSError as err:
        raise FilestoreError(
            f"cannot make the file system {path} of {size_bytes} bytes",
            syscall="fallocate" if err.errno == errno.ENOSPC else "open",
            path=path,
            errno=err.errno,
        ) from err


def _allocate(path: str, size_bytes: int) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _format(path: str) -> None:
    try:
        made = subprocess.run(
            [*_MAKER, path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKER_LIMIT_S,
            check=False,
            env={},
            cwd="/",
            text=True,
            errors="replace",
        )
    except FileNotFoundError as err:
        raise FilestoreError(
            "mkfs.xfs is missing",
            syscall="execve",
            path=_MAKER[0],
            hint="install the package xfsprogs",
        ) from err
    except subprocess.TimeoutExpired as err:
        raise FilestoreError(
            f"mkfs.xfs did not end within {_MAKER_LIMIT_S} s", syscall="mkfs.xfs", path=path
        ) from err
    if made.returncode != 0:
        raise FilestoreError(
            f"mkfs.xfs failed on {path}: {made.stderr.strip()}", syscall="mkfs.xfs", path=path
        )


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def mount(path: str, folder: str) -> bool:
    """Mount the file *path* on *folder* with project quotas; return False where it is mounted.

    The loop device goes with the mount. Blocks that were given back to the disk, as a trim of the
    mounted file system would, are taken again, and no more are given back.

    Raises:
        FilestoreError: The disk has no room left for it, no loop device is to be had, or it is no
            XFS.
        CapabilityMissing: The kernel has no XFS, or none with quotas.
    """
    if folder in mounts_below(folder):
        return False
    device = ""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, os.fstat(descriptor).st_size)
            device, loop_fd = _attach(descriptor, path)
        finally:
            os.close(descriptor)
        try:
            _keep_blocks(device)
            linux.mount(device, folder, "xfs", _MOUNT_FLAGS, _MOUNT_OPTIONS)
        finally:
            os.close(loop_fd)
    except OSError as err:
        if device and _is_unsupported(err):
            raise CapabilityMissing(
                "the kernel can't mount XFS with project quotas (CONFIG_XFS_QUOTA)",
                syscall="mount",
                path=folder,
                errno=err.errno,
                hint="boot a kernel that has them, such as Debian's own; dmesg may tell more",
            ) from err
        raise FilestoreError(
            f"cannot mount {path} on {folder} with {_MOUNT_OPTIONS}",
            syscall="mount" if device else "loop",
            path=folder,
            errno=err.errno,
            hint="dmesg tells why: it may be no XFS any more, or a copy of it is mounted elsewhere"
            if device
            else "make room on its disk, and see that there are loop devices",
        ) from err
    return True


def _is_unsupported(err: OSError) -> bool:
    """Tell whether it is the kernel that can't; a file that is no XFS is refused by EINVAL, too."""
    if err.errno == errno.EINVAL:
        return project_quota.kernel_lacks_quotas()
    return err.errno in _NOT_SUPPORTED


def _attach(file_fd: int, path: str) -> tuple[str, int]:
    """Return a loop device of the file, and a descriptor that keeps it until it is mounted."""
    if not os.path.exists(_CONTROL):
        _load_module()
    control_fd = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            device = f"/dev/loop{fcntl.ioctl(control_fd, _LOOP_CTL_GET_FREE)}"
            loop_fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            request = _LOOP_CONFIG.pack(
                file_fd,
                0,
                _LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO,
                os.fsencode(path)[:_NAME_BYTES],
            )
            try:
                fcntl.ioctl(loop_fd, _LOOP_CONFIGURE, request)
            except OSError as err:
                os.close(loop_fd)
                if err.errno != errno.EBUSY:
                    raise
            else:
                return device, loop_fd
    finally:
        os.close(control_fd)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), _CONTROL)


def _load_module() -> None:
    """Let the kernel have loop devices, where they are a module that nothing has asked for yet.

    What fails here is told by what is still missing afterwards.
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            ["/usr/sbin/modprobe", "loop"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MODPROBE_LIMIT_S,
            check=False,
            env={},
            cwd="/",
        )


def _keep_blocks(device: str) -> None:
    """Let no trim make holes in the file: what was allocated for sandboxes stays theirs."""
    queue = f"/sys/block/{os.path.basename(device)}/queue/discard_max_bytes"
    with contextlib.suppress(OSError), open(queue, "w", encoding="ascii") as file:
        file.write("0")
