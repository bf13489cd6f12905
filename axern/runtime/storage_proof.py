"""Proves on this very host that the filestore limits what is written, by hand and by sandboxes.

Each proof is a real attempt to write more than the limit, with a project id that no lane has, and
begins by burying what a proof that was cut short has left. Whoever calls keeps others out.
Source: docs/decisions/0018-storage.md.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from axern.errors import CapabilityMissing, FilestoreError, RuntimeFailure
from axern.host import filestore, project_quota
from axern.host.project_quota import Limits
from axern.runtime import monitor, self_test, storage, teardown
from axern.runtime.storage import PROOF_PROJECT, SELF_TEST_PROJECT, Quota
from ledger.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.host.project_quota import Project
    from axern.runtime.layout import Layout, SandboxPaths
    from axern.runtime.oci import SandboxSpec

LIMIT_BYTES = 8 * 1024**2
SLACK_BYTES = 1024**2
"""How far from its limit a sandbox may be stopped; XFS charges some blocks of its own over it."""
TIMEOUT_S = 30.0
_CHUNK_BYTES = 64 * 1024
_INODES = 1024
_CHUNKS = 2 * LIMIT_BYTES // _CHUNK_BYTES
_FILL = f"dd if=/dev/zero of=/fill bs={_CHUNK_BYTES} count={_CHUNKS} 2>/dev/null"
_STOPPED = b"stopped by it"
_SCRIPT = f"{_FILL} || echo {_STOPPED.decode()}; echo over; sleep 1000"
_OVER = b"over"
"""It stays until it is buried: what a runsc sandbox has written goes with its last process."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_POLL_S = 0.02


def prove_quota(layout: Layout) -> str:
    """Write over a limit on the filestore as root, who obeys no other limit, and return the proof.

    Raises:
        CapabilityMissing: There are no project quotas, or the write was not stopped.
        HostError: It could not be told.
    """
    project_quota.require_enforced(layout.filestore)
    limit = Limits(LIMIT_BYTES, _INODES)
    with _folder(layout, "probe-quota") as folder:
        project_quota.set_limits(folder, PROOF_PROJECT, limit)
        project_quota.set_project(folder, PROOF_PROJECT)
        stopped = _overfill(f"{folder}/fill")
        _require_held("a write by root", project_quota.read(folder, PROOF_PROJECT), stopped=stopped)
    return f"a write over {format_bytes(LIMIT_BYTES)} was stopped"


def _overfill(path: str) -> bool:
    """Write twice the limit; return whether something has stopped it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(_CHUNKS):
            os.write(fd, bytes(_CHUNK_BYTES))
    except OSError as err:
        if err.errno not in _FULL:
            raise FilestoreError(
                f"cannot write {path}", syscall="write", path=path, errno=err.errno
            ) from err
        return True
    finally:
        os.close(fd)
    return False


def _require_held(what: str, found: Project | None, *, stopped: bool) -> int:
    """Return the bytes at which *found* was stopped by its limit, and by nothing else.

    Raises:
        CapabilityMissing: It was not stopped, or has more than its limit.
        FilestoreError: It was stopped long before, which says nothing of the limit.
    """
    used = found.used_bytes if found else 0
    if not stopped or used > LIMIT_BYTES + SLACK_BYTES:
        how = "has" if stopped else "was not stopped, and has"
        raise CapabilityMissing(
            f"{what} with a limit of {LIMIT_BYTES} bytes {how} {used} bytes",
            syscall="write",
            hint="report this with the versions of the kernel and the runtime",
        )
    if used < LIMIT_BYTES - SLACK_BYTES:
        raise FilestoreError(
            f"{what} with a limit of {LIMIT_BYTES} bytes was stopped at {used}: there is no room "
            "on the filestore to try it",
            syscall="write",
            hint="axern run prune, axern template remove, or a larger disk",
        )
    return used


@contextlib.contextmanager
def _folder(layout: Layout, name: str) -> Iterator[str]:
    """Yield a new folder on the filestore; before and afterwards nothing of it is there."""
    path = f"{layout.filestore}/{name}"
    _remove(path)
    filestore.create_folder(path, mode=0o700)
    try:
        yield path
    finally:
        _remove(path)


def _remove(path: str) -> None:
    project = storage.found_on(path)
    filestore.remove_tree(path)
    if project is not None:
        storage.clear(os.path.dirname(path), project)


def prove(runtime: str, layout: Layout) -> str:
    """Let a sandbox of *runtime* write more than its limit, and return how it was stopped.

    Raises:
        CapabilityMissing: It was not stopped, or ended well.
        AxernError: It could not be told, such as for a runtime that does not answer.
    """
    spec = _spec(runtime, layout)
    teardown.bury(runtime, layout, spec.sandbox_id, SELF_TEST_PROJECT)
    with self_test.running(spec, layout) as paths:
        told = _wait_told(runtime, paths)
        found = project_quota.read(layout.filestore, SELF_TEST_PROJECT)
    used = _require_held(f"a {runtime} sandbox", found, stopped=_STOPPED in told)
    return f"stopped at {format_bytes(used)} of {format_bytes(LIMIT_BYTES)}"


def _wait_told(runtime: str, paths: SandboxPaths) -> bytes:
    """Return the log once the sandbox has said that its attempt is over, or has ended."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        ended = monitor.read_exit(paths) is not None
        with open(paths.log, "rb") as file:
            told = file.read()
        if _OVER in told:
            return told
        if ended or time.monotonic() > deadline_s:
            raise RuntimeFailure(
                f"a {runtime} sandbox that should write more than its limit "
                f"{'ended' if ended else f'did not come to it in {TIMEOUT_S:g} s'}"
            )
        time.sleep(_POLL_S)


def _spec(runtime: str, layout: Layout) -> SandboxSpec:
    argv = ("sh", "-c", _SCRIPT)
    return replace(
        self_test.spec_of(runtime, layout, f"probe-storage-{runtime}", argv),
        quota=Quota(SELF_TEST_PROJECT, LIMIT_BYTES),
    )
