"""The use cases of many runs: list them page by page, and prune what is over."""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from axern.daemon import retention
from axern.daemon.run_index import Entry, place
from axern.daemon.runs import RUN_ID, WAITING
from ledger import rights
from ledger.errors import InvalidArgument, NotFound
from ledger.reservation import RESERVED
from ledger.tables import TICKETS

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from axern.api.schema import PruneRequest
    from axern.daemon.parts import Json, Parts
    from axern.daemon.run_service import RunService

_LONGEST_MS = 16
"""Digits of the largest integer in the API, 2**53 - 1."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are meant: all that agree with every field that says something.

    A label's value of None is met by any. `from_ms` is included, `before_ms` is not; both are about
    the creation, by the wall clock.
    """

    namespace: str | None = None
    statuses: frozenset[str] = frozenset()
    labels: Mapping[str, str | None] = field(default_factory=dict)
    uid: int | None = None
    from_ms: int | None = None
    before_ms: int | None = None

    def admits(self, entry: Entry, status: str) -> bool:
        """Tell whether the run *entry*, which has *status* now, is meant."""
        return (
            self.namespace in (None, entry.namespace)
            and self.uid in (None, entry.uid)
            and (not self.statuses or status in self.statuses)
            and (self.from_ms is None or entry.created_wall_ms >= self.from_ms)
            and (self.before_ms is None or entry.created_wall_ms < self.before_ms)
            and all(
                key in entry.labels and value in (None, entry.labels[key])
                for key, value in self.labels.items()
            )
        )


class RunLists:
    """What can be asked of all runs at once; every call blocks and belongs in a thread."""

    def __init__(self, parts: Parts, runs: RunService) -> None:
        self._parts = parts
        self._runs = runs

    def page(
        self, wanted: Wanted, peer: Peer, *, limit: int, cursor: str | None
    ) -> tuple[list[Json], str | None]:
        """Return *limit* runs, newest first, behind *cursor*, and the cursor for more or None.

        Runs that begin or are pruned meanwhile move no page: a cursor is a place in time.

        Raises:
            InvalidArgument: *cursor* is none.
        """
        behind = None if cursor is None else _place_of(cursor)
        views: list[Json] = []
        last: Entry | None = None
        for entry, _ in self._meant(wanted):
            if behind is not None and place(entry) >= behind:
                continue
            if len(views) == limit:
                return views, None if last is None else _cursor_of(last)
            with contextlib.suppress(NotFound):  # pruned a moment ago
                views.append(self._runs.view(entry.id, peer))
                last = entry
        return views, None

    def _meant(self, wanted: Wanted) -> Iterator[tuple[Entry, str]]:
        state = self._parts.ledger.state
        for entry in self._parts.run_index.entries():
            row = None if entry.status else state.find_reservation(entry.id)
            waits = row is None and state.row(TICKETS, entry.id) is not None
            status = entry.status or (row.phase if row else WAITING if waits else RESERVED)
            if wanted.admits(entry, status):
                yield entry, status

    def prune(self, body: PruneRequest, peer: Peer) -> Json:
        """Remove runs that have ended and are meant; return how many, which, and their bytes.

        Raises:
            PermissionDenied: Runs of all users, for who neither is an admin nor owns the namespace.
        """
        if body.all_users:
            everybodys = rights.Thing("what all users have run", None, body.namespace)
            self._parts.require(rights.PRUNE, peer, everybodys)
        now_ms = self._parts.clock().wall_ms
        wanted = Wanted(
            body.namespace,
            frozenset(body.statuses),
            body.labels,
            None if body.all_users else peer.uid,
        )
        over = [
            entry
            for entry, _ in self._meant(wanted)
            if retention.is_over(self._parts, entry)
            and now_ms - (entry.finished_wall_ms or 0) >= body.older_than_ms
        ]
        if not body.dry_run:
            over = retention.remove(self._parts, over)
            _log.info("pruned for uid %s: %s", peer.uid, retention.told(over))
        return {
            "count": len(over),
            "disk_bytes": retention.sum_bytes(over),
            "run_ids": [entry.id for entry in over],
            "dry_run": body.dry_run,
        }


def _cursor_of(entry: Entry) -> str:
    text = f"{entry.created_wall_ms}.{entry.id}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _place_of(cursor: str) -> tuple[int, str]:
    """Return the place in the list that *cursor* is."""
    with contextlib.suppress(binascii.Error, ValueError):
        padded = cursor + "=" * (-len(cursor) % 4)
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode("ascii")
        created, _, run_id = text.partition(".")
        if RUN_ID.fullmatch(run_id) and created.isdigit() and len(created) <= _LONGEST_MS:
            return int(created), run_id
    raise InvalidArgument(
        "cursor: it is none that this daemon has given", hint="begin anew without a cursor"
    )
