"""How many granted requests are remembered: those of live entries all, of ended ones the newest.

A client that reserves and releases in a loop leaves one record a turn, each for 24 hours. So of
entries that have ended each user has at most `PER_USER` records and all together `IN_ALL`; beyond
it the oldest ends are forgotten first. The record of an entry that lives is never forgotten, so
that no retry, however late, holds twice. Source: docs/decisions/0025-batches-and-bounds.md.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, cast

from ledger import tables
from ledger.tables import RequestRecord, request_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ledger.state import Change, State

PER_USER = 10_000
IN_ALL = 100_000
ENDS = frozenset({"release", "stop"})
"""Operations that may end an entry; their own request ids need not outlive it, it stays ended."""


def ended_by(view: State, change: Change) -> list[str]:
    """Return the keys of request records whose entry is gone by *change*, one of `ENDS`.

    Ask before it is applied.
    """
    ended = []
    for put in change.puts:
        if put.table == tables.RESERVATIONS and put.row is None:
            entry = view.find_reservation(put.key)
            if entry is not None and entry.request_id is not None:
                ended.append(request_key(entry.owner.uid, entry.request_id))
        elif put.table == tables.REQUESTS and put.row is not None:
            ended.append(put.key)
    return ended


class EndedRequests:
    """The keys of records whose entry is gone, by user, those that ended first in front.

    Keys that were forgotten by age may stand in it until they come to the front.
    """

    def __init__(self, per_user: int = PER_USER, in_all: int = IN_ALL) -> None:
        self._per_user = per_user
        self._in_all = in_all
        self._queues: dict[str, deque[str]] = {}
        self._count = 0

    @classmethod
    def of(cls, state: State) -> EndedRequests:
        """Return those of *state*, in the order in which they were granted."""
        found = cls()
        found.settle(
            [
                key
                for key, row in state.rows(tables.REQUESTS)
                if not _is_live(state, cast("RequestRecord", row))
            ],
            {},
        )
        return found

    def over(self, fresh: Sequence[str]) -> Mapping[str, int]:
        """Return of how many of each user the oldest must go once *fresh* have ended, too."""
        new: dict[str, int] = {}
        for key in fresh:
            user = key.partition(":")[0]
            new[user] = new.get(user, 0) + 1
        sizes = {user: len(self._queues.get(user, ())) + count for user, count in new.items()}
        drops = {
            user: size - self._per_user for user, size in sizes.items() if size > self._per_user
        }
        excess = self._count + len(fresh) - sum(drops.values()) - self._in_all
        if excess > 0:
            sizes = {user: len(queue) for user, queue in self._queues.items()} | sizes
        while excess > 0:
            largest = max(sizes, key=lambda user: sizes[user] - drops.get(user, 0))
            share = min(excess, sizes[largest] - drops.get(largest, 0))
            drops[largest] = drops.get(largest, 0) + share
            excess -= share
        return drops

    def oldest(self, fresh: Sequence[str], drops: Mapping[str, int], view: State) -> list[str]:
        """Return the keys that go, as `over` has it; one that was used again meanwhile stays."""
        keys = (
            key
            for user, count in drops.items()
            for key in islice(chain(self._queues.get(user, ()), _of(user, fresh)), count)
        )
        rows = ((key, cast("RequestRecord | None", view.row(tables.REQUESTS, key))) for key in keys)
        return [key for key, row in rows if row is not None and not _is_live(view, row)]

    def settle(self, fresh: Sequence[str], drops: Mapping[str, int]) -> None:
        """Take note that *fresh* have ended and the oldest *drops* of each user are gone."""
        for key in fresh:
            self._queues.setdefault(key.partition(":")[0], deque()).append(key)
        self._count += len(fresh)
        for user, count in drops.items():
            queue = self._queues[user]
            for _ in range(count):
                queue.popleft()
            self._count -= count
            if not queue:
                del self._queues[user]


def _of(user: str, keys: Sequence[str]) -> Iterator[str]:
    return (key for key in keys if key.partition(":")[0] == user)


def _is_live(view: State, record: RequestRecord) -> bool:
    key = record.reservation_id
    return view.find_reservation(key) is not None or view.row(tables.TICKETS, key) is not None
