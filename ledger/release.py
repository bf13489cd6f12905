"""Who may release what, and what has to happen first: one rule for the daemon and for who has none.

What runs is never uncharged: it is stopped first, and only where that was asked for with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger import rights, transitions
from ledger.errors import InvalidArgument, StateConflict
from ledger.quick import quick
from ledger.reservation import RESERVED, RUNNING, STARTING, STOPPING, Reservation
from ledger.state import Change
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from ledger.rights import Caller
    from ledger.state import State

LONGEST_REASON = 256
"""Characters of a reason; it stands in the journal, in tables and in the run's record."""

UNCHARGE = "uncharge"
BURY = "bury"
STOP = "stop"
"""What a release takes: a lease is only uncharged; of a sandbox that doesn't run it must be proved
that nothing is left; what runs is stopped before that."""

_BY = "released by uid "


@dataclass(frozen=True, slots=True)
class Asked:
    """A wish to release: who has it, and whether what runs shall be stopped, and why.

    With `token_sha256` it is one of a lease's holder, and holds for no later holder's lease.

    Raises:
        InvalidArgument: `force` without a reason, or a reason that no table could show.
    """

    caller: Caller
    force: bool = False
    reason: str | None = None
    token_sha256: str | None = None

    def __post_init__(self) -> None:
        """Refuse a reason that can't be kept."""
        if self.reason is None:
            if self.force:
                raise InvalidArgument(
                    "reason: force needs one, of 1 to 256 characters",
                    hint="it is kept in the journal and shown to the owner of what was stopped",
                )
            return
        require_reason(self.reason)

    @property
    def uid(self) -> int:
        """Return the user who asks."""
        return self.caller.uid

    @property
    def note(self) -> str:
        """Return who releases it and why, as the journal and the run's record have it."""
        return f"{_BY}{self.uid}" + (f": {self.reason}" if self.reason else "")

    @property
    def by(self) -> str:
        """Return who asks, as the journal names users."""
        return f"uid:{self.uid}"


@quick
@dataclass(frozen=True, slots=True)
class Released:
    """What a release is answered with: proof that the entry is gone, and what proved it.

    `row` is its last one, None where no entry is known; `already` tells that it was gone before.
    """

    id: str
    row: Reservation | None
    at_wall_ms: int
    by: str
    evidence: str
    already: bool = False


def require_reason(reason: str) -> None:
    """Raise InvalidArgument unless *reason* has a word and fits into a line of a table."""
    if not 1 <= len(reason) <= LONGEST_REASON or not reason.strip():
        raise InvalidArgument(
            f"reason: {len(reason)} characters; it must have 1 to {LONGEST_REASON}, and a word"
        )
    if not reason.isprintable():
        raise InvalidArgument("reason: it must be one line without control characters")


def is_note(text: str | None) -> bool:
    """Tell whether *text*, the reason of an entry, is that of a release."""
    return text is not None and text.startswith(_BY)


def require_right(
    asked: Asked, reservation_id: str, owner_uid: int | None = None, namespace: str | None = None
) -> None:
    """Raise PermissionDenied unless who asks may release what is *owner_uid*'s in *namespace*."""
    thing = rights.Thing(f"reservation {reservation_id}", owner_uid, namespace)
    rights.require(rights.RELEASE, asked.caller, thing)


def may_run(row: Reservation) -> bool:
    """Tell from its phase alone whether something of *row* may run; a burial kills what is left."""
    return row.is_sandbox and row.phase in (STARTING, RUNNING, STOPPING)


def steps(row: Reservation, asked: Asked, *, runs: bool) -> str:
    """Return what the release of *row* takes: `UNCHARGE`, `BURY` or `STOP`.

    Args:
        row: The entry.
        asked: The wish.
        runs: Whether a process of its sandbox lives or may come to life, as the caller has seen.
    Raises:
        PermissionDenied: It is somebody else's, or the token is not the lease's.
        StateConflict: It runs, and *asked* has no force.
    """
    require_right(asked, row.id, row.owner.uid, row.namespace)
    if asked.token_sha256 not in {None, row.token_sha256}:
        raise rights.wrong_token(rights.RELEASE, f"reservation {row.id}")
    if not row.is_sandbox:
        return UNCHARGE
    if not runs or is_note(row.reason):  # a forced release that was begun goes on
        return BURY
    if not asked.force:
        since = format_rfc3339(row.started_wall_ms or row.created_wall_ms)
        raise StateConflict(
            f"reservation {row.id} is {row.phase} since {since}, and what runs is not released",
            hint=f"to stop it first: axern reservations release {row.id} --force --reason TEXT",
        )
    return STOP


def begin(view: State, reservation_id: str, asked: Asked, *, runs: bool | None = None) -> Change:
    """Take the first step of a release: a lease is over by it, a sandbox will not be started.

    What is over stays as it is, and so does what ends already, but for the reason of a forced one.

    Args:
        view: The state.
        reservation_id: The entry.
        asked: The wish.
        runs: As for `steps`; None is what the phase says.
    Raises:
        PermissionDenied, StateConflict: As `steps` does.
        NotFound: It is gone already.
    """
    row = view.reservation(reservation_id)
    needed = steps(row, asked, runs=may_run(row) if runs is None else runs)
    if needed == UNCHARGE:
        return transitions.release(view, row.id, asked.note, asked.by)
    if needed == STOP and row.phase == STOPPING:
        return transitions.give_reason(view, row.id, asked.note, asked.by)
    if needed == STOP or row.phase == RESERVED:
        return transitions.stop(view, row.id, asked.note, asked.by)
    return Change("release", result=row)
