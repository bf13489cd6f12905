"""A ledger in a dict, and each operation said twice: to the ledger and to the model.

The model knows three dimensions, no accounts, no forks and no files; what it says is what the
contract says. Storage and GPU memory are left to the walks of the pure ledger.
"""

from dataclasses import dataclass, field, replace
from typing import Self

from ledger import standing, transitions
from ledger.capacity import node_of
from ledger.clock import Now
from ledger.facts import Facts
from ledger.postings import change
from ledger.reservation import EXTERNAL, RUN, TRANSITIONS
from ledger.resources import OptionalResources, Resources
from ledger.rights import ROOT
from ledger.state import Change, Put, State
from ledger.tables import TICKETS, Claim, LimitRange, Namespace, Ticket
from tests.unit.ledger.samples import CGROUP, MONITOR, POLICY, proposal

Amounts = tuple[int, int, int]
"""CPU in milli-cores, memory in bytes, sandbox slots."""
NOTHING: Amounts = (0, 0, 0)
SPACES = ("default", "team-a", "team-b")


def vector(amounts: Amounts) -> Resources:
    """Return *amounts* as the ledger has them."""
    return Resources(amounts[0], amounts[1], sandbox_slots=amounts[2])


def triple(vector: Resources) -> Amounts:
    """Return what the model keeps of *vector*."""
    return vector.cpu_milli, vector.memory_bytes, vector.sandbox_slots


@dataclass(frozen=True, slots=True)
class Entry:
    """What the model knows of a reservation."""

    namespace: str
    phase: str
    requests: Amounts
    charged: Amounts
    created_ms: int
    expires_ms: int | None
    ceiling_ms: int | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the model knows of a claim; its drawdown follows from the entries."""

    amounts: Amounts
    hard: bool
    expires_ms: int | None = None


@dataclass(slots=True)
class Model:
    """The whole ledger as plain values; `clock` is that of the last commit."""

    clock: Now
    generation: int = 0
    serial: int = 0
    capacity: Amounts | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    requests: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    beats: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, OptionalResources] = field(default_factory=dict)
    claims: dict[str, Claimed] = field(default_factory=dict)
    spaces: frozenset[str] = frozenset({"default"})
    least_cpu: dict[str, int] = field(default_factory=dict)
    held: Amounts | None = None
    standing: tuple[str, str] | None = None

    @property
    def retired(self) -> bool:
        """Tell whether the node never takes part again."""
        return self.standing is not None and self.standing[0] == "retired"

    def copy(self) -> Self:
        """Return an independent copy; the values inside are frozen."""
        return replace(
            self,
            entries=dict(self.entries),
            requests=dict(self.requests),
            beats=dict(self.beats),
            quotas=dict(self.quotas),
            claims=dict(self.claims),
            least_cpu=dict(self.least_cpu),
        )

    def key(self, which: int) -> str:
        """Return the id of some entry, or one that nobody has."""
        keys = list(self.entries)
        return keys[which % len(keys)] if keys else "nobody"

    def fits(self, namespace: str, asked: Amounts) -> bool:
        """Tell whether *asked* may be admitted, by adding up entries."""
        if self.capacity is None:
            return False
        quota = triple_or_none(self.quotas.get(namespace, OptionalResources()))
        claim = self.claims.get(namespace)
        for i, need in enumerate(asked):
            mine = sum(
                entry.charged[i]
                for entry in self.entries.values()
                if entry.namespace == namespace and entry.phase != "retiring"
            )
            over_node = need > self.free(i) + self.undrawn(namespace)[i]
            over_quota = quota[i] is not None and mine + need > (quota[i] or 0)
            over_claim = (
                claim is not None
                and claim.hard
                and 0 < claim.amounts[i] < self.drawn(namespace)[i] + need
            )
            if need and (over_node or over_quota or over_claim):
                return False
        return True

    def drawn(self, namespace: str) -> Amounts:
        """Return what all entries of *namespace* hold."""
        drawn = [entry.charged for entry in self.entries.values() if entry.namespace == namespace]
        return sum(d[0] for d in drawn), sum(d[1] for d in drawn), sum(d[2] for d in drawn)

    def undrawn(self, namespace: str) -> Amounts:
        """Return what *namespace* has claimed and does not hold."""
        claim = self.claims.get(namespace)
        if claim is None:
            return NOTHING
        claimed, drawn = claim.amounts, self.drawn(namespace)
        return (
            max(0, claimed[0] - drawn[0]),
            max(0, claimed[1] - drawn[1]),
            max(0, claimed[2] - drawn[2]),
        )

    def free(self, i: int) -> int:
        """Return what nobody holds and nobody is promised of dimension *i*; may be below zero."""
        taken = sum(entry.charged[i] for entry in self.entries.values())
        promised = sum(self.undrawn(name)[i] for name in self.claims)
        held = self.held[i] if self.held else 0
        return (self.capacity or NOTHING)[i] - taken - promised - held

    def reboot(self, now: Now) -> None:
        """Carry deadlines over to another boot."""
        shift = now.boottime_ms - self.clock.boottime_ms
        ending = {key: row for key, row in self.claims.items() if row.expires_ms is not None}
        if not (self.entries or self.requests or self.beats or ending):
            return
        for key, row in ending.items():
            self.claims[key] = replace(row, expires_ms=(row.expires_ms or 0) + shift)
        for key, entry in self.entries.items():
            self.entries[key] = replace(
                entry,
                created_ms=entry.created_ms + shift,
                expires_ms=None if entry.expires_ms is None else entry.expires_ms + shift,
                ceiling_ms=None if entry.ceiling_ms is None else entry.ceiling_ms + shift,
            )
        for key, (digest, entry_id, created) in self.requests.items():
            self.requests[key] = (digest, entry_id, created + shift)
        self.beats.clear()
        self.clock, self.generation = now, self.generation + 1


def triple_or_none(quota: OptionalResources) -> tuple[int | None, int | None, int | None]:
    """Return what the model keeps of *quota*."""
    return quota.cpu_milli, quota.memory_bytes, quota.sandbox_slots


def is_retired(view: State) -> bool:
    """Tell whether the ledger says that its node never takes part again."""
    row = view.standing()
    return row is not None and row.state == "retired"


def seen(state: State) -> Model:
    """Return *state* as the model would have it."""
    rows = state.all_rows()
    node = state.node()
    ticket = state.row(TICKETS, "head")
    return Model(
        clock=state.clock,
        generation=state.generation,
        capacity=triple(node.effective_allocatable) if node else None,
        entries={
            entry.id: Entry(
                entry.namespace,
                entry.phase,
                triple(entry.requests),
                triple(entry.charged),
                entry.created_boottime_ms,
                entry.expires_boottime_ms,
                entry.expires_limit_boottime_ms,
            )
            for entry in state.reservations()
        },
        requests={
            key: (row.digest, row.reservation_id, row.created_boottime_ms)  # type: ignore[union-attr]  # by table
            for key, row in rows["requests"].items()
        },
        beats={key: row.monotonic_ms for key, row in rows["beats"].items()},  # type: ignore[union-attr]  # by table
        quotas={
            row.name: row.quota
            for row in rows["namespaces"].values()
            if isinstance(row, Namespace) and row.quota != OptionalResources()
        },
        claims={
            row.namespace: Claimed(triple(row.amount), row.hard, row.expires_boottime_ms)
            for row in rows["claims"].values()
            if isinstance(row, Claim)
        },
        spaces=frozenset(rows["namespaces"]),
        least_cpu={
            row.namespace: row.minimum.cpu_milli
            for row in rows["limit_ranges"].values()
            if isinstance(row, LimitRange) and row.minimum.cpu_milli is not None
        },
        held=triple(ticket.held) if isinstance(ticket, Ticket) else None,
        standing=(row.state, row.reason) if (row := state.standing()) else None,
    )


Outcome = tuple[str, bool]
"""The code of the error, or "" for none; and whether anything changed."""
DONE: Outcome = ("", True)
SAME: Outcome = ("", False)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation; `which` picks the entry it is for, `bind` puts that entry's id into `key`."""

    which: int = 0
    key: str = ""

    def bind(self, model: Model) -> Self:
        return replace(self, key=model.key(self.which))

    def expect(self, model: Model, now: Now) -> Outcome:
        """Do it to *model* and return what the ledger must answer."""
        raise NotImplementedError

    def change(self, view: State, now: Now) -> Change:
        """Return what the ledger makes of it; raises what the transition raises."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Reserve(Op):
    namespace: str = "default"
    amounts: Amounts = NOTHING
    lease: bool = False
    ttl_ms: int | None = None
    ceiling_ms: int | None = None
    request_id: str | None = None
    digest: str = ""

    def bind(self, model: Model) -> Self:
        model.serial += 1
        return replace(self, key=f"r{model.serial}")

    def expect(self, model: Model, now: Now) -> Outcome:
        used = model.requests.get(f"1000:{self.request_id}") if self.request_id else None
        if used is not None:
            if used[0] != self.digest:
                return "request_id_conflict", False
            return ("" if used[1] in model.entries else "state_conflict"), False
        if self.namespace not in model.spaces:
            return "not_found", False
        if model.standing is not None or not model.fits(self.namespace, self.amounts):
            return "refused", False
        given = [ms for ms in (self.ttl_ms, self.ceiling_ms) if ms is not None]
        model.entries[self.key] = Entry(
            self.namespace,
            "reserved",
            self.amounts,
            self.amounts,
            now.boottime_ms,
            now.boottime_ms + min(given) if given else None,
            now.boottime_ms + self.ceiling_ms if self.ceiling_ms is not None else None,
        )
        if self.request_id:
            model.requests[f"1000:{self.request_id}"] = (self.digest, self.key, now.boottime_ms)
        return DONE

    def change(self, view: State, now: Now) -> Change:
        wanted = proposal(
            self.key,
            vector(self.amounts),
            namespace=self.namespace,
            request_id=self.request_id,
            digest=self.digest,
            kind=EXTERNAL if self.lease else RUN,
            ttl_ms=self.ttl_ms,
            max_lifetime_ms=self.ceiling_ms,
        )
        return transitions.reserve(view, wanted, Facts(1, now.monotonic_ms), now, POLICY)


@dataclass(frozen=True, slots=True)
class Advance(Op):
    """Start, run, stop, retire or release."""

    target: str = "starting"
    memory: int = 0

    def expect(self, model: Model, now: Now) -> Outcome:
        entry = model.entries.get(self.key)
        if entry is None:
            return "not_found", False
        quiet = {"stopping": ("stopping", "retiring"), "retiring": ("retiring",)}
        if entry.phase in quiet.get(self.target, ()):
            return SAME
        if (self.target, entry.phase) == ("running", "stopping"):
            return DONE  # it is found, and goes on stopping
        if self.target not in TRANSITIONS[entry.phase]:
            return "state_conflict", False
        if self.target == "released":
            del model.entries[self.key]
            model.beats.pop(self.key, None)
            return DONE
        moved = replace(entry, phase=self.target)
        if self.target == "retiring":
            cpu, memory, slots = entry.charged
            moved = replace(moved, charged=(cpu, max(memory, self.memory), slots))
        model.entries[self.key] = moved
        return DONE

    def change(self, view: State, now: Now) -> Change:
        match self.target:
            case "starting":
                return transitions.start(view, self.key)
            case "running":
                return transitions.run(view, self.key, MONITOR, CGROUP)
            case "stopping":
                return transitions.stop(view, self.key, "asked", "uid:1000")
            case "retiring":
                return transitions.retire(view, self.key, "exit", self.memory)
            case _:
                return transitions.release(view, self.key, "gone")


@dataclass(frozen=True, slots=True)
class Renew(Op):
    ttl_ms: int = 0

    def expect(self, model: Model, now: Now) -> Outcome:
        entry = model.entries.get(self.key)
        if entry is None:
            return "not_found", False
        wanted = now.boottime_ms + self.ttl_ms
        deadline = wanted if entry.ceiling_ms is None else min(wanted, entry.ceiling_ms)
        if entry.expires_ms is None or deadline <= entry.expires_ms:
            return SAME
        model.entries[self.key] = replace(entry, expires_ms=deadline)
        return DONE

    def change(self, view: State, now: Now) -> Change:
        return transitions.renew(view, self.key, self.ttl_ms, now)


@dataclass(frozen=True, slots=True)
class BeatOp(Op):
    def expect(self, model: Model, now: Now) -> Outcome:
        if self.key not in model.entries:
            return SAME
        model.beats[self.key] = now.monotonic_ms
        return DONE

    def change(self, view: State, now: Now) -> Change:
        return transitions.persist_beats(view, {self.key: now.monotonic_ms, "nobody": 1})


@dataclass(frozen=True, slots=True)
class Observe(Op):
    amounts: Amounts = NOTHING

    def expect(self, model: Model, now: Now) -> Outcome:
        if model.capacity == self.amounts:
            return SAME
        model.capacity = self.amounts
        return DONE

    def change(self, view: State, now: Now) -> Change:
        return transitions.observe_node(view, node_of(vector(self.amounts), Resources(), "1"))


@dataclass(frozen=True, slots=True)
class Forget(Op):
    request_id: str = ""

    def expect(self, model: Model, now: Now) -> Outcome:
        return DONE if model.requests.pop(f"1000:{self.request_id}", None) else SAME

    def change(self, view: State, now: Now) -> Change:
        return transitions.forget_requests(view, [f"1000:{self.request_id}"])


@dataclass(frozen=True, slots=True)
class Hold(Op):
    """Put a ticket at the head of the queue with capacity held for it, or take it away."""

    amounts: Amounts | None = None

    def expect(self, model: Model, now: Now) -> Outcome:
        if model.retired:
            return SAME
        model.held = self.amounts
        return DONE

    def change(self, view: State, now: Now) -> Change:
        row = None
        if is_retired(view):
            return Change("queue")
        if self.amounts is not None:
            held = vector(self.amounts)
            row = Ticket("head", "default", 1000, held, held, 1, 0)
        return change(view, "queue", (Put(TICKETS, "head", row),))


@dataclass(frozen=True, slots=True)
class Stand(Op):
    """Drain, undrain (no reason) or retire the node."""

    state: str = "draining"
    reason: str = ""

    def expect(self, model: Model, now: Now) -> Outcome:
        wanted = (self.state, self.reason) if self.reason else None
        if model.retired:
            return ("" if self.state == "retired" else "state_conflict"), False
        if self.state == "retired" and (model.entries or model.claims or model.held is not None):
            return "state_conflict", False
        changed, model.standing = model.standing != wanted, wanted
        return "", changed

    def change(self, view: State, now: Now) -> Change:
        if not self.reason:
            return standing.undrain(view, ROOT)
        wish = standing.Wish(ROOT, self.reason)
        if self.state == "retired":
            return standing.retire(view, wish, now)
        return standing.drain(view, wish, now)
