"""The loop: observe the host, plan what the ledger asks for, apply it; and again.

Planning is pure (`ledger.reclaim`). A gap in the loop's own ticks, by a suspend or a stopped
daemon, gives every owner a whole stale window: it had no chance to be heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from axern.daemon import deadline, happenings, retention
from axern.daemon.audit import Audit
from axern.errors import HostError
from axern.host import process
from axern.runtime import monitor, segments
from axern.runtime.layout import SANDBOX_ID
from ledger import claims, reclaim, tickets, transitions
from ledger.errors import AxernError, CommitFailed, LedgerBusy, NotFound, StateConflict
from ledger.tables import TICKETS

if TYPE_CHECKING:
    from axern.daemon.parts import Parts
    from ledger.clock import Now

_RETAIN_EVERY_MS = 60_000
_TOGETHER = 64
"""Actions that may share a commit: many are quick then, and no caller waits long behind them."""
_log = logging.getLogger(__name__)


class Reconciler:
    """Makes host and ledger agree, tick by tick."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._policy = parts.liveness_policy
        now = parts.clock()
        self._last = now
        self.ticked_monotonic_ms = now.monotonic_ms
        self._wall_at_boot_ms = now.wall_ms - now.boottime_ms
        self._grace_until_ms = now.monotonic_ms + self._policy.stale_after_ms
        self._planned_at_ms: int | None = None
        self._pruned_at_ms: int | None = None
        self._audit = Audit(parts)
        self.pruning: asyncio.Task[None] | None = None

    async def loop(self) -> None:
        """Tick until the daemon closes; a host that can't be read is logged and tried again."""
        closing = self._parts.closing
        while not closing.is_set():
            try:
                await self.tick()
            except (HostError, CommitFailed, LedgerBusy, OSError) as error:
                _log.warning("this tick came to nothing: %s", error)
            self.ticked_monotonic_ms = self._parts.clock().monotonic_ms
            await self._write_events()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), self._parts.settings.facts_every_ms / 1000)
        await self._write_events(closing=True)

    async def _write_events(self, *, closing: bool = False) -> None:
        parts = self._parts
        try:
            await parts.events.flush(
                parts.ledger.generation, parts.clock().wall_ms, closing=closing
            )
        except OSError as error:
            _log.warning("events are in memory only: %s", error)

    async def tick(self) -> None:
        """Observe; when a tick's time has come, plan and apply.

        A host that can't be read is no reason to let deadlines pass: only admission waits for it.
        """
        now = self._parts.clock()
        self._notice_gap(now)
        self._parts.condition.look()
        if self._parts.ledger.failed:
            await self._parts.committer.reseal()
            self._parts.condition.look()
        for life in self._parts.lives.all():
            segments.doubt_if_full(self._parts.layout.sandbox(life.reservation_id).log)
        await self._observe()
        await self._end_abandoned()
        await self._audit.step()
        last_ms = self._planned_at_ms
        if last_ms is None or now.monotonic_ms - last_ms >= self._parts.settings.tick_ms:
            self._planned_at_ms = now.monotonic_ms
            self._hear_sandboxes(now)
            await self._persist_beats(now)
            await self._apply(now)
            self._prune(now)

    async def _end_abandoned(self) -> None:
        """Take those out of the queue whose callers have not come back after a restart."""
        waiting = [key for key, _ in self._parts.ledger.state.rows(TICKETS)]
        for key in self._parts.waiting_room.abandoned(waiting):
            _log.info("ticket %s: nobody has listened for it for a while", key)
            note, end = "its caller did not come back", tickets.give_up
            operation = partial(end, ticket_id=key, note=note, by="daemon")
            await self._parts.end_ticket(operation, key)

    async def _observe(self) -> None:
        try:
            facts = await self._parts.observe()
        except (HostError, OSError) as error:
            _log.warning("the host can't be observed: %s", error)
            return
        _log.debug("tick %s", facts.sequence)

    def adopt(self) -> int:
        """Let every sandbox of the ledger live on and return how many there are.

        Run folders that no entry and no exit record speak for were never admitted: they go. So do
        exit files that no entry waits for, left by a crash just after the release.
        """
        state, layout = self._parts.ledger.state, self._parts.layout
        adopted = [row for row in state.reservations() if row.is_sandbox]
        for row in adopted:
            self._parts.lives.begin(row.id)
        for what in happenings.adopted(adopted):
            self._parts.note(what)
        for run_id in list(self._parts.runs.names()):
            if state.row(TICKETS, run_id) is not None:
                continue  # it waits for its run
            if state.find_reservation(run_id) is None and not self._parts.runs.has_ended(run_id):
                self._parts.runs.discard(run_id)
        for name in os.listdir(layout.exits):
            # A monitor that writes one just now does so under a name that is no id.
            if SANDBOX_ID.fullmatch(name) and state.find_reservation(name) is None:
                monitor.discard_exit(layout.sandbox(name))
        return len(adopted)

    def _notice_gap(self, now: Now) -> None:
        slept_ms = now.boottime_ms - self._last.boottime_ms
        if slept_ms > self._parts.settings.facts_every_ms + self._parts.settings.tick_ms:
            _log.warning("no tick for %s ms: silence is forgiven for one window", slept_ms)
            self._grace_until_ms = now.monotonic_ms + self._policy.stale_after_ms
        self._last = now

    def _hear_sandboxes(self, now: Now) -> None:
        """Beat for every sandbox that is watched: the daemon's own eyes are the heartbeat."""
        for life in self._parts.lives.all():
            if life.resting.is_set():
                self._parts.heartbeats.beat(life.reservation_id, now)

    async def _persist_beats(self, now: Now) -> None:
        state = self._parts.ledger.state
        self._parts.heartbeats.retain(lambda key: state.find_reservation(key) is not None)
        if self._parts.ledger.is_short:
            return  # they are in memory, and come to the ledger when there is room
        due = self._parts.heartbeats.take_due(now)
        if due:
            await self._parts.committer.submit(partial(transitions.persist_beats, beats=due))

    async def _apply(self, now: Now) -> None:
        state = self._parts.ledger.state
        beats = self._parts.heartbeats.beats
        actions = reclaim.plan(state, beats, now, self._policy, self._grace_until_ms)
        for begin in range(0, len(actions), _TOGETHER):
            if begin:
                await self._stay_awake()
            part = actions[begin : begin + _TOGETHER]
            await asyncio.gather(*(self._try(action, now) for action in part))

    async def _stay_awake(self) -> None:
        """Observe the host when it is time, and show life: to apply a long plan takes a while."""
        now, facts = self._parts.clock(), self._parts.observer.facts
        self.ticked_monotonic_ms = now.monotonic_ms
        every_ms = self._parts.settings.facts_every_ms
        if facts is None or now.monotonic_ms - facts.observed_monotonic_ms >= every_ms:
            await self._observe()

    async def _try(self, action: reclaim.Action, now: Now) -> None:
        try:
            await self._do(action, now)
        except (NotFound, StateConflict):
            return  # it has moved on by itself
        except (AxernError, OSError) as error:
            _log.warning("%s came to nothing: %s", action, error)

    async def _do(self, action: reclaim.Action, now: Now) -> None:
        match action:
            case reclaim.Look():
                await self._look(action, now)
            case reclaim.Stop():
                _log.info("sandbox %s: %s", action.reservation_id, action.reason)
                grace_ms = self._parts.settings.stop_grace_ms
                row = self._parts.ledger.state.reservation(action.reservation_id)
                reason = deadline.reason_of(row)
                self._parts.lives.stop(row.id, reason, "daemon", grace_ms)
            case reclaim.EndLease():
                await self._end_lease(action.reservation_id, f"lease {action.reason}")
            case reclaim.EndClaim():
                _log.info("claim %s: its time is over", action.claim_id)
                await self._parts.committer.submit(
                    partial(claims.expire, claim_id=action.claim_id, now=now)
                )
            case reclaim.EndTicket():
                _log.info("ticket %s: it has waited for as long as it would", action.ticket_id)
                operation = partial(tickets.expire, ticket_id=action.ticket_id, now=now)
                await self._parts.end_ticket(operation, action.ticket_id)
            case reclaim.ForgetRequests():
                await self._parts.committer.submit(
                    partial(transitions.forget_requests, keys=action.keys)
                )

    async def _look(self, action: reclaim.Look, now: Now) -> None:
        """Find out what became of a silent owner: dead ends its lease, alive is a beat."""
        row = self._parts.ledger.state.reservation(action.reservation_id)
        if row.is_sandbox:
            self._parts.lives.begin(row.id)
        elif row.owner_process is None:
            _log.debug("lease %s: stale, its owner is unknown; charged till its deadline", row.id)
        elif process.is_alive(row.owner_process):
            self._parts.heartbeats.beat(row.id, now)
        else:
            pid = row.owner_process.pid
            await self._end_lease(row.id, f"its owner, process {pid}, is gone")

    async def _end_lease(self, reservation_id: str, evidence: str) -> None:
        _log.info("lease %s: ended: %s", reservation_id, evidence)
        operation = partial(transitions.release, reservation_id=reservation_id, evidence=evidence)
        await self._parts.committer.submit(operation)
        self._parts.heartbeats.forget(reservation_id)

    def _prune(self, now: Now) -> None:
        """Begin to remove old runs, beside the ticks: to look at all of them may take minutes."""
        last_ms = self._pruned_at_ms
        due = last_ms is None or now.monotonic_ms - last_ms >= _RETAIN_EVERY_MS
        if due and (self.pruning is None or self.pruning.done()):
            self._pruned_at_ms = now.monotonic_ms
            # Not the wall clock of now: somebody may have set it since the daemon began.
            wall_ms = self._wall_at_boot_ms + now.boottime_ms
            self._parts.events.forget_old(wall_ms)
            self.pruning = asyncio.create_task(self._prune_before(wall_ms), name="prune")

    async def _prune_before(self, wall_ms: int) -> None:
        try:
            must_stop = self._parts.closing.is_set
            await asyncio.to_thread(retention.retain, self._parts, wall_ms, must_stop)
        except OSError as error:
            _log.warning("old runs were not all removed: %s", error)
