"""Execution leases: who may steer which process that was added to a sandbox, until when.

One is made for each such process before it starts, names its sandbox, the attempt at it (which
monitor watched) and the kind of use, and ends with the process, with its sandbox, or when it is
revoked. Its token is told once, to who asked; here is only the hash. The leases of a sandbox lie in
its folder, so that they outlive the daemon and go with the sandbox, and none is in the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from axern.host.cgroup import Cgroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.runtime.layout import SandboxPaths
    from ledger.reservation import ProcessIdentity

EXEC_ID = re.compile(r"[0-9a-f]{16}")
EXEC, COPY = "exec", "copy"
KINDS = (EXEC, COPY)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to one added process: bound to sandbox, attempt and kind, held by *uid*."""

    exec_id: str
    sandbox_id: str
    attempt: str
    kind: str
    uid: int
    token_sha256: str
    terminal: bool
    created_wall_ms: int
    revoked_by: int | None = None

    def opens(self, token: str) -> bool:
        """Tell whether *token* is the one that was told."""
        return hmac.compare_digest(self.token_sha256, hashed(token))


@dataclass(frozen=True, slots=True)
class Place:
    """Where everything of one added process is, its helpers in `group`; all may be absent."""

    exec_id: str
    folder: str
    group: Cgroup
    process: str
    pid_file: str
    inner_pid_file: str
    monitor_pid_file: str
    exit_file: str
    lease: str


def place(paths: SandboxPaths, exec_id: str) -> Place:
    """Derive the place of one added process.

    Raises:
        ValueError: The id could not be a plain name.
    """
    if EXEC_ID.fullmatch(exec_id) is None:
        raise ValueError(f"id {exec_id!r} does not match {EXEC_ID.pattern}")
    folder = f"{paths.execs}/{exec_id}"
    return Place(
        exec_id=exec_id,
        folder=folder,
        group=paths.exec_groups.child(exec_id),
        process=f"{folder}/process.json",
        pid_file=f"{folder}/pid",
        inner_pid_file=f"{folder}/inner.pid",
        monitor_pid_file=f"{folder}/monitor.pid",
        exit_file=f"{folder}/{paths.sandbox_id}",
        lease=f"{folder}/lease.json",
    )


def places(paths: SandboxPaths) -> list[Place]:
    """Return the place of every added process that is known of, in no order."""
    try:
        names = os.listdir(paths.execs)
    except FileNotFoundError:
        return []
    return [place(paths, name) for name in names if EXEC_ID.fullmatch(name)]


def held(found: Iterable[Place]) -> list[tuple[Lease, Place]]:
    """Return those of *found* that have a lease, with it, oldest first."""
    pairs = [(lease, each) for each in found if (lease := read(each)) is not None]
    return sorted(pairs, key=lambda pair: pair[0].created_wall_ms)


def attempt_of(monitor: ProcessIdentity) -> str:
    """Return what tells one attempt at a sandbox from any other."""
    return f"{monitor.boot_id}:{monitor.pid}:{monitor.start_ticks}"


def hashed(token: str) -> str:
    """Return what is kept of *token*."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def write(where: Place, lease: Lease) -> None:
    """Keep *lease* through the daemon's death, in one step; raise OSError if it can't be."""
    temporary = f"{where.lease}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        json.dump(asdict(lease), file)
    os.rename(temporary, where.lease)


def read(where: Place) -> Lease | None:
    """Return the lease at *where*, or None if there is none that makes sense."""
    try:
        with open(where.lease, encoding="ascii") as file:
            return Lease(**json.load(file))
    except (FileNotFoundError, ValueError, TypeError):
        return None
