"""What the host has: CPUs, memory, disk, clocks and runtime programs, as observed now."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from dataclasses import dataclass

import psutil

from axern.errors import HostError
from axern.host.process import boot_id
from ledger.quick import quick

_MILLI = 1000
_NS_PER_MS = 1_000_000
_VERSION_LIMIT_S = 30
_NO_PROGRAM = (errno.EACCES, errno.EISDIR, errno.ENOENT, errno.ENOEXEC, errno.ENOTDIR, errno.EPERM)
"""What execve(2) says of a file, and not of the moment."""


@quick
@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of the kernel's clocks, in milliseconds, and the boot they belong to.

    `monotonic_ms` stops in suspend, `boottime_ms` does not; `realtime_ms` is for display only.
    """

    boot_id: str
    monotonic_ms: int
    boottime_ms: int
    realtime_ms: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the host has in all; sizes in bytes."""

    cpu_milli: int
    memory_bytes: int
    filestore_total_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """An installed program: where it is, and the first line that it says about its version."""

    name: str
    path: str
    version: str


def read_clocks() -> Clocks:
    """Read all clocks one after another."""
    return Clocks(
        boot_id=boot_id(),
        monotonic_ms=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // _NS_PER_MS,
        boottime_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_MS,
        realtime_ms=time.clock_gettime_ns(time.CLOCK_REALTIME) // _NS_PER_MS,
    )


def observe_capacity(filestore: str) -> Capacity:
    """Measure the host as this process may use it, and the file system that holds *filestore*.

    CPUs are those of the process's affinity mask, 1000 milli each.

    Raises:
        HostError: *filestore* is missing.
    """
    disk = _measure(filestore)
    return Capacity(
        cpu_milli=len(os.sched_getaffinity(0)) * _MILLI,
        memory_bytes=int(psutil.virtual_memory().total),
        filestore_total_bytes=disk.f_blocks * disk.f_frsize,
    )


def filestore_free_bytes(filestore: str) -> int:
    """Return what an unprivileged user could still take of the file system of *filestore*.

    Raises:
        HostError: *filestore* is missing.
    """
    disk = _measure(filestore)
    return disk.f_bavail * disk.f_frsize


def _measure(filestore: str) -> os.statvfs_result:
    try:
        return os.statvfs(filestore)
    except OSError as err:
        raise HostError(
            f"cannot measure {filestore}", syscall="statvfs", path=filestore, errno=err.errno
        ) from err


def find_program(name: str, path: str) -> Program | None:
    """Return the program at the absolute *path* with its version; None where none can be executed.

    Raises:
        HostError: It could not be told: there was no room for another process, or no answer.
    """
    if not os.access(path, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_LIMIT_S,
            check=False,
            env={},
            cwd="/",
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as err:
        raise HostError(
            f"{path} --version did not answer in {_VERSION_LIMIT_S} s", syscall="execve", path=path
        ) from err
    except OSError as err:
        if err.errno in _NO_PROGRAM:
            return None
        raise HostError(
            f"cannot ask {path} for its version", syscall="execve", path=path, errno=err.errno
        ) from err
    version = version_from_text(answer.stdout)
    return Program(name, path, version) if answer.returncode == 0 and version else None


def version_from_text(text: str) -> str:
    """Return the last word of the first line, as in `runc version 1.1.5`; empty for no answer."""
    words = text.partition("\n")[0].split()
    return words[-1] if words else ""
