"""What the use cases share: the daemon's parts, who may do what, and how an id is written."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from axern.api.views import as_they_are, reservation_view
from axern.daemon import happenings
from axern.daemon.event_log import EventLog, Happening
from axern.daemon.explainer import Explainer
from axern.daemon.grants import Grants
from axern.daemon.observer import explain
from axern.daemon.waiting_room import WaitingRoom
from axern.errors import HostError
from ledger import rights, tables, tickets, transitions
from ledger.admission import AdmissionPolicy, Admitted, evaluate
from ledger.claims import Host
from ledger.errors import AdmissionRefused, InvalidArgument, NotFound
from ledger.reservation import LivenessPolicy, Reservation, liveness
from ledger.spec import Defaults
from ledger.tickets import QueuePolicy, Wish
from ledger.why import Case

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.daemon.capability_watch import CapabilityWatch
    from axern.daemon.condition import Condition
    from axern.daemon.lives import Lives
    from axern.daemon.log_keeper import LogKeeper
    from axern.daemon.observer import Observer
    from axern.daemon.run_index import RunIndex
    from axern.daemon.runs import RunStore
    from axern.daemon.watcher import FolderWatcher
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.clock import Now
    from ledger.committer import Committer
    from ledger.facts import Facts
    from ledger.heartbeats import Heartbeats
    from ledger.refusal import Refusal
    from ledger.rights import Caller, Thing, Verb
    from ledger.staging import Operation
    from ledger.state import Change
    from ledger.store import Ledger
    from ledger.tables import Nested, Ticket

Json = dict[str, Any]
Result = TypeVar("Result")
ID_LENGTH = 32
"""Hexadecimal digits of an id: 128 random bits, made by the server."""
_SHORTEST_PREFIX = 4
_SEARCHES = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one running daemon; `closing` is set when it is about to end.

    `admission_policy` bounds what is no resource, `liveness_policy` has the windows of silence,
    `defaults` stand in for omitted resources, `grants` knows who has which rights. `searches` is
    taken by whoever reads the journal's archive or the whole host: each may take seconds and a
    thread, and anybody may ask for many.
    """

    settings: Settings
    layout: Layout
    ledger: Ledger
    committer: Committer
    runs: RunStore
    run_index: RunIndex
    lives: Lives
    observer: Observer
    capabilities: CapabilityWatch
    heartbeats: Heartbeats
    watcher: FolderWatcher
    keeper: LogKeeper
    clock: Callable[[], Now]
    node_id: str
    condition: Condition
    events: EventLog = field(default_factory=EventLog)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    explainer: Explainer = field(default_factory=Explainer)
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SEARCHES))
    admission_policy: AdmissionPolicy = field(init=False)
    liveness_policy: LivenessPolicy = field(init=False)
    defaults: Defaults = field(init=False)
    grants: Grants = field(init=False)
    queue_policy: QueuePolicy = field(init=False)
    waiting_room: WaitingRoom = field(init=False)

    def __post_init__(self) -> None:
        """Take from the settings, once, what every request needs of them."""
        settings = self.settings
        made: dict[str, object] = {
            "admission_policy": AdmissionPolicy(
                settings.entry_cap,
                settings.namespace_entry_cap,
                settings.facts_stale_after_ms,
                settings.max_exposure,
            ),
            "liveness_policy": LivenessPolicy(settings.stale_after_ms, settings.legacy_window_ms),
            "defaults": Defaults(
                settings.default_request_cpu_milli,
                settings.default_request_memory_bytes,
                settings.default_limit_storage_bytes,
            ),
        }
        depths = (settings.queue_depth, settings.namespace_queue_depth)
        made["waiting_room"] = WaitingRoom(self.clock)
        made["queue_policy"] = QueuePolicy(*depths, settings.queue_longest_ms)
        object.__setattr__(self, "grants", Grants(settings))
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def is_enforced(self) -> bool:
        """Tell whether the configuration wants every limit enforced."""
        return self.settings.cgroup_enforcement == "required"

    def require(self, verb: Verb, peer: Peer, thing: Thing | None = None) -> None:
        """Raise PermissionDenied unless *peer* may do *verb*, to *thing* if somebody owns it."""
        caller = self.grants.caller(peer)
        if thing is None:
            rights.require_right(verb, caller)
        else:
            rights.require(verb, caller, thing)

    async def search(self, call: Callable[..., Result], *arguments: object) -> Result:
        """Run *call* in a thread, when it is its turn; for what reads a lot."""
        async with self.searches:
            return await asyncio.to_thread(call, *arguments)

    async def reserve(
        self, proposal: transitions.Proposal, viewer: Caller | None = None
    ) -> Reservation:
        """Charge *proposal* durably, or raise AdmissionRefused; the one way into the ledger.

        A refusal says what *viewer* may know; without one, what anybody may of whose it is.
        What is being proved of the host just now is waited for a little; raises HostUnproved.
        """
        await self._settle(proposal)
        try:
            return await self._charge(proposal)
        except AdmissionRefused as error:
            return await self.reserve_again(proposal, error, viewer)

    async def reserve_again(
        self, proposal: transitions.Proposal, error: AdmissionRefused, viewer: Caller | None
    ) -> Reservation:
        """Charge *proposal*, refused with *error*, if memory can be made free; else explain it."""
        try:
            gate = self.observer.memory
            amount_bytes = gate.may_reclaim(error.refusal, self.clock().monotonic_ms)
            if not amount_bytes:
                raise error
            with contextlib.suppress(HostError):  # then what is in use is as it was
                await asyncio.to_thread(gate.reclaim, amount_bytes)
                self.observer.observe(self.ledger.state.reservations())
            return await self._charge(proposal)
        except AdmissionRefused as last:
            raise AdmissionRefused(self.refused(last.refusal, proposal, viewer)) from None

    async def reserve_or_wait(
        self, proposal: transitions.Proposal, wish: Wish, viewer: Caller | None = None
    ) -> Reservation | Ticket:
        """Charge *proposal*, or let it wait as *wish* has it; raises QueueFull, too."""
        await self._settle(proposal)
        operation = partial(
            tickets.wait,
            proposal=proposal,
            wish=wish,
            host=self.host(),
            policy=self.queue_policy,
        )
        try:
            found = await self.committer.submit(operation)
        except AdmissionRefused as error:
            raise AdmissionRefused(self.refused(error.refusal, proposal, viewer)) from None
        if isinstance(found, Reservation) and found.id == proposal.id:
            self.note_admission(found)
        return cast("Reservation | Ticket", found)

    async def end_ticket(self, operation: Operation, ticket_id: str) -> None:
        """Take a ticket out of the queue by *operation*, and what was kept for its run away."""
        ended = await self.committer.submit(operation)
        if ended is not None:
            self.waiting_room.call(ticket_id)
            await asyncio.to_thread(self.runs.discard, ticket_id)

    def host(self, now: Now | None = None) -> Host:
        """Return on what an admission is decided now."""
        return Host(self.observer.facts, now or self.clock(), self.admission_policy)

    def serve_queue(self) -> None:
        """Let what waits be granted from now on."""
        self.committer.on_granted = self.begin_granted
        self.ledger.host_at = self.host

    def begin_granted(self, granted: Iterable[Change]) -> None:
        """Let begin what was *granted* after a wait: a run its life, a lease its heartbeats."""
        for change in granted:
            row = cast("Reservation", change.result)
            self.note_admission(row)
            if row.is_sandbox:
                self.lives.begin(row.id)
            else:
                self.heartbeats.beat(row.id, self.clock())
            self.waiting_room.call(row.id)

    async def explain(
        self, proposal: transitions.Proposal, viewer: Caller | None = None
    ) -> Admitted | Refusal:
        """Return how *proposal* would be decided on now, as `reserve` would; nothing is changed."""
        await self._settle(proposal)
        await self.explainer.turn()
        decision = self._decide(proposal)
        if isinstance(decision, Admitted):
            return decision
        return self._explained(decision, proposal, viewer)

    async def _settle(self, proposal: transitions.Proposal) -> None:
        """Wait a little for what *proposal* needs and is being proved just now."""
        if not proposal.requires:  # a lease
            return
        known = await self.capabilities.settle(proposal.requires)
        facts = self.observer.facts
        if facts and not set(known.present()).intersection(proposal.requires) <= set(
            facts.capabilities
        ):
            with contextlib.suppress(HostError):  # then by what was seen last
                await self.observe()  # proved since the last tick

    async def observe(self) -> Facts:
        """Observe the host, and let the ledger have what the node can promise.

        Raises:
            HostError: The host can't be read.
        """
        facts, node = self.observer.observe(self.ledger.state.reservations())
        await self.committer.submit(partial(transitions.observe_node, node=node))
        return facts

    async def _charge(self, proposal: transitions.Proposal) -> Reservation:
        row = cast("Reservation", await self.committer.submit(self.charging(proposal)))
        if row.id == proposal.id:
            self.note_admission(row)
        return row

    def charging(self, proposal: transitions.Proposal) -> Operation:
        """Return the operation that charges *proposal*, decided on what is seen of the host now."""
        return partial(
            transitions.reserve,
            proposal=proposal,
            facts=self.observer.facts,
            now=self.clock(),
            policy=self.admission_policy,
        )

    def note_admission(self, row: Reservation) -> None:
        """Keep an event if *row*, admitted just now, exceeds a claim."""
        self.note(happenings.admitted(self.ledger.state, row))

    def refused(
        self,
        refusal: Refusal,
        proposal: transitions.Proposal,
        viewer: Caller | None,
        *,
        in_batch: bool = False,
    ) -> Refusal:
        """Keep an event of *refusal*, and return it with all that *viewer* may know of why.

        What was refused *in_batch* keeps its numbers; it is explained where they hold still.
        """
        told = self._explained(refusal, proposal, viewer)
        if in_batch and told.shortfalls != refusal.shortfalls:
            told = refusal
        self.note_refusal(proposal.namespace, proposal.owner.uid, told)
        return told

    def note_refusal(self, namespace: str, uid: int, refusal: Refusal) -> None:
        """Keep an event of *refusal*."""
        self.note(happenings.refused(namespace, uid, refusal))

    def note(self, what: Happening | None) -> None:
        """Keep an event of *what*, if anything happened."""
        if what is not None:
            self.events.record(what, self.clock().wall_ms)

    def _decide(self, proposal: transitions.Proposal) -> Admitted | Refusal:
        demand = transitions.demand_of(proposal)
        return evaluate(
            self.ledger.state, self.observer.facts, demand, self.clock(), self.admission_policy
        )

    def _explained(
        self, refusal: Refusal, proposal: transitions.Proposal, viewer: Caller | None
    ) -> Refusal:
        """Return *refusal* with all that is known of why.

        What a commit refused may rest on others of its batch, so it is decided once more on what
        is published: numbers and explanation are of one moment.
        """
        if refusal.reasons:
            capabilities = self.capabilities.snapshot().capabilities
            reasons = tuple(explain(capabilities, reason) for reason in refusal.reasons)
            return replace(refusal, reasons=reasons, message="; ".join(reasons))
        if not self.explainer.has_time:
            return refusal
        decision, facts = self._decide(proposal), self.observer.facts
        if isinstance(decision, Admitted) or decision.reasons or facts is None:
            return refusal
        case = Case(
            view=self.ledger.state,
            facts=facts,
            demand=transitions.demand_of(proposal),
            now=self.clock(),
            policy=self.admission_policy,
            viewer=viewer or rights.by_default(proposal.owner.uid),
        )
        return self.explainer.explain(case, decision)

    def view(self, reservation: Reservation, now: Now | None = None) -> Json:
        """Return *reservation* as it is sent, with its liveness of *now*."""
        now = now or self.clock()
        beat = self.heartbeats.beats.get(reservation.id)
        standing = liveness(reservation, beat, now, self.liveness_policy)
        place = cast("Nested | None", self.ledger.state.row(tables.NESTED, reservation.id))
        parent_id = None if place is None else place.parent_id
        return reservation_view(reservation, standing, now, beat, as_they_are, parent_id)

    def resolve_id(self, text: str) -> str:
        """Return the whole id that *text*, an id or a prefix of at least four digits, names.

        Raises:
            NotFound: None begins with it.
            InvalidArgument: Not hexadecimal, too short, or several begin with it.
        """
        shortest = _SHORTEST_PREFIX
        if not shortest <= len(text) <= ID_LENGTH or text.strip("0123456789abcdef"):
            raise InvalidArgument(
                f"{text[:ID_LENGTH]!r} is no id: it must have {shortest} to {ID_LENGTH} "
                "hexadecimal digits"
            )
        if len(text) == ID_LENGTH:
            return text
        found = {row.id for row in self.ledger.state.reservations() if row.id.startswith(text)}
        found.update(self.runs.ids_with(text))
        if not found:
            raise NotFound(
                f"no run or reservation has an id that begins with {text}",
                hint="axern run list and axern reservations show what there is",
            )
        if len(found) > 1:
            raise InvalidArgument(f"{len(found)} ids begin with {text}: give more of it")
        return found.pop()


def digest_of(body: Json) -> str:
    """Return the SHA-256 of a request's body, the same for the same content."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def sha256_of(text: str) -> str:
    """Return the SHA-256 of *text* in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
