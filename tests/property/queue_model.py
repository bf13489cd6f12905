"""What the queue must do after each operation, by asking everybody each time: slow and plain.

The ledger remembers where to look, counts in place and asks few. This knows nothing of that: it
walks the whole queue after every change, and what it says must be what the journal says.
"""

from collections.abc import Iterator

from ledger import queue, tickets
from ledger.admission import Admitted, evaluate
from ledger.claims import Host
from ledger.queue import Waiter
from ledger.reservation import Reservation
from ledger.resources import dimension_of
from ledger.state import Change, State
from ledger.tables import Claim

QUIET = {"start", "run", "stop", "renew", "beat", "namespace-create", "wait", "queue-pause"}
ADMISSIONS = {"reserve", "grant", "claim-create", "claim-update"}
OF_QUEUE = {"grant", "bypass", "hold"}


def is_open(view: State, host: Host) -> bool:
    """Tell whether anybody is admitted at all."""
    facts = host.facts
    fresh = (
        facts is not None
        and host.now.monotonic_ms - facts.observed_monotonic_ms <= host.policy.facts_stale_after_ms
    )
    return fresh and view.standing() is None and queue.pause_of(view) is None


def fits(view: State, waiter: Waiter, host: Host) -> bool:
    """Tell whether *waiter* would be admitted now, what is held for them being free."""
    free = tickets.without(view, waiter)
    return isinstance(evaluate(free, host.facts, waiter.demand, host.now, host.policy), Admitted)


def leads(view: State, waiter: Waiter, host: Host) -> bool:
    """Tell whether *waiter* may be the head: the node refuses them, and their namespace not."""
    free = tickets.without(view, waiter)
    decision = evaluate(free, host.facts, waiter.demand, host.now, host.policy)
    return (
        not isinstance(decision, Admitted)
        and decision.waitable
        and not any(short.gate.startswith("namespace") for short in decision.shortfalls)
    )


def took(change: Change) -> set[str]:
    """Return in which dimensions *change* left less for everybody."""
    return {
        dimension_of(pool).name
        for account, pool, amount in change.postings
        if account == "headroom" and amount < 0
    }


def follow(view: State, change: Change | None, host: Host) -> Iterator[Change]:
    """Yield what the queue does after *change*, or by new facts; each is applied to *view*.

    *view* has *change* already.
    """
    if not is_open(view, host) or (change is not None and change.operation in QUIET):
        return
    if change is not None and change.operation in ADMISSIONS:
        yield from _passed(view, head_of(view, host), change)
        space = getattr(change.result, "namespace", None) or next(
            (put.row.namespace for put in change.puts if isinstance(put.row, Reservation | Claim)),
            "",
        )
        for waiter in queue.waiters(view):
            if waiter.wait.bypasses == 2 and waiter.ticket.namespace == space:
                yield from _apply(view, tickets.hold(view, waiter))
        deposed = list(_depose(view, host))
        yield from deposed
        if deposed:
            yield from _serve(view, host)
    if change is None or change.operation != "reserve":
        yield from _serve(view, host)


def hurts(view: State, head: Waiter, change: Change, host: Host) -> bool:
    """Tell whether *change* takes of what the node has too little of for *head*.

    What is really in use of its memory is no promise, and no admission changes it. Of devices
    only the one counts where something is held already.
    """
    free = tickets.without(view, head)
    decision = evaluate(free, host.facts, head.demand, host.now, host.policy)
    if isinstance(decision, Admitted):
        return False
    gates = {"node", "node-storage-free"}
    lacks = {short.dimension for short in decision.shortfalls if short.gate in gates}
    return any(
        dimension_of(pool).name in lacks
        and ("/" not in pool or head.ticket.gpu_device in (None, pool.partition("/")[2]))
        for account, pool, amount in change.postings
        if account == "headroom" and amount < 0
    )


def head_of(view: State, host: Host, granted: str = "") -> Waiter | None:
    """Return who is next, as far as the node alone keeps them; only who is before *granted*."""
    for waiter in queue.order(view, host.now):
        if waiter.ticket.id == granted:
            return None
        if waiter.wait.bypasses == 2 or leads(view, waiter, host):
            return waiter
    return None


def _passed(view: State, head: Waiter | None, change: Change) -> Iterator[Change]:
    if head is None or head.wait.bypasses == 2:
        return
    if any(getattr(head.ticket.requests, name) for name in took(change)):
        yield from _apply(view, tickets.bypass(view, head))


def _serve(view: State, host: Host) -> Iterator[Change]:
    for waiter in queue.waiters(view):
        if waiter.wait.bypasses == 2:
            yield from _apply(view, tickets.hold(view, waiter))
            if fits(view, queue.get(view, waiter.ticket.id), host):
                yield from _grant(view, waiter.ticket.id, host)
            break
    yield from _depose(view, host)
    head: Waiter | None = None
    granted = False
    for waiter in queue.order(view, host.now):
        key = waiter.ticket.id
        if waiter.wait.bypasses == 2:
            head = waiter
        elif fits(view, waiter, host):
            made = list(_grant(view, key, host))
            granted = True
            yield from made
            if head is not None:
                yield from _passed(view, queue.find(view, head.ticket.id), made[0])
                head = queue.find(view, head.ticket.id)
        elif head is None and leads(view, waiter, host):
            head = waiter
    if granted:
        yield from _serve(view, host)


def _depose(view: State, host: Host) -> Iterator[Change]:
    for waiter in queue.waiters(view):
        if waiter.wait.bypasses == 2 and not (
            fits(view, waiter, host) or leads(view, waiter, host)
        ):
            yield from _apply(view, tickets.let_go(view, waiter))


def _grant(view: State, key: str, host: Host) -> Iterator[Change]:
    made = tickets.grant(view, queue.get(view, key), host)
    assert isinstance(made, Change)
    yield from _apply(view, made)


def _apply(view: State, change: Change) -> Iterator[Change]:
    if change.puts:
        view.apply(change)
        yield change
