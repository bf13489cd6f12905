"""The use cases of one run: admit and launch, cancel, show."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from functools import partial
from typing import TYPE_CHECKING

from axern.api.views import decision_view, resources_view
from axern.daemon import enforcement, network_choice
from axern.daemon.course import USER_CANCELLED
from axern.daemon.parts import ID_LENGTH, Json, Parts, digest_of
from axern.daemon.runs import WAITING, RunSpec
from axern.failpoint import failpoint
from axern.runtime import template
from axern.runtime.capability_table import NETWORK, gpu_key, required_by
from axern.runtime.record import RunExit
from ledger import rights, tickets, transitions
from ledger.errors import AxernError, InvalidArgument, NotFound
from ledger.limit_range import resolve
from ledger.reservation import RESERVED, RUN, Owner, Reservation
from ledger.spec import ResolvedSpec, ResourceSpec
from ledger.tables import BRIDGE, HOST_NETWORK, TICKETS
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.api.schema import ExplainRequest, RunRequest
    from ledger.tables import Ticket
    from ledger.tickets import Wish


class RunService:
    """What can be asked of a run; every change takes the peer that asks."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def run(self, body: RunRequest, peer: Peer, wish: Wish | None = None) -> Json:
        """Admit and launch a run; answers once its reservation is durable.

        With a *wish* it may wait, and then the answer has the id of its ticket, which is the run's.

        Raises:
            AdmissionRefused: It does not fit; nothing of it is kept.
            PermissionDenied: A root file system of the caller's own, from somebody not an admin.
            InvalidArgument: Resources that contradict each other, an unknown template.
        """
        rootfs, template_name = self._rootfs(body, peer)
        asked = self._proposal(body, peer)
        granted = self._granted(asked)
        if granted is not None and self._parts.runs.spec(granted) is not None:
            return self._told(granted, peer)
        run_spec = RunSpec(
            id=asked.id,
            namespace=body.namespace,
            uid=peer.uid,
            command=tuple(body.command),
            env=template.env_of(self._parts.layout.templates, template_name) | body.env,
            cwd=body.cwd,
            rootfs=rootfs,
            template=template_name,
            rootfs_readonly=body.rootfs_readonly,
            runtime_class=asked.runtime or "",
            requests=resources_view(asked.resolved.requests),
            limits=resources_view(asked.resolved.limits),
            enforced=self._parts.is_enforced,
            created_wall_ms=self._parts.clock().wall_ms,
            labels=body.labels,
            user=body.user,
            timeout_ms=body.timeout_ms,
            ttl_ms=body.ttl_ms,
            stdin=body.stdin,
            oom_kill_one=body.oom_kill_one,
            require=tuple(body.require),
            network=body.network,
            publish=tuple(body.publish),
            **enforcement.of_node(self._parts.settings),
        )
        return self._told(await self._admit(run_spec, asked, peer, wish), peer)

    async def explain(self, body: ExplainRequest, peer: Peer) -> Json:
        """Return how a run would be decided on now, and by what; nothing is changed.

        Raises:
            AxernError: What `run` would raise before it asks admission.
        """
        self._rootfs(body, peer)
        asked = self._proposal(body, peer)
        granted = self._granted(asked)
        decision = await self._parts.explain(asked, self._parts.grants.caller(peer))
        return decision_view(decision, asked.resolved, granted)

    def _proposal(self, body: RunRequest, peer: Peer) -> transitions.Proposal:
        """Return what *body* asks of the ledger.

        Raises:
            InvalidArgument: Resources that contradict each other.
        """
        runtime = body.runtime_class or self._parts.settings.default_runtime
        if body.network == HOST_NETWORK:
            self._parts.require(rights.RUN_HOST_NETWORK, peer)
        network = network_choice.of(body)
        spec = body.spec()
        resolved = self._resolved(body, runtime)
        return transitions.Proposal(
            id=secrets.token_hex(ID_LENGTH // 2),
            namespace=body.namespace,
            owner=Owner(RUN, peer.uid),
            spec=spec,
            resolved=resolved,
            digest=digest_of(body.model_dump(mode="json", exclude_defaults=True)),
            enforced=self._parts.is_enforced,
            runtime=runtime,
            requires=self._requires(spec, resolved, runtime, body),
            network=network,
            request_id=body.request_id,
            ttl_ms=body.ttl_ms,
            max_lifetime_ms=body.ttl_ms,
        )

    def _granted(self, asked: transitions.Proposal) -> str | None:
        """Return the id that the request id of *asked* stands for already."""
        state = self._parts.ledger.state
        return transitions.granted_id(state, asked.owner.uid, asked.request_id, asked.digest)

    def _told(self, run_id: str, peer: Peer) -> Json:
        if self._parts.ledger.state.row(TICKETS, run_id) is not None:
            return {"ticket_id": run_id}
        return {"run": self.view(run_id, peer)}

    async def _admit(
        self, spec: RunSpec, proposal: transitions.Proposal, peer: Peer, wish: Wish | None
    ) -> str:
        """Store *spec*, charge it, let it live; return the id, of an earlier run if it is a retry.

        A refusal leaves nothing behind.
        """
        runs = self._parts.runs
        await asyncio.to_thread(runs.save_spec, spec)
        failpoint("launch.spec")
        try:
            caller = self._parts.grants.caller(peer)
            if wish is None:
                row: Reservation | Ticket = await self._parts.reserve(proposal, caller)
            else:
                row = await self._parts.reserve_or_wait(proposal, wish, caller)
        except AxernError:
            await asyncio.to_thread(runs.discard, spec.id)
            raise
        failpoint("launch.reserved")
        if row.id != spec.id:
            # Whoever was granted it lets it live; by the time we are back it may have ended.
            await asyncio.to_thread(runs.discard, spec.id)
        elif isinstance(row, Reservation):
            self._parts.lives.begin(spec.id)
        return row.id

    def _resolved(self, body: RunRequest, runtime: str) -> ResolvedSpec:
        """Return what *body* asks for, within what its namespace allows."""
        return resolve(
            body.spec(),
            self._parts.defaults,
            self._parts.ledger.state.limit_range(body.namespace),
            rootfs_readonly=body.rootfs_readonly,
            runtime=runtime,
        )

    def _rootfs(self, body: RunRequest, peer: Peer) -> tuple[str, str | None]:
        if body.rootfs is not None and body.template is not None:
            raise InvalidArgument("rootfs and template exclude each other: give one of them")
        if body.rootfs is not None:
            self._parts.require(rights.RUN_ROOTFS, peer)
            self._require_apart(body.rootfs)
            if not os.path.isdir(body.rootfs):
                raise InvalidArgument(f"rootfs: {body.rootfs} is not a directory on this host")
            return body.rootfs, None
        name = body.template or self._parts.settings.default_template
        found = template.find(self._parts.layout.templates, name)
        if found is None:
            raise InvalidArgument(
                f"template: there is none named {name!r}", hint="axern template list shows all"
            )
        return found.rootfs, name

    def _require_apart(self, rootfs: str) -> None:
        """Refuse a root that holds Axern's own folders, or lies in those of its sandboxes."""
        root = os.path.realpath(rootfs)
        settings, layout = self._parts.settings, self._parts.layout
        around = [own for own in (settings.state_dir, settings.run_dir) if _is_below(own, root)]
        inside = [own for own in (layout.sandboxes, layout.filestore) if _is_below(root, own)]
        if around or inside:
            raise InvalidArgument(
                f"rootfs: {rootfs} and {(around + inside)[0]} lie in each other",
                hint="give a folder that was made to be a root file system",
            )

    def _requires(
        self, spec: ResourceSpec, resolved: ResolvedSpec, runtime: str, body: RunRequest
    ) -> tuple[str, ...]:
        """Return what the host must be able to do for this sandbox.

        A limit that somebody asked for must be enforced, whatever the configuration says; a
        defaulted one only where enforcement is required.
        """
        enforced = self._parts.is_enforced
        limits = resolved.limits if enforced else spec.limits
        device = (gpu_key(runtime),) if resolved.requests.gpu_memory_bytes else ()
        needed = required_by(runtime, limits, enforced=enforced)
        network = (NETWORK,) if body.network == BRIDGE else ()
        return (*needed, *device, *network, *sorted(set(body.require)))

    async def cancel(self, run_id: str, grace_ms: int | None, peer: Peer) -> Json:
        """Ask a run to end: SIGTERM, the grace, SIGKILL. One that has ended stays as it is.

        Answered once the ledger has it, so that the next daemon goes on with it.

        Raises:
            PermissionDenied: It is somebody else's.
            NotFound: No run has this id.
        """
        found = self._parts.resolve_id(run_id)
        spec = self.spec(found)
        self._parts.require(rights.CANCEL, peer, thing_of(spec))
        grace = self._parts.settings.stop_grace_ms if grace_ms is None else grace_ms
        by = f"uid:{peer.uid}"
        operation = partial(transitions.stop, reservation_id=found, reason=USER_CANCELLED, by=by)
        if self._parts.ledger.state.row(TICKETS, found) is not None:
            view = self.view(found, peer)
            await self._parts.end_ticket(
                partial(tickets.give_up, ticket_id=found, note=USER_CANCELLED, by=by), found
            )
            return view
        with contextlib.suppress(NotFound):
            await self._parts.committer.submit(operation)
            self._parts.lives.stop(found, USER_CANCELLED, by, grace)
        return self.view(found, peer)

    def view(self, run_id: str, peer: Peer) -> Json:
        """Return the JSON object of a run; its command is told to those who may read it.

        So is the message, which may quote the command.

        Raises:
            NotFound: No run has this id.
        """
        spec = self.spec(run_id)
        # In this order: whoever is no longer in the ledger has an exit record by then.
        row = self._parts.ledger.state.find_reservation(run_id)
        record = self._parts.runs.exit(run_id)
        caller = self._parts.grants.caller(peer)
        tell = rights.may(rights.TELL_RUN, caller, spec.uid, spec.namespace)
        waits = self._parts.ledger.state.row(TICKETS, run_id) is not None
        return _run_view(spec, row, record, waits=waits, tell_command=tell)

    def spec(self, run_id: str) -> RunSpec:
        """Return what the run was asked to do, or as much of it as the ledger knows.

        Raises:
            NotFound: No run has this id.
        """
        spec = self._parts.runs.spec(run_id)
        row = None if spec else self._parts.ledger.state.find_reservation(run_id)
        if row is not None and row.is_sandbox:
            spec = _what_the_ledger_knows(row)
        if spec is None:
            raise NotFound(f"no run has the id {run_id}", hint="list them with: axern run list")
        return spec


def thing_of(spec: RunSpec) -> rights.Thing:
    """Return a run as the thing that somebody does something to."""
    return rights.Thing(f"run {spec.id}", spec.uid, spec.namespace)


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _what_the_ledger_knows(row: Reservation) -> RunSpec:
    """Return the spec of a run whose folder is lost, so that it can still be seen and ended."""
    return RunSpec(
        id=row.id,
        namespace=row.namespace,
        uid=row.owner.uid,
        command=(),
        env={},
        cwd="/",
        rootfs="",
        rootfs_readonly=row.limits.ephemeral_storage_bytes is None,
        runtime_class=row.runtime or "",
        requests=resources_view(row.requests),
        limits=resources_view(row.limits),
        enforced=row.enforced,
        created_wall_ms=row.created_wall_ms,
    )


def _run_view(
    spec: RunSpec,
    row: Reservation | None,
    record: RunExit | None,
    *,
    waits: bool,
    tell_command: bool,
) -> Json:
    phase = row.phase if row else WAITING if waits else RESERVED
    status = record.status if record else phase
    started_ms = record.started_wall_ms if record else row.started_wall_ms if row else None
    return {
        "id": spec.id,
        "namespace": spec.namespace,
        "status": status,
        "exit_code": record.exit_code if record else None,
        "cli_exit_code": record.cli_exit_code if record else None,
        "diagnostic_code": record.diagnostic_code if record else None,
        "message": record.message if record and tell_command else None,
        "command": list(spec.command) if tell_command else None,
        "labels": spec.labels,
        "user": spec.user,
        "timeout_ms": spec.timeout_ms,
        "ttl_ms": spec.ttl_ms,
        "stdin": spec.stdin,
        "oom_kill_one": spec.oom_kill_one,
        "require": list(spec.require),
        "network": spec.network,
        "publish": list(spec.publish),
        "runtime_class": spec.runtime_class,
        "template": spec.template,
        "rootfs": spec.rootfs,
        "rootfs_readonly": spec.rootfs_readonly,
        "requests": spec.requests,
        "limits": spec.limits,
        "enforced": spec.enforced,
        "enforced_limits": enforcement.view(spec),
        "created_at": format_rfc3339(spec.created_wall_ms),
        "started_at": format_rfc3339(started_ms) if started_ms else None,
        "finished_at": format_rfc3339(record.finished_wall_ms) if record else None,
        "owner": {"uid": spec.uid},
    }
