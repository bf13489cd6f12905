"""What the SDK answers with: the end of a run, a granted lease, and errors by their kind."""

from __future__ import annotations

from axern.api.wire import ApiError
from ledger.errors import (
    CODES,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RequestError,
    RequestIdConflict,
    StateConflict,
)
from ledger.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

_REFUSALS = (3, 4)
"""Exit codes of a decision by admission."""


@frozen
class RunResult:
    """How a run ended, and what it wrote.

    `exit_code` is the workload's own, None where it had none: it never started, or was ended;
    `diagnostic_code` and `message` say why. `complete` tells whether all of its output came
    through. `record` is the run as the API has it.
    """

    id: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    complete: bool
    status: str
    diagnostic_code: str | None
    message: str | None
    record: Json


@frozen
class Granted:
    """A lease that nobody keeps yet: whoever has `token` renews it within `expires_in_s` seconds.

    `reservation` is the entry as the API has it.
    """

    id: str
    token: str
    expires_in_s: float
    reservation: Json


class Refused(ApiError):
    """Admission said no; `error` has every gate with its numbers, the holders and what would help.

    `retry_after_s` is when to ask again, None where that is no use.
    """


class _Invalid(ApiError, InvalidArgument):
    """A quantity or a field is malformed."""


class _NotFound(ApiError, NotFound):
    """There is no such entry, run or namespace."""


class _Conflict(ApiError, StateConflict):
    """Its phase does not allow it."""


class _IdConflict(ApiError, RequestIdConflict):
    """The request id was used for another request."""


class _Denied(ApiError, PermissionDenied):
    """This user may not do this."""


_KINDS: dict[str, type[ApiError]] = {
    error.code: error for error in (_Invalid, _NotFound, _Conflict, _IdConflict, _Denied)
}


def typed(error: ApiError) -> ApiError:
    """Return *error* as one of its kind, which the errors of the same name catch."""
    row = CODES.get(error.code)
    kind = _KINDS.get(error.code)
    if kind is None and row is not None and row.exit_code in _REFUSALS:
        kind = Refused
    found = (kind or ApiError)(error.status, error.error)
    found.retry_after_s = error.error.get("retry_after_s")
    return found


class NotHeld(RequestError):
    """The lease was not entered yet, or was before."""

    code = "state_conflict"
