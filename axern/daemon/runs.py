"""The run store: what a run was asked to do, and how it ended, kept beside the ledger.

One folder a run, 0700: `spec.json` is durable before the ledger entry that names it, `exit.json`
before that entry goes. Arguments and environment stand here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from axern.runtime.record import (
    HeldSpec,
    RunExit,
    decode,
    exit_path,
    keep_room,
    save_exit,
    spec_path,
    sync_folder,
    write_durably,
)
from ledger.errors import CommitFailed
from ledger.tables import NO_NETWORK

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN_ID = re.compile(r"[0-9a-f]{32}")
"""An id as the daemon makes it, and the name of the run's folder."""

WAITING = "waiting"
"""The status of a run that waits in the queue: it is charged for nothing yet."""


class RunSpec(HeldSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a run was asked to do, resolved; `rootfs` is an absolute path on the host."""

    id: str
    namespace: str
    uid: int
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    rootfs: str
    rootfs_readonly: bool
    created_wall_ms: int
    template: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    stdin: bool = False
    require: tuple[str, ...] = ()
    network: str = NO_NETWORK
    publish: tuple[str, ...] = ()


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
            keep_room(folder)
            write_durably(spec_path(folder), msgspec.json.encode(spec))
            sync_folder(self.root)
        except OSError as error:
            self.discard(spec.id)
            raise CommitFailed(
                f"the run's spec can't be stored: {error.strerror}",
                hint="look at the disk of the state directory: df, dmesg",
            ) from error

    def save_exit(self, run_id: str, record: RunExit) -> None:
        """Record how the run ended, durably; one that is recorded already stays as it is."""
        save_exit(f"{self.root}/{run_id}", record)

    def spec(self, run_id: str) -> RunSpec | None:
        """Return the run's spec, or None if there is no such run."""
        return decode(spec_path(f"{self.root}/{run_id}"), RunSpec)

    def exit(self, run_id: str) -> RunExit | None:
        """Return how the run ended, or None while it has not."""
        return decode(exit_path(f"{self.root}/{run_id}"), RunExit)

    def has_ended(self, run_id: str) -> bool:
        """Tell whether there is an exit record, be it one that can't be read."""
        return os.path.lexists(exit_path(f"{self.root}/{run_id}"))

    def discard(self, run_id: str) -> None:
        """Remove all of the run; one that is not there is fine."""
        shutil.rmtree(f"{self.root}/{run_id}", ignore_errors=True)

    def names(self) -> Iterator[str]:
        """Yield the id of every run, in no order; no other name, such as lost+found."""
        with os.scandir(self.root) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # discarded a moment ago
                    if RUN_ID.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                        yield entry.name

    def ids_with(self, prefix: str) -> list[str]:
        """Return every id that begins with *prefix*, by the names of the folders alone."""
        return [name for name in os.listdir(self.root) if name.startswith(prefix)]


def wall_ms() -> int:
    """Return the wall clock in milliseconds since the epoch, for display."""
    return time.time_ns() // 1_000_000
