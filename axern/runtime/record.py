"""The files that remember a run: each whole or not at all, durable, and read with distrust."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from axern.runtime.outcome import Outcome

_ROOM_BYTES = 4096
"""A block: more than a record takes, but for a message without end."""
_log = logging.getLogger(__name__)

Record = TypeVar("Record")


class RunExit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a run ended.

    `exit_code` is the workload's, 128 + N for a signal, or None if it never ran or nobody saw it
    end; `cli_exit_code` is what the command line passes on.
    """

    status: str
    exit_code: int | None
    cli_exit_code: int
    finished_wall_ms: int
    started_wall_ms: int | None = None
    diagnostic_code: str | None = None
    message: str | None = None


class HeldSpec(msgspec.Struct, frozen=True):
    """What of a run's spec its limits follow from."""

    runtime_class: str
    requests: dict[str, int | None]
    limits: dict[str, int | None]
    enforced: bool
    pids_max: int | None = None
    memory_high_percent: int = 0
    oom_kill_one: bool = False
    io_read_max_bytes_s: int | None = None
    io_write_max_bytes_s: int | None = None


class _Owner(msgspec.Struct):
    uid: int
    namespace: str


def of(how: Outcome, started_wall_ms: int | None, now_wall_ms: int) -> RunExit:
    """Return the record of *how* a run ended; an end that nobody timed is one of now."""
    return RunExit(
        status=how.status,
        exit_code=how.exit_code,
        cli_exit_code=how.cli_exit_code,
        started_wall_ms=started_wall_ms,
        finished_wall_ms=max(how.finished_wall_ms or now_wall_ms, started_wall_ms or 0),
        diagnostic_code=how.diagnostic_code,
        message=how.message,
    )


def owner(run_folder: str) -> tuple[int, str] | tuple[None, None]:
    """Return (uid, namespace) of the run in *run_folder*, twice None where no spec says so."""
    found = decode(spec_path(run_folder), _Owner)
    return (found.uid, found.namespace) if found else (None, None)


def exit_path(run_folder: str) -> str:
    """Return where the exit record of the run in *run_folder* stands."""
    return f"{run_folder}/exit.json"


def spec_path(run_folder: str) -> str:
    """Return where the spec of the run in *run_folder* stands."""
    return f"{run_folder}/spec.json"


def keep_room(run_folder: str) -> None:
    """Set aside the room that the exit record takes, so that a run can end on a full disk.

    Raises:
        OSError: There is none.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(_room_path(run_folder), flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _ROOM_BYTES)
    finally:
        os.close(descriptor)


def save_exit(run_folder: str, record: RunExit) -> None:
    """Record how the run ended, durably; one that is recorded already stays as it is."""
    if decode(exit_path(run_folder), RunExit) is not None:
        return
    data = msgspec.json.encode(record)
    try:
        os.makedirs(run_folder, 0o700, exist_ok=True)
        write_durably(exit_path(run_folder), data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(data) > _ROOM_BYTES:
            raise
        _write_into_room(run_folder, data)
    with contextlib.suppress(OSError):
        os.unlink(_room_path(run_folder))


def _room_path(run_folder: str) -> str:
    return f"{run_folder}/exit.room"


def _write_into_room(run_folder: str, data: bytes) -> None:
    """Let the exit record take the room that was kept for it; no crash leaves a part of it."""
    room = _room_path(run_folder)
    descriptor = os.open(room, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(room, exit_path(run_folder))
    with contextlib.suppress(OSError):
        os.unlink(f"{exit_path(run_folder)}.new")  # what found no room
    sync_folder(run_folder)


def write_durably(path: str, data: bytes) -> None:
    """Let *path* appear whole or not at all, and be there after a power failure."""
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.rename(temporary, path)
    sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Make the names in the folder *path* durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def decode(path: str, kind: type[Record]) -> Record | None:
    """Return the record in *path*, or None where there is none that this program wrote.

    A damaged one concerns its run alone, so it is logged and not raised.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                _log.error("%s is a device or a pipe, which this program never makes", path)
                return None
            return msgspec.json.decode(file.read(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _log.error("%s is damaged: %s", path, error)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        _log.error("%s is a link or a folder, which this program never makes", path)
    return None
