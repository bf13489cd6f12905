"""Every error of the ledger, split by whose fault it is, and the one table of public codes."""

from __future__ import annotations

from ledger.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from ledger.refusal import Refusal


@frozen
class CodeRow:
    """Say what a public code means to a script: HTTP status, exit code, and whether trying helps.

    `http_status` is None for a code that never leaves through HTTP. `retryable`: the same request
    may succeed later without anybody changing it. `waitable`: it may wait in the ledger's queue.
    """

    http_status: int | None
    exit_code: int
    retryable: bool
    waitable: bool


CODES: Mapping[str, CodeRow] = {
    "invalid_argument": CodeRow(400, 2, retryable=False, waitable=False),
    "request_exceeds_node": CodeRow(422, 3, retryable=False, waitable=False),
    "node_cpu_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "node_memory_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "node_cpu_and_memory_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "node_ephemeral_storage_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "node_gpu_memory_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "runtime_slot_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "node_reservation_capacity_exhausted": CodeRow(507, 3, retryable=True, waitable=True),
    "published_port_taken": CodeRow(507, 3, retryable=True, waitable=True),
    "namespace_quota_exceeded": CodeRow(403, 4, retryable=False, waitable=True),
    "namespace_claim_exceeded": CodeRow(403, 4, retryable=False, waitable=True),
    "node_selection_error": CodeRow(422, 3, retryable=False, waitable=False),
    "not_found": CodeRow(404, 5, retryable=False, waitable=False),
    "state_conflict": CodeRow(409, 5, retryable=False, waitable=False),
    "version_mismatch": CodeRow(409, 5, retryable=False, waitable=False),
    "request_id_conflict": CodeRow(409, 5, retryable=False, waitable=False),
    "permission_denied": CodeRow(403, 5, retryable=False, waitable=False),
    "runtime_start_error": CodeRow(None, 125, retryable=False, waitable=False),
    "storage_reserve_error": CodeRow(None, 125, retryable=False, waitable=False),
    "run_stopped": CodeRow(None, 125, retryable=False, waitable=False),
    "output_incomplete": CodeRow(None, 125, retryable=False, waitable=False),
    "lease_lost": CodeRow(None, 125, retryable=False, waitable=False),
    "daemon_unreachable": CodeRow(None, 6, retryable=True, waitable=False),
    "ledger_corrupt": CodeRow(503, 7, retryable=False, waitable=False),
    "ledger_too_new": CodeRow(503, 7, retryable=False, waitable=False),
    "busy": CodeRow(503, 1, retryable=True, waitable=False),
    "internal_error": CodeRow(500, 1, retryable=False, waitable=False),
}
"""Public codes; each error class below names one of them. Source: docs/decisions/0006-codes.md."""


DISK_RETRY_AFTER_S = 10
"""When to try again what a disk has refused: as often as the ledger itself does at least."""


class AxernError(Exception):
    """Root of every error that a user may see: a message with rule and numbers, and a hint.

    `hint` says what to do next, or is None where nothing sensible can be said. `retry_after_s` is
    when the same request may succeed, None where nobody knows or it never will.
    """

    code: str = "internal_error"

    def __init__(
        self, message: str, *, hint: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retry_after_s = retry_after_s


class RequestError(AxernError):
    """The caller must change something; trying the same again can't help."""


class InvalidArgument(RequestError):
    """A quantity, spec or field is malformed; raised before anything was touched."""

    code = "invalid_argument"


class NotFound(RequestError):
    """No entry has this id; not raised for an entry in the wrong phase."""

    code = "not_found"


class StateConflict(RequestError):
    """The entry exists, but its phase does not allow the operation."""

    code = "state_conflict"


class RequestIdConflict(RequestError):
    """The request id was used within its lifetime with another body; not for a faithful retry."""

    code = "request_id_conflict"


class PermissionDenied(RequestError):
    """This user may not do this; not raised for an unknown id."""

    code = "permission_denied"


class AdmissionRefused(AxernError):
    """Admission said no: a decision with numbers, not a failure. The ledger is unchanged."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message, hint=refusal.hint, retry_after_s=refusal.retry_after_s)
        self.refusal = refusal
        self.code = refusal.code


class GroupRefused(AxernError):
    """One operation of a group that is done all or none was refused, so that none is done.

    `index` counts from 0; `error` is what that operation raised, and its code is this one's.
    """

    def __init__(self, index: int, error: AxernError) -> None:
        super().__init__(
            f"operations[{index}]: {error.message}; nothing of the batch is done",
            hint=error.hint,
            retry_after_s=error.retry_after_s,
        )
        self.index = index
        self.error = error
        self.code = error.code


class QueueFull(AxernError):
    """As many wait as may; who asks again later may find a place."""

    code = "busy"


class LedgerError(AxernError):
    """The durable state can't serve the request."""

    def anew(self) -> Self:
        """Return the same error for somebody else: what was raised once keeps where it was."""
        return type(self)(self.message, hint=self.hint, retry_after_s=self.retry_after_s)


class LedgerBusy(LedgerError):
    """Somebody holds the lock, files changed under a reader, or descriptors have run out."""

    code = "busy"


class CommitFailed(LedgerError):
    """The commit did not become durable; what was in flight is not done."""

    code = "busy"


class LedgerCorrupt(LedgerError):
    """The files are damaged, or missing where a ledger had been; never raised for a torn tail."""

    code = "ledger_corrupt"


class LedgerTooNew(LedgerError):
    """The files were written by a newer schema than this program knows."""

    code = "ledger_too_new"


class NodeRetired(LedgerError):
    """The node of this ledger was retired: it never takes part again, whoever starts it."""

    code = "node_selection_error"


class FileSystemRefused(LedgerError):
    """The ledger's directory lies on a file system that can't keep its promises."""

    code = "invalid_argument"


class InvariantViolation(AssertionError):
    """A bug: the program contradicts itself. Outside the tree, so that nobody handles it."""
