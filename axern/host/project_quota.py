"""XFS project quotas: a hard limit on the blocks and inodes of everything that has one project id.

Spoken to by ioctl and quotactl_fd(2) alone: no program is run and no text is parsed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from axern.errors import CapabilityMissing, QuotaError
from axern.host.linux import oserror

_libc = ctypes.CDLL(None, use_errno=True)

# include/uapi/asm-generic/unistd.h
_NR_QUOTACTL_FD = 443

# include/uapi/linux/quota.h
PRJQUOTA = 2
_SUBCMD_SHIFT = 8

# include/uapi/linux/dqblk_xfs.h: XQM_CMD(x) is ('X' << 8) + x
_XQM = ord("X") << 8
Q_XGETQUOTA = _XQM + 3
Q_XSETQLIM = _XQM + 4
Q_XGETQSTATV = _XQM + 8
Q_XGETNEXTQUOTA = _XQM + 9
FS_DQUOT_VERSION = 1
FS_QSTATV_VERSION1 = 1
FS_PROJ_QUOTA = 2
FS_DQ_ISOFT = 1 << 0
FS_DQ_IHARD = 1 << 1
FS_DQ_BSOFT = 1 << 2
FS_DQ_BHARD = 1 << 3
FS_QUOTA_PDQ_ACCT = 1 << 4
FS_QUOTA_PDQ_ENFD = 1 << 5
BASIC_BLOCK_BYTES = 512
"""Unit of the blocks in struct fs_disk_quota, whatever the file system's own block is."""

# include/uapi/linux/fs.h: _IOR('X', 31, struct fsxattr) and _IOW('X', 32, struct fsxattr)
FS_IOC_FSGETXATTR = 0x801C581F
FS_IOC_FSSETXATTR = 0x401C5820
FS_XFLAG_PROJINHERIT = 0x200

_FSXATTR = struct.Struct("=5I8x")
"""struct fsxattr: xflags, extsize, nextents, projid, cowextsize."""
_QUOTA = struct.Struct("=bbHI6Qii2H4b3QiHh8x")
"""struct fs_disk_quota, 112 bytes."""
_QSTATV = struct.Struct("=bBHI24x24x24x3i3HHI56x")
"""struct fs_quota_statv, 160 bytes; only version and flags are read."""
_NO_SUCH_QUOTA = (errno.ENOENT, errno.ESRCH)
_NO_QUOTA_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ESRCH, errno.EINVAL)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits of a project in bytes and inodes; 0 is no limit."""

    bytes: int
    inodes: int


@dataclass(frozen=True, slots=True)
class Project:
    """What the kernel's quota record says of one project id."""

    id: int
    limits: Limits
    used_bytes: int
    used_inodes: int

    @property
    def is_used(self) -> bool:
        """Tell whether a file or folder has this project id."""
        return self.used_bytes > 0 or self.used_inodes > 0


NOTHING = Limits(0, 0)


def require_enforced(folder: str) -> None:
    """Do nothing if the file system that holds *folder* counts and enforces project quotas.

    Raises:
        CapabilityMissing: It certainly does not; the message says what was found.
        QuotaError: Nobody can tell, such as where no descriptor is left: that is no no, on which
            whoever stands on the quotas would be ended.
    """
    request = bytearray(_QSTATV.size)
    request[0] = FS_QSTATV_VERSION1
    try:
        with _opened(folder) as fd:
            _quotactl(fd, Q_XGETQSTATV, 0, request)
    except OSError as err:
        why = "its file system is no XFS, or is mounted without the option prjquota"
        if err.errno in _NOT_THERE:
            why = "it is no folder"
        elif err.errno not in _NO_QUOTA_HERE:
            what = "cannot ask for the project quotas of"
            raise _refused(what, folder, "quotactl_fd", err) from err
        elif kernel_lacks_quotas():
            why = "this kernel has no quotas for XFS (CONFIG_XFS_QUOTA)"
        raise _missing(folder, why, err.errno) from err
    flags = _QSTATV.unpack(request)[2]
    wanted = FS_QUOTA_PDQ_ACCT | FS_QUOTA_PDQ_ENFD
    if flags & wanted != wanted:
        raise _missing(folder, "its XFS is mounted without the option prjquota", None)


def _missing(folder: str, why: str, number: int | None) -> CapabilityMissing:
    return CapabilityMissing(
        f"{folder} has no project quotas: {why}",
        syscall="quotactl_fd",
        path=folder,
        errno=number,
        hint="boot a kernel that has CONFIG_XFS_QUOTA"
        if kernel_lacks_quotas()
        else "axern node setup --filestore-size SIZE makes an XFS file with them, "
        "or mount an XFS with prjquota there",
    )


def kernel_lacks_quotas() -> bool:
    """Tell whether XFS is there and certainly has no quotas; without XFS nobody can tell yet.

    Source: Linux, fs/xfs/xfs_stats.c, xfs_init_procfs.
    """
    return os.path.isdir("/proc/fs/xfs") and not os.path.exists("/proc/fs/xfs/xqm")


def project_of(path: str) -> int:
    """Return the project id of the file or folder *path*, 0 for none.

    Raises:
        QuotaError: The file system has no such ids, or *path* is missing.
    """
    return _attributes(path)[3]


def inherits(path: str) -> bool:
    """Tell whether what is made in the folder *path* gets its project id."""
    return bool(_attributes(path)[0] & FS_XFLAG_PROJINHERIT)


def _attributes(path: str) -> tuple[int, int, int, int, int]:
    try:
        with _opened(path) as fd:
            answer = fcntl.ioctl(fd, FS_IOC_FSGETXATTR, bytes(_FSXATTR.size))
    except OSError as err:
        raise _refused("cannot read the project id of", path, "FS_IOC_FSGETXATTR", err) from err
    xflags, extsize, nextents, projid, cowextsize = _FSXATTR.unpack(answer)
    return xflags, extsize, nextents, projid, cowextsize


def set_project(folder: str, project_id: int) -> None:
    """Give the empty *folder*, and all that will be made in it, *project_id*; read it back.

    Raises:
        QuotaError: The kernel refused, or says something else afterwards.
    """
    xflags, extsize, nextents, _, cowextsize = _attributes(folder)
    request = _FSXATTR.pack(
        xflags | FS_XFLAG_PROJINHERIT, extsize, nextents, project_id, cowextsize
    )
    try:
        with _opened(folder) as fd:
            fcntl.ioctl(fd, FS_IOC_FSSETXATTR, request)
    except OSError as err:
        raise _refused("cannot set the project id of", folder, "FS_IOC_FSSETXATTR", err) from err
    if project_of(folder) != project_id or not inherits(folder):
        raise QuotaError(
            f"{folder} did not take the project id {project_id}",
            syscall="FS_IOC_FSSETXATTR",
            path=folder,
        )


def set_limits(folder: str, project_id: int, limits: Limits) -> None:
    """Limit *project_id* on the file system of *folder*; `NOTHING` clears; read it back.

    Soft limits are cleared: a grace period would let a sandbox over its limit or stop it below.

    Raises:
        QuotaError: The kernel refused, or says something else afterwards.
    """
    blocks = limits.bytes // BASIC_BLOCK_BYTES
    mask = FS_DQ_BHARD | FS_DQ_BSOFT | FS_DQ_IHARD | FS_DQ_ISOFT
    head = (FS_DQUOT_VERSION, FS_PROJ_QUOTA, mask, project_id)
    request = bytearray(_QUOTA.size)
    _QUOTA.pack_into(request, 0, *head, blocks, 0, limits.inodes, *[0] * 17)
    try:
        with _opened(folder) as fd:
            _quotactl(fd, Q_XSETQLIM, project_id, request)
    except OSError as err:
        raise _refused(f"cannot limit project {project_id} on", folder, "Q_XSETQLIM", err) from err
    found = read(folder, project_id)
    if (found.limits if found else NOTHING) != limits:
        raise QuotaError(
            f"project {project_id} on {folder} was given {limits} and has {found}",
            syscall="Q_XSETQLIM",
            path=folder,
        )


def read(folder: str, project_id: int) -> Project | None:
    """Return the record of *project_id*, or None where the kernel has none: no use, no limit.

    Raises:
        QuotaError: The file system of *folder* can't tell.
    """
    return _get(folder, Q_XGETQUOTA, project_id)


def projects(folder: str, first_id: int, count: int) -> Iterator[Project]:
    """Yield every record of the file system of *folder* whose id is one of *count* from *first_id*.

    Raises:
        QuotaError: The file system can't tell.
    """
    wanted = first_id
    while (found := _get(folder, Q_XGETNEXTQUOTA, wanted)) and found.id < first_id + count:
        if found.is_used or found.limits != NOTHING:
            yield found
        wanted = found.id + 1


def _get(folder: str, command: int, project_id: int) -> Project | None:
    answer = bytearray(_QUOTA.size)
    try:
        with _opened(folder) as fd:
            _quotactl(fd, command, project_id, answer)
    except OSError as err:
        if err.errno in _NO_SUCH_QUOTA and not _is_off(folder):
            return None
        raise _refused(f"cannot read project {project_id} of", folder, "quotactl_fd", err) from err
    _, _, _, found_id, hard_blocks, _, hard_inodes, _, blocks, inodes = _QUOTA.unpack(answer)[:10]
    return Project(
        found_id,
        Limits(hard_blocks * BASIC_BLOCK_BYTES, hard_inodes),
        blocks * BASIC_BLOCK_BYTES,
        inodes,
    )


def _is_off(folder: str) -> bool:
    """Tell whether *folder* has no project quotas: then a missing record says nothing."""
    try:
        require_enforced(folder)
    except CapabilityMissing:
        return True
    return False


class _opened:  # noqa: N801 - reads as a verb
    """Hold a descriptor of a path, whose last part is not followed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(self._path, flags)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def _quotactl(fd: int, command: int, project_id: int, data: bytearray) -> None:
    buffer = (ctypes.c_char * len(data)).from_buffer(data)
    call = (command << _SUBCMD_SHIFT) | PRJQUOTA
    if _libc.syscall(_NR_QUOTACTL_FD, fd, ctypes.c_uint(call), ctypes.c_uint(project_id), buffer):
        raise oserror()


def _refused(what: str, path: str, syscall: str, err: OSError) -> QuotaError:
    return QuotaError(f"{what} {path}", syscall=syscall, path=path, errno=err.errno)
