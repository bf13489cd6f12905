"""Grants what waits, in the very commit that makes room, and keeps room for whoever is passed by.

A state is staged operation by operation; after each, `Granting.after` is told what it did. Of each
who waits one gate is remembered that keeps them. As long as less is left there than they ask for,
nothing else need be looked at, so that a thousand who wait cost a commit next to nothing. What is
remembered is only where to look: the decision is always that of admission.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from ledger import queue, tickets
from ledger.admission import Admitted, evaluate
from ledger.queue import NAMESPACE_GATES, may_lead
from ledger.refusal import NODE, NODE_EXPOSURE, NODE_STORAGE_FREE
from ledger.resources import BY_NAME, OptionalResources, dimension_of
from ledger.rooms import CAPABILITY, GPU, Gate, Ground, room_at
from ledger.state import HEADROOM, Change

if TYPE_CHECKING:
    from ledger.claims import Host
    from ledger.queue import Waiter
    from ledger.refusal import Refusal, Shortfall
    from ledger.state import State

_QUIET = frozenset(
    {
        *("beat", "start", "run", "stop", "renew", "replace-token", "forget-requests"),
        *("namespace-create", "namespace-update", "drain"),
    }
)
"""Operations that make no room for anybody, and take none."""
_CLAIMS = frozenset({"claim-create", "claim-update"})
"""What may pass by the head of the queue, like a request that need not wait."""
_ENDS = frozenset({"release", "retire", "ticket-end"})
"""Those that only give back: to the node, and to the gates of one namespace."""
_ALL = ""
_EVERYTHING = frozenset(BY_NAME)
_UNLIMITED = OptionalResources()


class Staged(NamedTuple):
    """A state that is being staged, what to decide on, and how a change becomes a part of it."""

    view: State
    host: Host
    take: Callable[[Change], None]


class Granting:
    """Where to look for those who can be granted; belongs to one ledger.

    `is_staged` tells that it knows of changes that are not published: `forget` them if they come
    to nothing.
    """

    def __init__(self) -> None:
        self.is_staged = False
        self._facts: int | None = None
        self._is_known = False
        self._doubtful: set[str] = set()
        self._gates: dict[str, Gate] = {}
        self._asking: dict[str, dict[Gate, list[tuple[int, str]]]] = {}
        self._holder: str | None = None
        self._lacks = _EVERYTHING
        self._space = ""
        self._rests = False

    def forget(self) -> None:
        """Know nothing of who waits; the next look asks everybody."""
        self._is_known = self.is_staged = False

    def after(self, on: Staged, change: Change) -> None:
        """Grant what *change*, just applied, has made room for; or count whom it has passed by."""
        name = change.operation
        if name in _QUIET:
            return
        # Nothing is told here while nobody waits.
        is_first = name == "wait" and on.view.waiting == 1
        if not self._is_known or is_first or name in ("queue-pause", "queue-resume"):
            self._learn(on.view)
        if self._rests:
            self.is_staged = True
            return
        if name == "wait":
            self._doubtful.add(change.puts[0].key)
        elif name == "reserve":
            self._passed_by(on, change)
        elif name in _ENDS:
            self._serve(on, change)
        else:  # seldom: gates may be others than before
            self._learn(on.view)
            if name in _CLAIMS:
                self._passed_by(on, change)
            self._serve(on, None)
        self.is_staged = True

    def look(self, on: Staged) -> None:
        """Grant what new facts allow; the same ones allow nothing new."""
        facts = on.host.facts
        if facts is None or facts.sequence == self._facts:
            return
        if not self._is_known:
            self._learn(on.view)
        if not self._rests:
            self._serve(on, None)
        self._facts, self.is_staged = facts.sequence, True

    def _learn(self, view: State) -> None:
        """Begin anew: whoever waits has to be asked."""
        self._is_known = True
        self._gates.clear()
        self._asking.clear()
        everybody = queue.waiters(view)
        self._doubtful = {each.ticket.id for each in everybody}
        self._holder = next((each.ticket.id for each in everybody if each.is_next), None)
        self._lacks = _EVERYTHING
        self._rests = queue.pause_of(view) is not None

    def _serve(self, on: Staged, change: Change | None) -> None:
        """Grant who can be, those first who are first in the queue; *change* says where to look."""
        ground = _ground(on)
        if ground is None:
            self.forget()  # what is missed meanwhile is found by asking everybody
            return
        namespace = getattr(change.result, "namespace", None) if change is not None else None
        scopes = tuple(self._asking) if namespace is None else (_ALL, namespace)
        is_kept = True
        if (
            change is None
            or namespace in (None, self._space)
            or not self._lacks.isdisjoint(_freed(change))
        ):
            is_kept = self._serve_holder(on, check=namespace is None)
        while True:
            for scope in scopes if is_kept else tuple(self._asking):
                self._doubt(scope, ground)
            ready = {
                key for key in tuple(self._doubtful) if key != self._holder and self._fits(on, key)
            }
            if not ready:
                return
            self._walk(on, ready)
            is_kept = self._serve_holder(on, check=True)

    def _doubt(self, scope: str, ground: Ground) -> None:
        """Doubt that those are kept by a gate who ask for no more than is left there."""
        for gate, asking in self._asking.get(scope, {}).items():
            if not asking:
                continue
            room = room_at(gate, ground)
            while asking and asking[0][0] <= room:
                _, key = heappop(asking)
                if self._gates.get(key) == gate:
                    del self._gates[key]
                    self._doubtful.add(key)

    def _fits(self, on: Staged, key: str) -> bool:
        waiter = queue.find(on.view, key)
        if waiter is None:  # it is gone
            self._doubtful.discard(key)
        return waiter is not None and self._refusal(on, waiter) is None

    def _refusal(self, on: Staged, waiter: Waiter) -> Refusal | None:
        """Decide on *waiter*; remember which gate keeps them, if one does."""
        host, view = on.host, tickets.without(on.view, waiter)
        decision = evaluate(view, host.facts, waiter.demand, host.now, host.policy)
        if isinstance(decision, Admitted):
            return None
        if waiter.ticket.id != self._holder:
            self._remember(on, waiter, decision)
        return decision

    def _remember(self, on: Staged, waiter: Waiter, refusal: Refusal) -> None:
        found = _gate_of(on, waiter, refusal)
        if found is None:
            return
        key, (gate, amount) = waiter.ticket.id, found
        self._doubtful.discard(key)
        if self._gates.get(key) != gate:
            self._gates[key] = gate
            scope = gate.namespace if gate.name in NAMESPACE_GATES else _ALL
            heappush(self._asking.setdefault(scope, {}).setdefault(gate, []), (amount, key))

    def _walk(self, on: Staged, ready: set[str]) -> None:
        """Grant those of *ready* for whom there is room when it is their turn."""
        head = self._holding(on.view)
        for waiter in queue.order(on.view, on.host.now):
            if waiter.ticket.id not in ready:
                if head is None and self._leads(on, waiter):
                    head = waiter
                continue
            made = tickets.grant(on.view, waiter, on.host)
            if not isinstance(made, Change):
                self._remember(on, waiter, made)
                if head is None and may_lead(made):
                    head = waiter
                continue
            on.take(made)
            self._doubtful.discard(waiter.ticket.id)
            if head is not None:
                head = self._pass_by(on, head, made)

    def _holding(self, view: State) -> Waiter | None:
        """Return the head for which all that comes free is held, if there is one."""
        holder = None if self._holder is None else queue.find(view, self._holder)
        if holder is None or not holder.is_next:
            self._holder = None
            return None
        return holder

    def _serve_holder(self, on: Staged, *, check: bool) -> bool:
        """Hold for the head what has come free, and grant it once that is all of it.

        Returns:
            False if it was let go, so that what was held is free for all.
        """
        holder = self._holding(on.view)
        if holder is None:
            return True
        made = tickets.hold(on.view, holder)
        if made.puts:
            on.take(made)
            holder = queue.get(on.view, holder.ticket.id)
        lacks = tickets.lacks(on.view, holder)
        self._space = holder.ticket.namespace
        self._lacks = lacks or _EVERYTHING  # a measured gate keeps it: any end may open that
        if lacks:
            return not check or self._keeps(on, holder)
        granted = tickets.grant(on.view, holder, on.host)
        if not isinstance(granted, Change):
            return self._keeps(on, holder, granted)
        on.take(granted)
        self._doubtful.discard(holder.ticket.id)
        self._holder = None
        return True

    def _keeps(self, on: Staged, holder: Waiter, refusal: Refusal | None = None) -> bool:
        """Let *holder* go where its own namespace keeps it by now: then it holds up nobody."""
        refusal = refusal or self._refusal(on, holder)
        if refusal is None or may_lead(refusal):
            return True
        on.take(tickets.let_go(on.view, holder))
        self._holder = None
        self._doubtful.add(holder.ticket.id)
        return False

    def _leads(self, on: Staged, waiter: Waiter) -> bool:
        """Tell whether *waiter* may be the head: only the node keeps it."""
        gate = self._gates.get(waiter.ticket.id)
        if gate is not None and (gate.name in NAMESPACE_GATES or gate.name == CAPABILITY):
            return False
        refusal = self._refusal(on, waiter)
        return refusal is not None and may_lead(refusal)

    def _passed_by(self, on: Staged, change: Change) -> None:
        """Count *change*, an admission that had not to wait, against the head of the queue."""
        holder = self._holding(on.view)
        if holder is not None:
            name = holder.ticket.namespace
            if getattr(change.result, "namespace", "") == name and _has_bounds(on, name):
                self._lacks = _EVERYTHING
                if not self._serve_holder(on, check=True):
                    self._serve(on, None)
            return
        if not _taken(change) or _ground(on) is None:
            return
        if not self._doubtful and not any(map(_is_of_node, self._gates.values())):
            return
        head = next((w for w in queue.order(on.view, on.host.now) if self._leads(on, w)), None)
        if head is not None:
            self._pass_by(on, head, change)

    def _pass_by(self, on: Staged, head: Waiter, change: Change) -> Waiter:
        """Count that *change* took what *head* waits for; return the head as it is then."""
        wanted = any(getattr(head.ticket.requests, name) for name in _taken(change))
        if not wanted or head.is_next:
            return head
        on.take(tickets.bypass(on.view, head))
        head = queue.get(on.view, head.ticket.id)
        if head.is_next:
            self._holder, self._lacks = head.ticket.id, _EVERYTHING
        return head


def _taken(change: Change) -> set[str]:
    """Return the names of the dimensions in which *change* took headroom."""
    return {
        dimension_of(pool).name
        for account, pool, amount in change.postings
        if account == HEADROOM and amount < 0
    }


def _freed(change: Change) -> set[str]:
    """Return the names of the dimensions in which *change* left more headroom."""
    return {
        pool.partition("/")[0]
        for account, pool, amount in change.postings
        if account == HEADROOM and amount > 0
    }


def _has_bounds(on: Staged, namespace: str) -> bool:
    """Tell whether what *namespace* holds matters to others in it: a quota, a claim, the cap."""
    view = on.view
    return (
        view.namespace(namespace).quota != _UNLIMITED
        or view.claim_of(namespace) is not None
        or view.entry_count(namespace) >= on.host.policy.namespace_entry_cap
    )


def _is_of_node(gate: Gate) -> bool:
    return gate.name not in NAMESPACE_GATES and gate.name != CAPABILITY


def _ground(on: Staged) -> Ground | None:
    """Return what to decide on, or None where nothing at all is admitted now."""
    node, facts, now = on.view.node(), on.host.facts, on.host.now
    if node is None or facts is None or on.view.standing() is not None:
        return None
    if now.monotonic_ms - facts.observed_monotonic_ms > on.host.policy.facts_stale_after_ms:
        return None
    return Ground(on.view, node, facts, on.host.policy)


def _gate_of(on: Staged, waiter: Waiter, refusal: Refusal) -> tuple[Gate, int] | None:
    """Return a gate that keeps *waiter*, and how much must be left there; None where none does.

    Those of its namespace come first: as long as one of them is shut, it is not the head.
    """
    facts, node = on.host.facts, on.view.node()
    if refusal.reasons and facts is not None and node is not None:
        lacks = [key for key in waiter.demand.requires if key not in facts.capabilities]
        if waiter.ticket.requests.gpu_memory_bytes and not node.gpu_allocatable:
            lacks.append(GPU)
        return (Gate(CAPABILITY, "", lacks[0]), 1) if lacks else None
    if not refusal.shortfalls:
        return None
    mine = [each for each in refusal.shortfalls if each.gate in NAMESPACE_GATES]
    short = (mine or refusal.shortfalls)[0]
    return Gate(short.gate, _namespace_of(on, waiter, short), short.dimension), short.requested


def _namespace_of(on: Staged, waiter: Waiter, short: Shortfall) -> str:
    """Return whose gate it is: the node's is the same for all who have claimed nothing."""
    namespace = waiter.ticket.namespace
    if short.gate in NAMESPACE_GATES:
        return namespace
    if (
        short.gate in (NODE, NODE_STORAGE_FREE, NODE_EXPOSURE)
        and on.view.claim_of(namespace) is not None
    ):
        return namespace
    return ""
