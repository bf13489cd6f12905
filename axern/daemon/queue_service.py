"""The use cases of the queue: let a request wait, tell how far it is, and take it out again."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from axern.api import queue_views
from axern.daemon.parts import Json, Parts
from axern.daemon.streams import ServerSentEvents
from ledger import queue, rights, tickets
from ledger.errors import AxernError, InvalidArgument, NotFound
from ledger.queue import DEFAULT_PRIORITY
from ledger.reservation import Reservation
from ledger.tickets import Wish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from axern.api.messages import Peer
    from axern.api.schema import Waiting
    from ledger.queue import Waiter
    from ledger.state import State
    from ledger.tables import Ticket

TELL_EVERY_S = 1.0
"""How often who waits is told of a new place or reason, if there is one."""
_KEEP_ALIVE_S = 15.0


class QueueService:
    """What can be asked of those who wait."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._errands: set[asyncio.Task[None]] = set()

    def wish(self, body: Waiting, peer: Peer) -> Wish | None:
        """Return how long and how urgently *body* would wait, None where it would not.

        Raises:
            PermissionDenied: More urgent than everybody, from somebody not an admin.
            InvalidArgument: A priority without a wait.
        """
        if body.wait_for_capacity_ms is None:
            if body.priority is not None:
                raise InvalidArgument("priority: it is for who waits: give wait_for_capacity_ms")
            return None
        priority = DEFAULT_PRIORITY if body.priority is None else body.priority
        if priority > DEFAULT_PRIORITY:
            self._parts.require(rights.HURRY, peer)
        return Wish(body.wait_for_capacity_ms, priority)

    def list(self) -> Json:
        """Return all who wait, who is next in front."""
        return queue_views.queue_view(self._state, self._parts.host())

    def get(self, word: str) -> Json:
        """Return one who waits, by id or the beginning of it."""
        return {"ticket": self.view(self._find(word).ticket.id)}

    def view(self, ticket_id: str) -> Json:
        """Return the ticket *ticket_id* as it stands now."""
        return queue_views.ticket_view(self._state, self._parts.host(), ticket_id)

    def told(self, ticket_id: str) -> Json:
        """Return the ticket *ticket_id*, of one that was granted by now its id."""
        if queue.find(self._state, ticket_id) is None:
            return {"id": ticket_id, "position": 0}
        return self.view(ticket_id)

    async def cancel(self, word: str, peer: Peer) -> Json:
        """Take a ticket out of the queue; whoever listens for it is told."""
        waiter = self._find(word)
        self._require_theirs(waiter.ticket.id, waiter.ticket, peer)
        view = self.view(waiter.ticket.id)
        await self.end(waiter.ticket.id, "cancelled", f"uid:{peer.uid}")
        return {"ticket": view}

    async def end(self, ticket_id: str, note: str, by: str) -> None:
        """Take a ticket out of the queue, and what was kept for its run away."""
        operation = partial(tickets.give_up, ticket_id=ticket_id, note=note, by=by)
        await self._parts.end_ticket(operation, ticket_id)

    async def rest(self, peer: Peer, *, resting: bool) -> Json:
        """Let the queue rest, or go on."""
        verb = tickets.pause if resting else tickets.resume
        operation = partial(verb, by=f"uid:{peer.uid}", now=self._parts.clock())
        await self._parts.committer.submit(operation)
        return {"paused": self.list()["paused"]}

    def stream(
        self, ticket_id: str, peer: Peer, told: Callable[[str], Json]
    ) -> AsyncIterator[bytes]:
        """Return how *ticket_id* moves on, up to its grant or end, as server-sent events.

        Whoever leaves before that gives it up, unless somebody else listens too.

        Raises:
            NotFound: Nobody waits under this id, and nothing was granted under it.
            PermissionDenied: It is somebody else's.
        """
        waiter, row = queue.find(self._state, ticket_id), self._state.find_reservation(ticket_id)
        if waiter is not None:
            self._require_theirs(waiter.ticket.id, waiter.ticket, peer)
        elif row is not None:
            self._require_theirs(row.id, row, peer)
        else:
            told(self._parts.resolve_id(ticket_id))  # a run that is over by now; else it raises
        return self._follow(ticket_id, peer, told)

    async def _follow(
        self, ticket_id: str, peer: Peer, told: Callable[[str], Json]
    ) -> AsyncIterator[bytes]:
        form, silent_s = ServerSentEvents(), 0.0
        last: Json = {}
        closing = self._parts.closing
        waits = True
        with self._parts.waiting_room.listening(ticket_id) as called:
            try:
                while waits and not closing.is_set():
                    waits = queue.find(self._state, ticket_id) is not None
                    if not waits:
                        yield form.event(*self._outcome(ticket_id, told), 0)
                        return
                    view = self.view(ticket_id)
                    key = {name: view[name] for name in ("position", "reason", "is_next")}
                    if key != last or silent_s >= _KEEP_ALIVE_S:
                        yield form.event("waiting", {"ticket": view}, 0)
                        last, silent_s = key, 0.0
                    await _wait([called, closing], TELL_EVERY_S)
                    silent_s += TELL_EVERY_S
            finally:
                if waits and not closing.is_set():
                    self._abandon(ticket_id, peer)

    def _abandon(self, ticket_id: str, peer: Peer) -> None:
        """Give the ticket up, since its caller has left; nobody waits for that."""
        errand = asyncio.create_task(self._leave(ticket_id, peer))
        self._errands.add(errand)
        errand.add_done_callback(self._errands.discard)

    async def _leave(self, ticket_id: str, peer: Peer) -> None:
        if not self._parts.waiting_room.is_attended(ticket_id):
            try:
                await self.end(ticket_id, "its caller went away", f"uid:{peer.uid}")
            except AxernError:
                return  # after a while without a listener it ends all the same

    def _outcome(self, ticket_id: str, told: Callable[[str], Json]) -> tuple[str, Json]:
        """Return what became of a ticket that waits no more."""
        try:
            return "granted", told(ticket_id)
        except NotFound:
            code = "ticket_ended"
            message = f"{ticket_id} waits no more: it was cancelled, or has waited long enough"
            return "ended", {"error": {"code": code, "message": message}}

    def _find(self, word: str) -> Waiter:
        found = [each for each in queue.waiters(self._state) if each.ticket.id.startswith(word)]
        return found[0] if len(found) == 1 else queue.get(self._state, word)

    def _require_theirs(self, name: str, row: Ticket | Reservation, peer: Peer) -> None:
        uid = row.owner.uid if isinstance(row, Reservation) else row.owner_uid
        thing = rights.Thing(f"ticket {name}", uid, row.namespace)
        self._parts.require(rights.LEAVE_QUEUE, peer, thing)

    @property
    def _state(self) -> State:
        return self._parts.ledger.state


async def _wait(events: list[asyncio.Event], timeout_s: float) -> None:
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
