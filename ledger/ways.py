"""Which releases would make a refused demand fit, and when it fits by deadlines alone.

For one need the fewest releases are found exactly. For several the search is bounded: a set that is
found always works, and says whether it is proved that no smaller one does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nlargest
from itertools import combinations_with_replacement
from math import comb
from operator import sub
from typing import TYPE_CHECKING, NamedTuple, cast

from ledger import tables
from ledger.drawdown import drawn_from
from ledger.needs import Need, claims_of_others, is_under
from ledger.refusal import NAMESPACE_CLAIM
from ledger.resources import BY_NAME, by_pool, pool
from ledger.units import MAX_INTEGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ledger.admission import Demand
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Claim, Ticket

COMBINATIONS = 2_000
"""How many sets of releases are tried at most."""
MOST_RELEASES = 16
"""A longer list helps nobody, and each entry of it costs time."""
MOST_KINDS = 32
"""Of entries that hold different amounts, those that hold most are looked at."""
_SCALE = 1_000_000


def fewest(
    view: State, demand: Demand, needs: Sequence[Need], rows: Iterable[Reservation]
) -> tuple[list[Reservation], bool] | None:
    """Return a small set of *rows* whose release meets *needs*, and whether none is smaller.

    None if all together do not suffice, or more than `MOST_RELEASES` would have to go.
    """
    claims = claims_of_others(view, demand)
    if len(needs) == 1:
        found = _fewest_for_one(needs[0], rows, claims)
        return None if found is None else (found, True)
    return _few_for_several(needs, rows, claims)


def _fewest_for_one(
    need: Need, rows: Iterable[Reservation], claims: Mapping[str, Claim]
) -> list[Reservation] | None:
    """Take the largest first: among entries under one claim each frees less than the one before."""
    free: list[tuple[int, Reservation]] = []
    under: dict[str, list[tuple[int, Reservation]]] = {}
    for row in rows:
        share = need.share(row)
        if share:
            claim = claims.get(row.claim_id or "")
            bound = claim is not None and is_under(need, claim)
            (under.setdefault(str(row.claim_id), []) if bound else free).append((share, row))
    offers = list(free)
    for claim_id, held in under.items():
        offers += _beyond(_overdrawn(claims[claim_id], need.dimension), held)
    offers.sort(key=lambda offer: -offer[0])
    taken: list[tuple[int, Reservation]] = []
    left = need.amount
    for offer in offers[:MOST_RELEASES]:
        if left <= 0:
            break
        taken.append(offer)
        left -= offer[0]
    if left > 0:
        return None
    return [row for _, row in (_spared(taken, offers, -left) if not under else taken)]


def _beyond(left: int, held: list[tuple[int, Reservation]]) -> Iterator[tuple[int, Reservation]]:
    """Yield what each end frees until a claim is no longer overdrawn; the rest stays promised."""
    for share, row in sorted(held, key=lambda offer: -offer[0]):
        freed = min(share, left)
        left -= freed
        if freed:
            yield freed, row


def _overdrawn(claim: Claim, dimension: str) -> int:
    over: int = getattr(claim.drawdown, dimension) - getattr(claim.amount, dimension)
    return max(0, over)


def _spared(
    taken: list[tuple[int, Reservation]], offers: list[tuple[int, Reservation]], over: int
) -> list[tuple[int, Reservation]]:
    """Return as many offers as *taken*, which frees *over* too much, of smaller entries."""
    kept = list(taken)
    others = offers[len(taken) :][::-1]  # the smallest in front
    for index in reversed(range(len(kept))):
        share = kept[index][0]
        place = bisect_left(others, share - over, key=lambda offer: offer[0])
        if place < len(others) and others[place][0] < share:
            over -= share - others[place][0]
            kept[index] = others.pop(place)
    return kept


def _few_for_several(
    needs: Sequence[Need], rows: Iterable[Reservation], claims: Mapping[str, Claim]
) -> tuple[list[Reservation], bool] | None:
    alike: dict[_Kind, list[Reservation]] = {}
    for row in rows:
        shares = tuple(need.share(row) for need in needs)
        if any(shares):
            bound = row.claim_id if row.claim_id in claims else None
            alike.setdefault(_Kind(shares, bound), []).append(row)
    if not _may_suffice(needs, alike):
        return None
    sums = _Sums(needs, claims)
    kinds = _largest(alike)
    proved = len(kinds) == len(alike)
    picked: Sequence[_Kind] | None = _greedy(sums, kinds, alike)
    if picked is None:
        return None
    budget = COMBINATIONS
    for size in range(1, len(picked)):
        budget -= comb(len(kinds) + size - 1, size)
        if budget < 0:
            proved = False
            break
        found = _of_size(size, sums, kinds, alike)
        if found is not None:
            picked = found
            break
    counts = Counter(picked)
    return [row for kind, count in counts.items() for row in alike[kind][-count:]], proved


class _Kind(NamedTuple):
    """Entries that are alike: what each holds of every need, and under whose claim."""

    shares: tuple[int, ...]
    claim_id: str | None


class _Sums:
    """What several ends free together: under a claim no more than it is overdrawn by."""

    def __init__(self, needs: Sequence[Need], claims: Mapping[str, Claim]) -> None:
        self.wanted = tuple(need.amount for need in needs)
        self._most = {
            claim_id: tuple(
                _overdrawn(claim, need.dimension) if is_under(need, claim) else MAX_INTEGER
                for need in needs
            )
            for claim_id, claim in claims.items()
        }

    def left(self, some: Iterable[_Kind]) -> tuple[int, ...]:
        """Return how much of each need is left, or less than 0, once *some* have ended."""
        left = list(self.wanted)
        under: dict[str, list[int]] = {}
        for kind in some:
            if kind.claim_id is None:
                left = [rest - share for rest, share in zip(left, kind.shares, strict=True)]
            else:
                before = under.get(kind.claim_id, [0] * len(left))
                after = [a + b for a, b in zip(before, kind.shares, strict=True)]
                under[kind.claim_id] = after
        for claim_id, shares in under.items():
            bounds = zip(left, shares, self._most[claim_id], strict=True)
            left = [rest - min(share, most) for rest, share, most in bounds]
        return tuple(left)


def _may_suffice(needs: Sequence[Need], alike: Mapping[_Kind, Sequence[Reservation]]) -> bool:
    """Tell whether as many as may be named free enough of each need on its own."""
    for index, need in enumerate(needs):
        shares = (kind.shares[index] for kind, rows in alike.items() for _ in rows)
        if sum(nlargest(MOST_RELEASES, shares)) < need.amount:
            return False
    return True


def _largest(alike: Mapping[_Kind, Sequence[Reservation]]) -> list[_Kind]:
    """Return the kinds that hold most of some need, `MOST_KINDS` for each."""
    if len(alike) <= MOST_KINDS:
        return list(alike)
    width = len(next(iter(alike)).shares)
    found = {
        kind: None
        for index in range(width)
        for kind in nlargest(MOST_KINDS, alike, key=lambda kind: kind.shares[index])
    }
    return list(found)


def _greedy(
    sums: _Sums, kinds: Sequence[_Kind], alike: Mapping[_Kind, Sequence[Reservation]]
) -> list[_Kind] | None:
    """Take what brings all needs furthest, again and again."""
    taken: list[_Kind] = []
    counts = Counter[_Kind]()
    left = sums.wanted

    def rest_with(kind: _Kind) -> int:
        after = sums.left((*taken, kind)) if kind.claim_id else map(sub, left, kind.shares)
        pairs = zip(after, sums.wanted, strict=True)
        return sum(_SCALE * max(0, rest) // most for rest, most in pairs)

    while any(rest > 0 for rest in left):
        open_kinds = [kind for kind in kinds if counts[kind] < len(alike[kind])]
        if not open_kinds or len(taken) == MOST_RELEASES:
            return None
        best = min(open_kinds, key=rest_with)
        counts[best] += 1
        taken.append(best)
        left = sums.left(taken)
    return taken


def _of_size(
    size: int,
    sums: _Sums,
    kinds: Sequence[_Kind],
    alike: Mapping[_Kind, Sequence[Reservation]],
) -> Sequence[_Kind] | None:
    for some in combinations_with_replacement(kinds, size):
        if all(rest <= 0 for rest in sums.left(some)) and all(
            count <= len(alike[kind]) for kind, count in Counter(some).items()
        ):
            return some
    return None


def earliest_ms(view: State, demand: Demand, needs: Sequence[Need]) -> int | None:
    """Return when *needs* are met by deadlines alone, on CLOCK_BOOTTIME; None where never."""
    left = [need.amount for need in needs]
    claims = claims_of_others(view, demand)
    own = view.claim_of(demand.namespace)
    drawn = {claim_id: claim.drawdown for claim_id, claim in claims.items()}
    for deadline_ms, row in _endings(view):
        if isinstance(row, tables.Claim):
            if own is not None and row.id == own.id:
                left = [
                    0 if need.gate == NAMESPACE_CLAIM else rest
                    for need, rest in zip(needs, left, strict=True)
                ]
            else:
                rest_of_it = by_pool(row.amount.minus(drawn[row.id]), row.gpu_device)
                left = _less(left, needs, rest_of_it)
                del claims[row.id]
        elif isinstance(row, tables.Ticket):
            left = _less(left, needs, by_pool(row.held, row.gpu_device))
        else:
            claim = claims.get(row.claim_id or "")
            for index, need in enumerate(needs):
                freed = need.share(row)
                if claim is not None and is_under(need, claim):
                    over = getattr(drawn[claim.id], need.dimension)
                    over -= getattr(claim.amount, need.dimension)
                    freed = min(freed, max(0, over))
                left[index] -= freed
            if claim is not None:
                drawn[claim.id] = drawn[claim.id].minus(drawn_from(claim, row))
        if all(rest <= 0 for rest in left):
            return deadline_ms
    return None


def _less(left: list[int], needs: Sequence[Need], freed: Mapping[str, int]) -> list[int]:
    return [
        rest - (freed.get(pool(BY_NAME[need.dimension], need.device), 0) if need.on_node else 0)
        for need, rest in zip(needs, left, strict=True)
    ]


def _endings(view: State) -> list[tuple[int, Reservation | Claim | Ticket]]:
    """Return what ends by itself, soonest first."""
    found: list[tuple[int, Reservation | Claim | Ticket]] = [
        (row.expires_boottime_ms, row)
        for row in view.outermost()
        if row.expires_boottime_ms is not None
    ]
    for table in (tables.CLAIMS, tables.TICKETS):
        for _, row in view.rows(table):
            ending = cast("Claim | Ticket", row)
            if ending.expires_boottime_ms is not None:
                found.append((ending.expires_boottime_ms, ending))
    found.sort(key=lambda pair: pair[0])
    return found
