"""What the SDK does, as generators of effects: the blocking and the asynchronous half share it.

A generator yields what it wants done and gets the result sent, or the error thrown. `client` and
`aio` do it, each in its own way; nothing here blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from time import monotonic

from axern.api.term import GONE, Term, boottime_s
from axern.api.wire import ApiError, ConnectionLost
from axern.errors import DaemonUnreachable
from axern.sdk.output import Output
from axern.sdk.results import Granted, RunResult, typed
from ledger.errors import AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from axern.api.decoding import Event

    Json = dict[str, Any]
    Result = TypeVar("Result")

PATIENCE_S = 60.0
"""How long a daemon may be away or busy, as for a restart, before we give up."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_BEAT_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 5.0


class Ask:
    """Send a request and have its answer; `sent_s` is when it was sent last (CLOCK_BOOTTIME)."""

    __slots__ = ("body", "method", "sent_s", "target", "timeout_s")

    def __init__(
        self, method: str, target: str, body: Json | None = None, timeout_s: float | None = None
    ) -> None:
        self.method = method
        self.target = target
        self.body = body
        self.timeout_s = timeout_s
        self.sent_s = 0.0


class Pause:
    """Wait; the result tells whether somebody has asked for an end meanwhile."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = max(0.0, seconds)


class Follow:
    """Read a stream until `take` returns something, which is the result; None if it ends before."""

    __slots__ = ("take", "target")

    def __init__(self, target: str, take: Callable[[Event], Json | None]) -> None:
        self.target = target
        self.take = take


if TYPE_CHECKING:
    Steps = Generator[Ask | Pause | Follow, Any, Result]


class Trouble:
    """How long to go on in spite of failures, and how long to wait before the next attempt."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.forget()

    def forget(self) -> None:
        """Begin anew: something has worked."""
        self._since_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    def pause(self, error: AxernError, retry_after_s: float | None = None) -> Pause:
        """Return how long to wait, or raise *error* where that would be longer than may be."""
        now_s = monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        wait_s = self._pause_s if retry_after_s is None else float(retry_after_s)
        if now_s + wait_s - self._since_s > self._patience_s:
            raise error
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return Pause(wait_s)


def ask(
    request: Ask, patience_s: float, retry_for_s: float = 0.0, *, insists: bool = False
) -> Steps[Json]:
    """Return the answer to *request*, which has a request id if it changes anything.

    It is sent again where it may have arrived and nobody answered, where the daemon is busy, and
    for *retry_for_s* where the node is full; never sooner than the daemon says. A daemon that is
    not there from the start is waited for only by who *insists*.

    Raises:
        DaemonUnreachable: Nobody was there, or for too long.
        ApiError: The daemon said no, by its kind (`axern.sdk.results`).
    """
    away, full = Trouble(patience_s), Trouble(retry_for_s)
    may_have_arrived = insists
    while True:
        try:
            request.sent_s = boottime_s()
            answer: Json = yield request
            return answer
        except ConnectionLost as error:
            may_have_arrived = True
            pause = away.pause(error)
        except DaemonUnreachable as error:
            if not may_have_arrived:
                raise
            pause = away.pause(error)
        except ApiError as error:
            told = typed(error)
            if not error.error.get("retryable"):
                raise told from None
            trouble = away if error.code == "busy" else full
            pause = trouble.pause(told, told.retry_after_s)
        yield pause


def run(
    body: Json,
    on_output: Callable[[str, bytes], object] | None,
    *,
    capture: bool,
    patience_s: float,
    retry_for_s: float,
) -> Steps[RunResult]:
    """Run what *body* asks for to its end; it is cancelled if anything ends us before."""
    answer = yield from ask(Ask("POST", "/v2/runs", body), patience_s, retry_for_s)
    run_id = answer["run"]["id"]
    output = Output(on_output, capture=capture)
    try:
        record = yield from _follow(run_id, output, patience_s)
    except BaseException:
        # What ends us is told, not this; where nobody hears it the run has its own deadlines.
        with contextlib.suppress(AxernError):
            yield Ask("DELETE", f"/v2/runs/{run_id}", timeout_s=_END_TIMEOUT_S)
        raise
    return RunResult(
        id=run_id,
        exit_code=record["exit_code"],
        stdout=bytes(output.stdout),
        stderr=bytes(output.stderr),
        complete=output.complete,
        status=record["status"],
        diagnostic_code=record["diagnostic_code"],
        message=record["message"],
        record=record,
    )


def _follow(run_id: str, output: Output, patience_s: float) -> Steps[Json]:
    """Read the run's stream to its end, over any number of connections."""
    trouble = Trouble(patience_s)
    while True:
        before = output.offset
        try:
            target = f"/v2/runs/{run_id}/stream?from={output.offset}&follow=true"
            record: Json | None = yield Follow(target, output.take)
            if record is not None:
                return record
            failed: AxernError = ConnectionLost("the daemon ended the stream before the run's end")
        except DaemonUnreachable as error:
            failed = error
        except ApiError as error:
            failed = typed(error)
            if error.code != "busy":
                raise failed from None
        if output.offset != before:
            trouble.forget()
        yield trouble.pause(failed, failed.retry_after_s)


def reserve(body: Json, patience_s: float, retry_for_s: float) -> Steps[tuple[Granted, Term]]:
    """Return the lease that *body* asks for, and its time."""
    request = Ask("POST", "/v2/reservations", body)
    answer = yield from ask(request, patience_s, retry_for_s)
    left_ms = answer["expires_in_ms"]
    row = answer["reservation"]
    granted = Granted(row["id"], answer["token"], left_ms / 1000, row)
    return granted, Term(request.sent_s, left_ms)


def keep(granted: Granted, term: Term) -> Steps[str | None]:
    """Be heard from and renew until somebody asks for an end; else return why it is lost."""
    while True:
        until_s = min(term.next_beat_s, term.last_call_s)
        if (yield Pause(until_s - boottime_s())):
            return None
        now_s = boottime_s()
        if now_s >= term.last_call_s:
            return f"the time of lease {granted.id} is over"
        beat = Ask(
            "POST",
            f"/v2/reservations/{granted.id}/heartbeat",
            term.beat(granted.token, now_s),
            min(_BEAT_TIMEOUT_S, term.last_call_s - now_s),
        )
        try:
            answer: Json = yield beat
        except ApiError as error:
            if error.code in GONE:
                return f"lease {granted.id} is lost: {error.message}"
            term.unanswered(boottime_s())
        except AxernError:
            term.unanswered(boottime_s())
        else:
            term.answered(now_s, answer["expires_in_ms"])


def release(granted: Granted, patience_s: float) -> Steps[None]:
    """Give the lease up; where it is gone, or somebody else's by now, nothing is to be done."""
    target = f"/v2/reservations/{granted.id}"
    try:
        yield from ask(Ask("DELETE", target, {"token": granted.token}), patience_s, insists=True)
    except ApiError as error:
        if error.code not in GONE:
            raise
