"""What is done to namespaces, quotas and claims, said twice: to the ledger and to the model."""

from dataclasses import dataclass, replace

from ledger import claims, namespaces
from ledger.claims import ClaimProposal, ClaimUpdate, Host
from ledger.clock import Now
from ledger.facts import Facts
from ledger.resources import DIMENSIONS, OptionalResources
from ledger.state import Change, State
from tests.property.model import (
    DONE,
    NOTHING,
    SAME,
    Amounts,
    Claimed,
    Model,
    Op,
    Outcome,
    triple_or_none,
    vector,
)
from tests.unit.ledger.samples import POLICY

ADMIN = "uid:0"


@dataclass(frozen=True, slots=True)
class Space(Op):
    """Make a namespace, or delete it."""

    namespace: str = "team-b"
    make: bool = True

    def expect(self, model: Model, now: Now) -> Outcome:
        there = self.namespace in model.spaces
        if self.make:
            model.spaces |= {self.namespace}
            return SAME if there else DONE
        if not there:
            return "not_found", False
        used = {entry.namespace for entry in model.entries.values()} | model.claims.keys()
        if self.namespace == "default" or self.namespace in used:
            return "state_conflict", False
        model.spaces -= {self.namespace}
        model.quotas.pop(self.namespace, None)
        model.least_cpu.pop(self.namespace, None)
        return DONE

    def change(self, view: State, now: Now) -> Change:
        if self.make:
            return namespaces.create(view, self.namespace, now, ADMIN)
        return namespaces.delete(view, self.namespace, ADMIN)


@dataclass(frozen=True, slots=True)
class Quota(Op):
    """Set every ceiling of a namespace, or unset all."""

    namespace: str = "default"
    quota: OptionalResources = OptionalResources()

    def expect(self, model: Model, now: Now) -> Outcome:
        if self.namespace not in model.spaces:
            return "not_found", False
        before = model.quotas.pop(self.namespace, OptionalResources())
        if self.quota != OptionalResources():
            model.quotas[self.namespace] = self.quota
        return SAME if before == self.quota else DONE

    def change(self, view: State, now: Now) -> Change:
        if self.quota == OptionalResources():
            return namespaces.unset_quota(view, self.namespace, ADMIN)
        ceilings = {each.name: getattr(self.quota, each.name) for each in DIMENSIONS}
        return namespaces.set_quota(view, self.namespace, ceilings, ADMIN)


@dataclass(frozen=True, slots=True)
class Bound(Op):
    """Set the least CPU of one request in a namespace, or take that bound away."""

    namespace: str = "default"
    least_cpu: int | None = None

    def expect(self, model: Model, now: Now) -> Outcome:
        if self.namespace not in model.spaces:
            return "not_found", False
        before = model.least_cpu.pop(self.namespace, None)
        if self.least_cpu is not None:
            model.least_cpu[self.namespace] = self.least_cpu
        return SAME if before == self.least_cpu else DONE

    def change(self, view: State, now: Now) -> Change:
        edits = {"minimum": {"cpu_milli": self.least_cpu}}
        return namespaces.update(view, self.namespace, edits, ADMIN)


@dataclass(frozen=True, slots=True)
class MakeClaim(Op):
    """Claim something for a namespace."""

    namespace: str = "team-a"
    amounts: Amounts = NOTHING
    hard: bool = False
    ttl_ms: int | None = None

    def expect(self, model: Model, now: Now) -> Outcome:
        if self.namespace not in model.spaces:
            return "not_found", False
        if not any(self.amounts):
            return "invalid_argument", False
        there = model.claims.get(self.namespace)
        if there is not None:
            same = (there.amounts, there.hard) == (self.amounts, self.hard)
            return SAME if same else ("state_conflict", False)
        wanted = Claimed(self.amounts, self.hard, _after(now, self.ttl_ms))
        return _resize(model, self.namespace, Claimed(NOTHING, self.hard), wanted)

    def change(self, view: State, now: Now) -> Change:
        asked = ClaimProposal(
            f"claim-{self.namespace}", self.namespace, _named(self.amounts), self.hard, self.ttl_ms
        )
        return claims.create(view, asked, _host(now), ADMIN)


@dataclass(frozen=True, slots=True)
class ChangeClaim(Op):
    """Let the claim of a namespace have other amounts, another mode, another deadline."""

    namespace: str = "team-a"
    amounts: Amounts = NOTHING
    hard: bool | None = None
    ttl_ms: int | None = None

    def expect(self, model: Model, now: Now) -> Outcome:
        there = model.claims.get(self.namespace)
        if there is None:
            return "not_found", False
        if not any(self.amounts):
            return "invalid_argument", False
        drawn = model.drawn(self.namespace)
        for new, old, held in zip(self.amounts, there.amounts, drawn, strict=True):
            if 0 < new < min(old, held):
                return "state_conflict", False
        deadline = there.expires_ms if self.ttl_ms is None else _after(now, self.ttl_ms)
        hard = there.hard if self.hard is None else self.hard
        return _resize(model, self.namespace, there, Claimed(self.amounts, hard, deadline))

    def change(self, view: State, now: Now) -> Change:
        wanted = ClaimUpdate(_named(self.amounts), self.hard, self.ttl_ms)
        return claims.update(view, f"claim-{self.namespace}", wanted, _host(now), ADMIN)


@dataclass(frozen=True, slots=True)
class EndClaim(Op):
    """Give the claim of a namespace up, or only if its time is over."""

    namespace: str = "team-a"
    expired: bool = False

    def expect(self, model: Model, now: Now) -> Outcome:
        there = model.claims.get(self.namespace)
        if there is None:
            return SAME if self.expired else ("not_found", False)
        over = there.expires_ms is not None and now.boottime_ms >= there.expires_ms
        if self.expired and not over:
            return SAME
        del model.claims[self.namespace]
        return DONE

    def change(self, view: State, now: Now) -> Change:
        key = f"claim-{self.namespace}"
        if self.expired:
            return claims.expire(view, key, now)
        return claims.release(view, key, ADMIN)


def _resize(model: Model, namespace: str, before: Claimed, after: Claimed) -> Outcome:
    drawn = model.drawn(namespace)
    quota = triple_or_none(model.quotas.get(namespace, OptionalResources()))
    grows = any(new > old for new, old in zip(after.amounts, before.amounts, strict=True))
    for i, (new, old, held) in enumerate(zip(after.amounts, before.amounts, drawn, strict=True)):
        more = max(0, new - held) - max(0, old - held)
        most = quota[i]
        if grows and (more > max(0, model.free(i)) or (most is not None and new > most)):
            return "refused", False
    if grows and model.standing is not None:
        return "refused", False
    if after.hard and any(0 < a < d for a, d in zip(after.amounts, drawn, strict=True)):
        return "state_conflict", False
    changed = model.claims.get(namespace) != after
    model.claims[namespace] = replace(after)
    return DONE if changed else SAME


def _after(now: Now, ttl_ms: int | None) -> int | None:
    return None if ttl_ms is None else now.boottime_ms + ttl_ms


def _named(amounts: Amounts) -> dict[str, int]:
    every = vector(amounts)
    return {each.name: getattr(every, each.name) for each in DIMENSIONS}


def _host(now: Now) -> Host:
    return Host(Facts(1, now.monotonic_ms), now, POLICY)
