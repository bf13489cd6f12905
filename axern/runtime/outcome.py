"""How a run ended, in words; the same whether a daemon saw it or an offline release ended it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from axern.errors import ProgramError, QuotaError
from ledger.release import is_note

if TYPE_CHECKING:
    from ledger.errors import AxernError

SUCCEEDED = "succeeded"
FAILED = "failed"
CANCELLED = "cancelled"
"""The reason of a stop that a user asked for, and the status of a run that was stopped so."""

STORAGE = "storage-reserve-error"
"""What a launch is called that could not get its storage, or not limit it."""

OWN_FAILURE = 125
OUT_OF_TIME = 124
"""What timeout(1) gives: a workload that ends well on TERM must not pass for one that was done."""
EXPIRED = "expired"
TIMEOUT = "timeout"
STDIN_LOST = "stdin-lost"
CAPABILITY_LOST = "capability-enforcement-lost"
HOST_DOWN = "host-shutdown"
_OWN_CODES = {
    EXPIRED: OUT_OF_TIME,
    TIMEOUT: OUT_OF_TIME,
    STDIN_LOST: OWN_FAILURE,
    CAPABILITY_LOST: OWN_FAILURE,
    HOST_DOWN: OWN_FAILURE,
}
_WORDS = {
    EXPIRED: "its time to live (ttl) was over",
    TIMEOUT: "it ran for as long as it may (timeout)",
    CAPABILITY_LOST: "this node can no longer enforce a limit of it; axern node doctor says why",
    HOST_DOWN: "the host was shut down",
    STDIN_LOST: "a part of its standard input may be lost: the daemon ended in a write",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; `exit_code` None where the workload never ran or nobody saw it end."""

    status: str
    exit_code: int | None
    cli_exit_code: int
    diagnostic_code: str | None = None
    message: str | None = None
    finished_wall_ms: int | None = None


def exited(exit_code: int, finished_wall_ms: int) -> Outcome:
    """Return the outcome of a workload that ended by itself."""
    status = SUCCEEDED if exit_code == 0 else FAILED
    diagnostic = None if exit_code == 0 else "process-exited"
    return Outcome(status, exit_code, exit_code, diagnostic, finished_wall_ms=finished_wall_ms)


def stopped(reason: str, exit_code: int | None, finished_wall_ms: int | None) -> Outcome:
    """Return the outcome of a workload that was asked to end for *reason*."""
    cli_exit_code = OWN_FAILURE if exit_code is None else exit_code
    if is_note(reason):
        return Outcome(CANCELLED, exit_code, cli_exit_code, None, reason, finished_wall_ms)
    return Outcome(
        CANCELLED if reason == CANCELLED else FAILED,
        exit_code,
        # What has read half of its input may well end with 0.
        _OWN_CODES.get(reason, cli_exit_code),
        None if reason == CANCELLED else reason,
        f"stopped: {_WORDS.get(reason, reason)}",
        finished_wall_ms,
    )


def failed(message: str, cli_exit_code: int = OWN_FAILURE) -> Outcome:
    """Return the outcome of a run that never started."""
    return Outcome(FAILED, None, cli_exit_code, "runtime-start-error", message)


def outcome_of(error: AxernError | OSError) -> Outcome:
    """Return the outcome of a launch that ended with *error*; the host's own has no words for it.

    Such as a full disk, or no file descriptor left.
    """
    if isinstance(error, OSError):
        return failed(f"the host refused: {error.strerror or error}")
    code = error.exit_code if isinstance(error, ProgramError) else OWN_FAILURE
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    how = failed(message, code)
    return replace(how, diagnostic_code=STORAGE) if isinstance(error, QuotaError) else how
