"""One import of a template: the child that does it, followed, ended, and cleaned up after."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from axern.errors import FilestoreError, HostError
from axern.host import filestore
from axern.runtime.command import ENVIRONMENT
from ledger.errors import CODES, AxernError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from axern.runtime.template_import import Job

Json = dict[str, Any]

_PROGRAM = (sys.executable, "-I", "-m", "axern.runtime.template_import")
_KEPT_STDERR_BYTES = 4096
_SILENCE_S = 15.0
_REMOVE_ATTEMPTS = 50
_REMOVE_PAUSE_S = 0.1

_log = logging.getLogger(__name__)


class ImportFailed(AxernError):
    """The child refused the source or failed; the code is the one that it gave."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error["message"]), hint=error.get("hint"))
        self.code = str(error["code"]) if error["code"] in CODES else "internal_error"


async def follow(job: Job, closing: asyncio.Event) -> AsyncGenerator[Json | None, None]:
    """Do *job* in a child and yield how far it is; returns once all of it is on the disk.

    None says that it goes on in silence, such as while a slow disk is written.

    However this ends, the child and all it has started are dead by then.

    Raises:
        ImportFailed: The child says why.
        HostError: It died without a word, or *closing* was set.
    """
    process = await asyncio.create_subprocess_exec(
        *_PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101 - pipes
    stop = asyncio.create_task(closing.wait())
    line = asyncio.create_task(process.stdout.readline())
    try:
        process.stdin.write(job.encode())
        while True:
            first = asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait((line, stop), timeout=_SILENCE_S, return_when=first)
            if stop in done:
                raise HostError("the daemon stops; the import is cancelled", syscall="import")
            if not done:
                yield None
                continue
            told = _decoded(line.result())
            line = asyncio.create_task(process.stdout.readline())
            if told is None:
                raise await _died(process)
            if "error" in told:
                raise ImportFailed(told["error"])
            if "done" in told:
                return
            yield told
    finally:
        stop.cancel()
        line.cancel()
        await asyncio.shield(asyncio.ensure_future(_end(process)))


def _decoded(line: bytes) -> Json | None:
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(line)
        if isinstance(found, dict):
            return found
    return None


async def _died(process: asyncio.subprocess.Process) -> HostError:
    assert process.stderr is not None  # noqa: S101 - it is a pipe
    said = (await process.stderr.read(_KEPT_STDERR_BYTES)).decode(errors="replace").strip()
    code = await process.wait()
    _log.error("an import of a template ended with %s: %s", code, said)
    return HostError(f"the import ended with {code} and did not say why", syscall="import")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the child's whole session: the tools that it runs never leave it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


async def discard(folder: str) -> None:
    """Remove the staging *folder*; one that is not there is fine.

    What was killed a moment ago may still write its last file, so that this is tried again.
    """
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            await asyncio.to_thread(filestore.remove_tree, folder)
            return
        except FilestoreError as error:
            if attempt == _REMOVE_ATTEMPTS - 1:
                _log.error("%s; the next daemon tries again", error)
                return
        await asyncio.sleep(_REMOVE_PAUSE_S)
