"""The use cases of processes that are added to a running sandbox: begin, wait, signal, revoke.

Who has launched a run, and root, may add to it. What is begun is held by an execution lease
(`axern.runtime.exec_lease`); its token opens what comes after, whoever shows it. The daemon keeps
nothing of a process that runs: all there is to know lies in the sandbox's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from axern.daemon import launcher
from axern.errors import HostError
from axern.runtime import exec_lease, execution
from axern.runtime.exec_lease import Lease, Place, attempt_of
from axern.runtime.outcome import OWN_FAILURE, outcome_of
from ledger import rights
from ledger.errors import AxernError, NotFound, StateConflict
from ledger.reservation import RUNNING
from ledger.rights import Thing
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    from axern.api.messages import Peer
    from axern.api.schema import ExecRequest
    from axern.daemon.parts import Json, Parts
    from axern.daemon.runs import RunSpec
    from axern.runtime.execution import End
    from axern.runtime.oci import SandboxSpec
    from ledger.reservation import Reservation

MOST_OF_A_SANDBOX = 64
"""Added processes of one sandbox at a time; and of those that have ended, unheard."""
_WORKERS = 4
_WAIT_S = 20.0
"""A wait is answered by then, if only with what is known so far."""
_REMEMBERED = 256
_KILLED = 128 + signal.SIGKILL

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """Which added process of which run somebody asks for, with the token of its lease or none."""

    run_id: str
    exec_id: str
    peer: Peer
    token: str | None


class ExecService:
    """What can be done with processes that are added to running sandboxes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        # A start may take long, and a question is answered beside it.
        self._starts = ThreadPoolExecutor(_WORKERS, "exec")
        self._quick = ThreadPoolExecutor(_WORKERS, "exec-host")
        # What was heard of last, so that a repeated question has the same answer.
        self._over: OrderedDict[str, tuple[Lease, End]] = OrderedDict()

    async def begin(
        self, run_id: str, body: ExecRequest, peer: Peer
    ) -> tuple[Json, tuple[FileIO, ...]]:
        """Add a process to a run; return it with its token, and the client's ends of its streams.

        One that can't be started is no error: the answer says why, as it does for a run.

        Raises:
            NotFound: No run has this id.
            PermissionDenied: It is somebody else's.
            StateConflict: It is not running, or has as many processes added as it may.
        """
        row, spec = self._running(run_id, peer)
        token = secrets.token_hex(32)
        lease = Lease(
            exec_id=secrets.token_hex(8),
            sandbox_id=row.id,
            attempt=_attempt(row),
            kind=body.kind,
            uid=peer.uid,
            token_sha256=exec_lease.hashed(token),
            terminal=body.terminal is not None,
            created_wall_ms=self._parts.clock().wall_ms,
        )
        size = (body.terminal.rows, body.terminal.columns) if body.terminal else None
        order = execution.Order(self._sandbox(spec, row, body), lease, body.stdin, size)
        try:
            ends = await self._start(order)
        except (AxernError, OSError) as error:
            if isinstance(error, StateConflict):
                raise
            return _failed(lease, error), ()
        view = _view(lease, None) | {"token": token, "descriptors": list(ends)}
        return view, tuple(ends.values())

    def _running(self, run_id: str, peer: Peer) -> tuple[Reservation, RunSpec]:
        found = self._parts.resolve_id(run_id)
        spec = self._parts.runs.spec(found)
        if spec is None:
            raise NotFound(f"no run has the id {run_id}", hint="list them with: axern run list")
        self._parts.require(rights.EXEC, peer, Thing(f"run {found}", spec.uid, spec.namespace))
        row = self._parts.ledger.state.find_reservation(found)
        if row is None or row.phase != RUNNING or row.monitor is None:
            what = row.phase if row else "over"
            raise StateConflict(
                f"run {found} is {what}, so that nothing can be added to it",
                hint=f"see: axern run get {found}",
            )
        return row, spec

    def _sandbox(self, spec: RunSpec, row: Reservation, body: ExecRequest) -> SandboxSpec:
        """Return the run's own spec with the words of *body* in it."""
        of_run = launcher.sandbox_spec(spec, row, self._parts.layout)
        return replace(
            of_run,
            argv=tuple(body.command),
            env=tuple((spec.env | body.env).items()),
            cwd=body.cwd or spec.cwd,
            user=body.user or spec.user,
        )

    async def _start(self, order: execution.Order) -> dict[str, FileIO]:
        """Start it in a thread; if nobody waits for it any more it is killed."""
        layout, settings = self._parts.layout, self._parts.settings
        sandbox_id = order.spec.sandbox_id
        await self._do(self._make_room, sandbox_id)
        call = partial(execution.begin, order, layout, timeout_s=settings.runtime_timeout_ms / 1000)
        starting = asyncio.get_running_loop().run_in_executor(self._starts, call)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(partial(self._let_go, order))
            raise

    def _let_go(self, order: execution.Order, starting: asyncio.Future[dict[str, FileIO]]) -> None:
        if starting.cancelled() or starting.exception() is not None:
            return
        for file in starting.result().values():
            file.close()
        spec, exec_id = order.spec, order.lease.exec_id
        self._starts.submit(
            execution.kill, spec.runtime, self._parts.layout, spec.sandbox_id, exec_id
        )

    def _make_room(self, sandbox_id: str) -> None:
        """Forget the oldest that have ended unheard, where there are too many.

        Raises:
            StateConflict: As many as may be still run.
        """
        paths = self._parts.layout.sandbox(sandbox_id)
        found = exec_lease.places(paths)
        if len(found) < MOST_OF_A_SANDBOX:
            return
        over = [place for _, place in exec_lease.held(found) if os.path.exists(place.exit_file)]
        if not over:
            raise StateConflict(
                f"{len(found)} processes are added to run {sandbox_id} already",
                hint="end one of them: axern run revoke",
            )
        for place in over[: len(found) - MOST_OF_A_SANDBOX + 1]:
            execution.forget(place)

    async def wait(self, asked: Asked) -> Json:
        """Return how the process is, once it has ended or a while has passed.

        Raises:
            NotFound: It is not known, or no longer.
            PermissionDenied: It is somebody else's, and the token is another one's.
        """
        remembered = self._over.get(asked.exec_id)
        if remembered is not None and remembered[0].sandbox_id == self._parts.resolve_id(
            asked.run_id
        ):
            self._require(remembered[0], asked)
            return _view(*remembered)
        lease, place = self._find(asked)
        await self._until_ended(place)
        end = await self._do(execution.ended, place)
        if end is None:
            return _view(lease, None)
        if end.exit_code is None and self._is_over(lease):
            end = execution.End(_KILLED)  # with all that was in its sandbox
        self._over[lease.exec_id] = (exec_lease.read(place) or lease, end)
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        with contextlib.suppress(HostError, OSError):  # the sandbox's burial does it, too
            await self._do(execution.forget, place)
        return _view(*self._over[lease.exec_id])

    async def _until_ended(self, place: Place) -> None:
        pidfd = await self._do(execution.open_monitor, place)
        if pidfd is None:
            return
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(pidfd, gone.set)
        try:
            async with asyncio.timeout(_WAIT_S):
                await gone.wait()
        except TimeoutError:
            return
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    def _is_over(self, lease: Lease) -> bool:
        row = self._parts.ledger.state.find_reservation(lease.sandbox_id)
        return row is None or row.phase != RUNNING

    async def signal(self, asked: Asked, name: str) -> Json:
        """Send the process the signal *name*; one that has ended is not sent any.

        Raises:
            NotFound, PermissionDenied: As for `wait`.
        """
        lease, place = self._find(asked)
        await self._send(lease, signal.Signals[f"SIG{name}"])
        return _view(lease, await self._do(execution.ended, place))

    async def revoke(self, asked: Asked) -> Json:
        """End the lease: its process is killed, and nobody gets at it by its token any more.

        Raises:
            NotFound, PermissionDenied: As for `wait`.
        """
        lease, place = self._find(asked)
        revoked = replace(lease, revoked_by=asked.peer.uid)
        await self._do(exec_lease.write, place, revoked)
        await self._send(revoked, signal.SIGKILL)
        return _view(revoked, await self._do(execution.ended, place))

    async def _send(self, lease: Lease, number: int) -> None:
        runtime = self._parts.ledger.state.reservation(lease.sandbox_id).runtime or ""
        layout = self._parts.layout
        call = (runtime, layout, lease.sandbox_id, lease.exec_id, number)
        await self._do(execution.send, *call)

    async def of_run(self, run_id: str) -> list[Json]:
        """Return what is added to a run and has not ended, oldest first."""
        paths = self._parts.layout.sandbox(run_id)
        leases = await self._do(execution.running, paths)
        return [_view(lease, None) for lease in leases]

    def _find(self, asked: Asked) -> tuple[Lease, Place]:
        found, exec_id = self._parts.resolve_id(asked.run_id), asked.exec_id
        with contextlib.suppress(ValueError):
            place = exec_lease.place(self._parts.layout.sandbox(found), exec_id)
            lease = exec_lease.read(place)
            row = self._parts.ledger.state.find_reservation(found)
            if lease is not None and (row is None or lease.attempt == _attempt(row)):
                self._require(lease, asked)
                return lease, place
        raise NotFound(f"run {found} has no added process {exec_id[:32]!r}, or no longer")

    def _require(self, lease: Lease, asked: Asked) -> None:
        """Raise PermissionDenied unless who asks may steer it: by what they are, or its token."""
        if asked.token is not None and lease.revoked_by is None and lease.opens(asked.token):
            self._parts.require(rights.STEER, asked.peer)
            return
        spec = self._parts.runs.spec(lease.sandbox_id)
        owner, namespace = (spec.uid, spec.namespace) if spec else (None, None)
        name = f"process {lease.exec_id}"
        owned_by = lease.uid if asked.peer.uid == lease.uid else owner
        self._parts.require(rights.STEER, asked.peer, Thing(name, owned_by, namespace))

    async def _do(self, call: Callable[..., Result], *arguments: object) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._quick, partial(call, *arguments))


def _attempt(row: Reservation) -> str:
    return "" if row.monitor is None else attempt_of(row.monitor)


def _view(lease: Lease, end: End | None) -> Json:
    status = "running" if end is None else "ended"
    code = end.exit_code if end else None
    lost = end is not None and code is None
    return {
        "id": lease.exec_id,
        "kind": lease.kind,
        "status": status,
        "exit_code": code,
        "cli_exit_code": OWN_FAILURE if lost else code,
        "message": "nobody saw how it ended" if lost else None,
        "terminal": lease.terminal,
        "owner": {"uid": lease.uid},
        "revoked_by": None if lease.revoked_by is None else {"uid": lease.revoked_by},
        "created_at": format_rfc3339(lease.created_wall_ms),
    }


def _failed(lease: Lease, error: AxernError | OSError) -> Json:
    """Return what there is to know of one that was not started, and of whose fault it is."""
    how = outcome_of(error)
    told = {"status": "failed", "cli_exit_code": how.cli_exit_code, "message": how.message}
    return _view(lease, None) | told | {"token": None, "descriptors": []}
