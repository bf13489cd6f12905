"""The use cases, one method each: who may do what, and which ledger operations that takes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

import axern
from axern.api.views import node_view, reservation_view, resources_view
from axern.daemon import streams
from axern.daemon.lives import USER_CANCELLED
from axern.daemon.observer import LIMIT_CAPABILITIES, PIDS_CAPABILITY
from axern.daemon.runs import RunExit, RunSpec
from axern.failpoint import failpoint
from axern.host import process
from axern.runtime import template
from ledger import transitions
from ledger.admission import AdmissionPolicy
from ledger.errors import (
    AxernError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StateConflict,
)
from ledger.reservation import (
    EXTERNAL,
    RESERVED,
    RUN,
    LivenessPolicy,
    Owner,
    Reservation,
    liveness,
)
from ledger.spec import Defaults, ResolvedSpec, ResourceSpec, resolve
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from axern.api.protocol import Peer
    from axern.api.schema import HeartbeatRequest, ReserveRequest, RunRequest
    from axern.daemon.lives import Lives
    from axern.daemon.observer import Observer
    from axern.daemon.runs import RunStore
    from axern.daemon.watcher import FolderWatcher
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.heartbeats import Heartbeats

Json = dict[str, Any]
_SHORTEST_PREFIX = 4
_ID_LENGTH = 32


class Service:
    """What the API can ask for; every method takes the peer that asks."""

    def __init__(
        self,
        *,
        settings: Settings,
        layout: Layout,
        committer: Committer,
        runs: RunStore,
        lives: Lives,
        observer: Observer,
        heartbeats: Heartbeats,
        watcher: FolderWatcher,
        clock: Callable[[], Now],
        node_id: str,
    ) -> None:
        self._settings = settings
        self._layout = layout
        self._committer = committer
        self._runs = runs
        self._lives = lives
        self._observer = observer
        self._heartbeats = heartbeats
        self._watcher = watcher
        self._clock = clock
        self._node_id = node_id
        self.closing = asyncio.Event()
        self.liveness_policy = LivenessPolicy(settings.stale_after_ms, settings.legacy_window_ms)
        self._admission_policy = AdmissionPolicy(
            settings.entry_cap, settings.namespace_entry_cap, settings.facts_stale_after_ms
        )
        self._defaults = Defaults(
            settings.default_request_cpu_milli,
            settings.default_request_memory_bytes,
            settings.default_limit_storage_bytes,
        )

    async def run(self, body: RunRequest, peer: Peer) -> Json:
        """Admit and launch a run; answers once its reservation is durable.

        Raises:
            AdmissionRefused: It does not fit; nothing of it is kept.
            PermissionDenied: A root file system of the caller's own, from somebody not root.
            InvalidArgument: Resources that contradict each other, an unknown template.
        """
        runtime = body.runtime_class or self._settings.default_runtime
        rootfs, template_name = self._rootfs(body, peer)
        spec = body.spec()
        resolved = resolve(
            spec, self._defaults, rootfs_readonly=body.rootfs_readonly, runtime=runtime
        )
        digest = _digest(body.model_dump(mode="json"))
        state = self._committer.state
        granted = transitions.granted_id(state, peer.uid, body.request_id, digest)
        if granted is not None and self._runs.spec(granted) is not None:
            return self.run_view(granted)
        run_id = secrets.token_hex(_ID_LENGTH // 2)
        run_spec = RunSpec(
            id=run_id,
            namespace=body.namespace,
            uid=peer.uid,
            command=tuple(body.command),
            env=body.env,
            cwd=body.cwd,
            rootfs=rootfs,
            template=template_name,
            rootfs_readonly=body.rootfs_readonly,
            runtime_class=runtime,
            requests=resources_view(resolved.requests),
            limits=resources_view(resolved.limits),
            enforced=self._enforced,
            created_wall_ms=self._clock().wall_ms,
        )
        await asyncio.to_thread(self._runs.save_spec, run_spec)
        failpoint("launch.spec")
        proposal = transitions.Proposal(
            id=run_id,
            namespace=body.namespace,
            owner=Owner(RUN, peer.uid),
            spec=spec,
            resolved=resolved,
            digest=digest,
            enforced=self._enforced,
            runtime=runtime,
            requires=self._requires(spec, resolved, runtime),
            request_id=body.request_id,
            ttl_ms=body.ttl_ms,
        )
        try:
            reservation = await self._reserve(proposal)
        except AxernError:
            await asyncio.to_thread(self._runs.discard, run_id)
            raise
        failpoint("launch.reserved")
        if reservation.id != run_id:
            await asyncio.to_thread(self._runs.discard, run_id)
        self._lives.begin(reservation.id)
        return self.run_view(reservation.id)

    def _rootfs(self, body: RunRequest, peer: Peer) -> tuple[str, str | None]:
        if body.rootfs is not None and body.template is not None:
            raise InvalidArgument("rootfs and template exclude each other: give one of them")
        if body.rootfs is not None:
            if peer.uid != 0:
                raise PermissionDenied(
                    "a root file system of your own is for root only",
                    hint="use --template; axern template list shows what there is",
                )
            if not os.path.isdir(body.rootfs):
                raise InvalidArgument(f"rootfs: {body.rootfs} is not a directory on this host")
            return body.rootfs, None
        name = body.template or self._settings.default_template
        found = template.find(self._layout.templates, name)
        if found is None:
            raise InvalidArgument(
                f"template: there is none named {name!r}", hint="axern template list shows all"
            )
        return found.rootfs, name

    @property
    def _enforced(self) -> bool:
        return self._settings.cgroup_enforcement == "required"

    def _requires(
        self, spec: ResourceSpec, resolved: ResolvedSpec, runtime: str
    ) -> tuple[str, ...]:
        """Return what the host must be able to do for this sandbox.

        A limit that somebody asked for must be enforced, whatever the configuration says; a
        defaulted one only where enforcement is required.
        """
        limits = resolved.limits if self._enforced else spec.limits
        keys = [f"runtime/{runtime}"]
        keys += [
            key for name, key in LIMIT_CAPABILITIES.items() if getattr(limits, name) is not None
        ]
        if self._enforced:
            keys.append(PIDS_CAPABILITY)
        return tuple(keys)

    async def _reserve(self, proposal: transitions.Proposal) -> Reservation:
        operation = partial(
            transitions.reserve,
            proposal=proposal,
            facts=self._observer.facts,
            now=self._clock(),
            policy=self._admission_policy,
        )
        reservation: Reservation = await self._committer.submit(operation)
        return reservation

    async def reserve(self, body: ReserveRequest, peer: Peer) -> Json:
        """Hold resources for an external owner; the answer has the lease's token, once.

        Raises:
            AdmissionRefused: It does not fit.
            InvalidArgument: Resources that contradict each other, or an owner that does not live.
        """
        spec = body.spec()
        resolved = resolve(spec, self._defaults, rootfs_readonly=False, runtime="runc")
        owner_process = None
        if body.owner_process is not None:
            owner_process = process.identify(body.owner_process.pid)
            if owner_process is None:
                raise InvalidArgument(
                    f"owner_process.pid: no process has the number {body.owner_process.pid}"
                )
        token = secrets.token_urlsafe(16)
        reservation = await self._reserve(
            transitions.Proposal(
                id=secrets.token_hex(_ID_LENGTH // 2),
                namespace=body.namespace,
                owner=Owner(EXTERNAL, peer.uid, body.name),
                spec=spec,
                resolved=resolved,
                digest=_digest(body.model_dump(mode="json")),
                enforced=False,
                request_id=body.request_id,
                owner_process=owner_process,
                ttl_ms=body.ttl_ms or self._settings.lease_ttl_ms,
                max_lifetime_ms=body.max_lifetime_ms or self._settings.lease_max_lifetime_ms,
                token_sha256=_sha256(token),
            )
        )
        self._heartbeats.beat(reservation.id, self._clock())
        made = reservation.token_sha256 == _sha256(token)
        return {"reservation": self.view(reservation), "token": token if made else None}

    async def heartbeat(self, reservation_id: str, body: HeartbeatRequest) -> Json:
        """Note that a lease's owner lives, and renew its deadline where asked.

        Raises:
            PermissionDenied: The token is not the lease's.
            NotFound: It has ended.
        """
        reservation = self._committer.state.reservation(reservation_id)
        expected = reservation.token_sha256 or ""
        if not secrets.compare_digest(_sha256(body.token), expected):
            raise PermissionDenied(f"the token does not belong to reservation {reservation_id}")
        now = self._clock()
        if body.ttl_ms is not None:
            operation = partial(
                transitions.renew, reservation_id=reservation_id, ttl_ms=body.ttl_ms, now=now
            )
            reservation = await self._committer.submit(operation)
        self._heartbeats.beat(reservation_id, now)
        return {"reservation": self.view(reservation)}

    async def release(self, reservation_id: str, peer: Peer) -> Json:
        """End a lease that no sandbox belongs to.

        Raises:
            StateConflict: Axern runs something under it.
            PermissionDenied: It is somebody else's.
            NotFound: It has ended.
        """
        reservation = self._committer.state.reservation(self.resolve_id(reservation_id))
        _require_owner(reservation.owner.uid, peer, reservation.id)
        if reservation.is_sandbox:
            raise StateConflict(
                f"reservation {reservation.id} belongs to a run that is {reservation.phase}",
                hint=f"end it with: axern run cancel {reservation.id}",
            )
        operation = partial(
            transitions.release,
            reservation_id=reservation.id,
            evidence="released by its owner",
            by=f"uid:{peer.uid}",
        )
        released: Reservation = await self._committer.submit(operation)
        self._heartbeats.forget(released.id)
        return {"reservation": self.view(released)}

    def cancel(self, run_id: str, grace_ms: int | None, peer: Peer) -> Json:
        """Ask a run to end: SIGTERM, the grace, SIGKILL. One that has ended stays as it is.

        Raises:
            PermissionDenied: It is somebody else's.
            NotFound: No run has this id.
        """
        found = self.resolve_id(run_id)
        spec = self._spec(found)
        _require_owner(spec.uid, peer, found)
        grace = self._settings.stop_grace_ms if grace_ms is None else grace_ms
        self._lives.stop(found, USER_CANCELLED, f"uid:{peer.uid}", grace)
        return self.run_view(found)

    def reservations(self, namespace: str | None, phase: str | None) -> list[Json]:
        """Return every reservation, oldest first, of one namespace or phase if named."""
        return [
            self.view(reservation)
            for reservation in self._committer.state.reservations()
            if namespace in (None, reservation.namespace) and phase in (None, reservation.phase)
        ]

    def reservation(self, reservation_id: str) -> Json:
        """Return one reservation; raises NotFound."""
        found = self._committer.state.reservation(self.resolve_id(reservation_id))
        return self.view(found)

    def view(self, reservation: Reservation) -> Json:
        """Return the JSON object of *reservation* with its liveness of now."""
        now = self._clock()
        beat = self._heartbeats.beats.get(reservation.id)
        standing = liveness(reservation, beat, now, self.liveness_policy)
        return reservation_view(reservation, standing, now, beat)

    def list_runs(self, namespace: str | None, status: str | None) -> list[Json]:
        """Return every run that is kept, newest first, of one namespace or status if named."""
        views = (self.run_view(run_id) for run_id in self._run_ids())
        return [
            view
            for view in views
            if namespace in (None, view["namespace"]) and status in (None, view["status"])
        ]

    def run_view(self, run_id: str) -> Json:
        """Return the JSON object of a run; raises NotFound."""
        spec = self._spec(run_id)
        record = self._runs.exit(run_id)
        row = self._committer.state.find_reservation(run_id)
        return _run_view(spec, row, record)

    def stream(self, run_id: str, offset: int, *, wait: bool) -> AsyncIterator[bytes]:
        """Return the run's events from *offset* on; raises NotFound."""
        found = self.resolve_id(run_id)
        self._spec(found)

        def phase() -> str | None:
            row = self._committer.state.find_reservation(found)
            return row.phase if row else None

        source = streams.Source(
            self._layout.sandbox(found),
            self._lives.find(found),
            phase,
            partial(self.run_view, found),
        )
        return streams.follow(source, self._watcher, self.closing, offset=offset, wait=wait)

    def node(self) -> Json:
        """Return capacity, holders, capabilities and runtimes."""
        return {
            "node_id": self._node_id,
            "version": axern.__version__,
            "cgroup_enforcement": self._settings.cgroup_enforcement,
            **node_view(self._committer.state),
            "capabilities": [
                {
                    "key": item.key,
                    "status": "present" if item.present else "absent",
                    "message": item.message,
                }
                for item in self._observer.capabilities
            ],
            "runtimes": [
                {"name": program.name, "path": program.path, "version": program.version}
                for program in self._observer.programs
            ],
        }

    def health(self) -> Json:
        """Return that the daemon answers, and at which generation."""
        return {"status": "ok", "generation": self._committer.state.generation}

    def templates(self) -> list[Json]:
        """Return the root file systems that anybody may use."""
        return [
            {"name": found.name, "path": found.rootfs}
            for found in template.list_all(self._layout.templates)
        ]

    @property
    def generation(self) -> int:
        """Return the generation of the state that answers are read from."""
        return self._committer.state.generation

    def resolve_id(self, text: str) -> str:
        """Return the whole id that *text*, an id or a prefix of at least four digits, names.

        Raises:
            NotFound: None begins with it.
            InvalidArgument: Too short, or several begin with it.
        """
        if len(text) == _ID_LENGTH:
            return text
        if len(text) < _SHORTEST_PREFIX or not set(text) <= set("0123456789abcdef"):
            raise InvalidArgument(
                f"{text!r} is no id: it must have {_SHORTEST_PREFIX} to {_ID_LENGTH} "
                "hexadecimal digits"
            )
        found = {row.id for row in self._committer.state.reservations() if row.id.startswith(text)}
        found.update(run_id for run_id in self._run_ids() if run_id.startswith(text))
        if not found:
            raise NotFound(f"no run or reservation has an id that begins with {text}")
        if len(found) > 1:
            raise InvalidArgument(f"{len(found)} ids begin with {text}: give more of it")
        return found.pop()

    def _run_ids(self) -> Iterator[str]:
        return self._runs.ids()

    def _spec(self, run_id: str) -> RunSpec:
        spec = self._runs.spec(run_id) if len(run_id) == _ID_LENGTH and run_id.isalnum() else None
        if spec is None:
            raise NotFound(f"no run has the id {run_id}", hint="list them with: axern run list")
        return spec


def _require_owner(uid: int, peer: Peer, what: str) -> None:
    if peer.uid not in (0, uid):
        raise PermissionDenied(f"{what} belongs to uid {uid}, and you are uid {peer.uid}")


def _digest(body: Json) -> str:
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _run_view(spec: RunSpec, row: Reservation | None, record: RunExit | None) -> Json:
    status = record.status if record else row.phase if row else RESERVED
    started_ms = record.started_wall_ms if record else row.started_wall_ms if row else None
    return {
        "id": spec.id,
        "namespace": spec.namespace,
        "status": status,
        "exit_code": record.exit_code if record else None,
        "cli_exit_code": record.cli_exit_code if record else None,
        "diagnostic_code": record.diagnostic_code if record else None,
        "message": record.message if record else None,
        "command": list(spec.command),
        "runtime_class": spec.runtime_class,
        "template": spec.template,
        "rootfs": spec.rootfs,
        "rootfs_readonly": spec.rootfs_readonly,
        "requests": spec.requests,
        "limits": spec.limits,
        "enforced": spec.enforced,
        "created_at": format_rfc3339(spec.created_wall_ms),
        "started_at": format_rfc3339(started_ms) if started_ms else None,
        "finished_at": format_rfc3339(record.finished_wall_ms) if record else None,
        "owner": {"uid": spec.uid},
    }
