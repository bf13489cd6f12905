"""The daemon's answers, read from the ledger's files because no daemon answers.

The objects are made by the same functions as the daemon's, so they differ only in what nobody can
know without it: liveness is `unobserved`, and `source` says where they come from.
"""

from __future__ import annotations

import os
import time

from axern.cli.output import say
from axern.errors import DaemonUnreachable
from ledger.errors import InvalidArgument, NotFound, PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.clock import Now
    from ledger.reader import Snapshot
    from ledger.reservation import Reservation
    from ledger.state import State

    Json = dict[str, Any]

SOURCE = "ledger-file"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def read(where: Where, reason: DaemonUnreachable) -> Snapshot:
    """Return the ledger as its files have it.

    Raises:
        DaemonUnreachable: *reason*, where there are no files that this user may read.
        LedgerError: They are damaged, too new, or change too fast.
    """
    from ledger.reader import read as read_files

    try:
        return read_files(where.ledger_dir)
    except (NotFound, PermissionDenied) as error:
        raise DaemonUnreachable(f"{reason.message}; {error.message}", hint=reason.hint) from error


def reservations(snapshot: Snapshot, namespace: str | None, phase: str | None) -> Json:
    """Return what `GET /v2/reservations` would answer."""
    now = clock(snapshot.state)
    rows = [
        _view(reservation, now)
        for reservation in snapshot.state.reservations()
        if namespace in {None, reservation.namespace} and phase in {None, reservation.phase}
    ]
    return {"reservations": rows, **_origin(snapshot)}


def closely(where: Where, prefix: str, reason: DaemonUnreachable) -> Json:
    """Return what `GET /v2/reservations/ID` would answer, with history and, for root, evidence.

    Raises:
        NotFound: No id begins so, and none is remembered.
        InvalidArgument: More than one does.
    """
    from axern.api.views import ended_view, history_view
    from ledger import history

    snapshot = read(where, reason)
    found = [row for row in snapshot.state.reservations() if row.id.startswith(prefix)]
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} reservations have an id that begins with {prefix}",
            hint="give more of the id",
        )
    word = found[0].id if found else prefix
    past = history.find(where.ledger_dir, word, snapshot.generation)
    if past is None and not found:
        raise NotFound(
            f"no reservation has an id that begins with {prefix}, and none is remembered",
            hint="list them with: axern reservations",
        )
    now = clock(snapshot.state)
    row = found[0] if found else None
    last = past.last if past else None
    view = _view(row, now) if row else ended_view(last, now) if last else None
    seen, ended = _seen(where, row, row.id if row else past.reservation_id if past else word)
    return {
        "reservation": view,
        "exit": ended,
        "evidence": seen,
        "history": history_view(past),
        **_origin(snapshot),
    }


def _seen(where: Where, row: Reservation | None, name: str) -> tuple[Json | None, Json | None]:
    """Return the evidence of *row* and the exit record of *name*; for root, who alone may look."""
    if os.geteuid() != 0:
        return None, None
    from axern.config import load
    from axern.runtime import offline

    settings = load(where.config)
    return offline.evidence(settings, row) if row else None, offline.exit_of(settings, name)


def node(snapshot: Snapshot) -> Json:
    """Return what `GET /v2/node` would answer, with null for what only the daemon observes."""
    from axern.api.views import node_view

    observed = dict.fromkeys(("version", "cgroup_enforcement", "capabilities", "runtimes"))
    view = {"node_id": snapshot.node_id, **observed, **node_view(snapshot.state)}
    return {"node": view, **_origin(snapshot)}


def announce(answer: Json) -> None:
    """Tell a person that *answer* comes from the files, if it does."""
    if answer.get("source") == SOURCE:
        say(f"source: {SOURCE}, generation {answer['generation']}")


def _origin(snapshot: Snapshot) -> Json:
    return {"source": SOURCE, "generation": snapshot.generation}


def _view(row: Reservation, now: Now) -> Json:
    from axern.api.views import reservation_view
    from ledger.reservation import UNOBSERVED

    return reservation_view(row, UNOBSERVED, now)


def clock(state: State) -> Now:
    """Return the clocks of now, or of the last commit if the host was started anew since then.

    Deadlines count on the boot of the last commit; only there can they be turned into wall time.
    """
    from ledger.clock import Now

    with open(_BOOT_ID, encoding="ascii") as file:
        boot_id = file.read().strip()
    if boot_id != state.clock.boot_id:
        return state.clock
    return Now(
        boot_id=boot_id,
        monotonic_ms=time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000,
        boottime_ms=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000,
        wall_ms=time.time_ns() // 1_000_000,
    )
