"""Reads and writes small kernel files relative to a folder's descriptor, never creating one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from axern.errors import HostError

_CHUNK_BYTES = 64 * 1024


@contextmanager
def open_folder(path: str) -> Iterator[int]:
    """Give an O_PATH descriptor of a folder, following no link in the last component.

    Raises:
        HostError: The folder is missing or is none.
    """
    try:
        folder_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as err:
        raise HostError(f"cannot open {path}", syscall="open", path=path, errno=err.errno) from err
    try:
        yield folder_fd
    finally:
        os.close(folder_fd)


def read_at(folder_fd: int, name: str) -> str:
    """Return the whole text of a kernel file, as of one moment where it fits in 64 KiB.

    Raises:
        HostError: It is missing or can't be read.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder_fd)
        try:
            chunks = []
            while chunk := os.read(fd, _CHUNK_BYTES):
                chunks.append(chunk)
        finally:
            os.close(fd)
    except OSError as err:
        path = _path(folder_fd, name)
        raise HostError(f"cannot read {path}", syscall="read", path=path, errno=err.errno) from err
    return b"".join(chunks).decode()


def write_at(folder_fd: int, name: str, text: str) -> None:
    """Write *text* to a kernel file with one write call, since the kernel parses each on its own.

    Raises:
        HostError: It is missing, or the kernel refused the text; the error repeats both.
    """
    data = text.encode()
    try:
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder_fd)
        try:
            written = os.write(fd, data)
        finally:
            os.close(fd)
    except OSError as err:
        path = _path(folder_fd, name)
        raise HostError(
            f"cannot write {text!r} to {path}",
            syscall="write",
            path=path,
            errno=err.errno,
            data=text,
        ) from err
    if written != len(data):
        path = _path(folder_fd, name)
        raise HostError(
            f"{path} took {written} of {len(data)} bytes of {text!r}",
            syscall="write",
            path=path,
            data=text,
        )


def _path(folder_fd: int, name: str) -> str:
    return os.path.join(os.readlink(f"/proc/self/fd/{folder_fd}"), name)
