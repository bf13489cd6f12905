"""The run store: what a run was asked to do, and how it ended, kept beside the ledger.

One folder a run, 0700: `spec.json` is durable before the ledger entry that names it, `exit.json`
before that entry goes. Arguments and environment stand here and nowhere else.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ledger.errors import CommitFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

RUN_ID = re.compile(r"[0-9a-f]{32}")
"""An id as the daemon makes it, and the name of the run's folder."""
SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run was asked to do, resolved; `rootfs` is an absolute path on the host."""

    id: str
    namespace: str
    uid: int
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    rootfs: str
    rootfs_readonly: bool
    runtime_class: str
    requests: dict[str, int | None]
    limits: dict[str, int | None]
    enforced: bool
    created_wall_ms: int
    template: str | None = None


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


Record = TypeVar("Record", RunSpec, RunExit)


@dataclass(frozen=True, slots=True)
class RunStore:
    """The folder *root* of all runs, 0700, owned by root."""

    root: str

    def save_spec(self, spec: RunSpec) -> None:
        """Make the run's folder with its spec, durably.

        Raises:
            CommitFailed: The disk refused; nothing is left of it.
        """
        folder = f"{self.root}/{spec.id}"
        try:
            os.mkdir(folder, 0o700)
            _write_durably(f"{folder}/spec.json", msgspec.json.encode(spec))
            _sync_folder(self.root)
        except OSError as error:
            self.discard(spec.id)
            raise CommitFailed(
                f"the run's spec can't be stored: {error.strerror}",
                hint="look at the disk of the state directory: df, dmesg",
            ) from error

    def save_exit(self, run_id: str, record: RunExit) -> None:
        """Record how the run ended, durably; one that is recorded already stays as it is."""
        if self.exit(run_id) is None:
            os.makedirs(f"{self.root}/{run_id}", 0o700, exist_ok=True)
            _write_durably(f"{self.root}/{run_id}/exit.json", msgspec.json.encode(record))

    def spec(self, run_id: str) -> RunSpec | None:
        """Return the run's spec, or None if there is no such run."""
        return _decode(f"{self.root}/{run_id}/spec.json", RunSpec)

    def exit(self, run_id: str) -> RunExit | None:
        """Return how the run ended, or None while it has not."""
        return _decode(f"{self.root}/{run_id}/exit.json", RunExit)

    def has_ended(self, run_id: str) -> bool:
        """Tell whether there is an exit record, be it one that can't be read."""
        return os.path.lexists(f"{self.root}/{run_id}/exit.json")

    def discard(self, run_id: str) -> None:
        """Remove all of the run; one that is not there is fine."""
        shutil.rmtree(f"{self.root}/{run_id}", ignore_errors=True)

    def ids(self) -> Iterator[str]:
        """Yield the id of every run, oldest last; no other name, such as lost+found."""
        found = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # discarded a moment ago
                    if RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_ctime_ns, entry.name))
        yield from (name for _, name in sorted(found, reverse=True))

    def ids_with(self, prefix: str) -> list[str]:
        """Return every id that begins with *prefix*, by the names of the folders alone."""
        return [name for name in os.listdir(self.root) if name.startswith(prefix)]

    def prune(
        self, kept_ms: int, now_wall_ms: int, must_stop: Callable[[], bool] = lambda: False
    ) -> int:
        """Remove runs that ended more than *kept_ms* ago, until *must_stop*; return how many."""
        pruned = 0
        for run_id in self.ids():
            if must_stop():
                break
            record = self.exit(run_id)
            if record is not None and now_wall_ms - record.finished_wall_ms > kept_ms:
                self.discard(run_id)
                pruned += 1
        return pruned


def wall_ms() -> int:
    """Return the wall clock in milliseconds since the epoch, for display."""
    return time.time_ns() // 1_000_000


def _write_durably(path: str, data: bytes) -> None:
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
    _sync_folder(os.path.dirname(path))


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _decode(path: str, kind: type[Record]) -> Record | None:
    """Return the record in *path*, or None where there is none that this program wrote.

    A damaged one concerns its run alone, so it is logged and not raised.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        _log.error("%s is damaged: %s", path, error)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        _log.error("%s is a link, which this program never makes", path)
    return None
