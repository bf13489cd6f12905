"""The daemon's answers, read from the ledger's files because no daemon answers.

The objects are made by the same functions as the daemon's, so they differ only in what nobody can
know without it: liveness is `unobserved`, and `source` says where they come from.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from axern.cli.output import say
from axern.errors import DaemonUnreachable
from ledger.errors import InvalidArgument, NotFound, PermissionDenied

if TYPE_CHECKING:
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
    now = _now(snapshot.state)
    rows = [
        _view(reservation, now)
        for reservation in snapshot.state.reservations()
        if namespace in {None, reservation.namespace} and phase in {None, reservation.phase}
    ]
    return {"reservations": rows, **_origin(snapshot)}


def reservation(snapshot: Snapshot, prefix: str) -> Json:
    """Return what `GET /v2/reservations/ID` would answer for the unique beginning of an id.

    Raises:
        NotFound: No id begins so.
        InvalidArgument: More than one does.
    """
    found = [row for row in snapshot.state.reservations() if row.id.startswith(prefix)]
    if not found:
        raise NotFound(
            f"no reservation has an id that begins with {prefix}",
            hint="list them with: axern reservations",
        )
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} reservations have an id that begins with {prefix}",
            hint="give more of the id",
        )
    return {"reservation": _view(found[0], _now(snapshot.state)), **_origin(snapshot)}


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


def _now(state: State) -> Now:
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
