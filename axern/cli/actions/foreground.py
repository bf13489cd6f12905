"""A run in the foreground: its output becomes ours, its exit code too, and Ctrl-C cancels it.

The connection may break at any time: the daemon keeps the output, and the stream goes on at the
offset behind the last byte that was written here. A client that vanishes stops nothing; only the
signals that ask for an end (SIGINT, SIGTERM) cancel, and they are sent from their handler, since
the main path may be blocked on a slow reader of our output.
"""

from __future__ import annotations

import binascii
import json
import signal
import time
from collections.abc import Callable, Mapping

from axern.api.client import HEALTH_TIMEOUT_S, ApiError, ConnectionLost
from axern.api.decoding import RECORDS
from axern.cli.actions.target import query
from axern.cli.commands.run import RUN
from axern.cli.grammar import OWN_FAILURE
from axern.cli.output import STDERR, STDOUT, counted, say, write
from axern.errors import DaemonUnreachable, OutputIncomplete, ProtocolError
from axern.records import Unpacker
from ledger.errors import CODES, AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Self

    from axern.api.decoding import Event
    from axern.cli.actions.where import Where

    Json = dict[str, Any]

RECONNECT_S = 60.0
"""How long a daemon may be away, as for a restart, before we give up."""
_QUIET_S = 1.0
"""A shorter absence, as for a quick restart, is not worth a word among the workload's own."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDED_ITSELF = "process-exited"
_NOT_FOUND = 127
"""What a run ends with whose program there is not."""


class Interrupted(Exception):
    """The user asked twice for an end, or has hung up, and we leave at once."""


_STOPS = {None, "expired", "timeout", "stdin-lost", "host-shutdown"}
"""The diagnostics of a run that was ended, None for one that somebody cancelled or released."""


class RunFailed(AxernError):
    """The run ended without an exit code of its own; `exit_code` stands in for it."""

    def __init__(self, run: Json) -> None:
        diagnostic = run["diagnostic_code"]
        super().__init__(run["message"] or f"the run ended {run['status']}", hint=_mistaken(run))
        code = "run_stopped" if diagnostic in _STOPS else diagnostic.replace("-", "_")
        self.code = code if code in CODES else "internal_error"
        self.exit_code = run["cli_exit_code"] or OWN_FAILURE
        self.error = {
            "code": self.code,
            "diagnostic_code": diagnostic,
            "retryable": CODES[self.code].retryable,
            "message": self.message,
            "hint": self.hint,
            "run_id": run["id"],
            "exit_code": None,
        }


def _mistaken(run: Json) -> str | None:
    """Return what to say where a command about runs was taken for a program, behind a flag."""
    word = (run["command"] or ("",))[0]
    if run["cli_exit_code"] != _NOT_FOUND or RUN.find(word) is None:
        return None
    return f"behind a flag {word!r} is a program; the command stands first, as in: axern run list"


class Patience:
    """Wait between attempts, ever longer, until `RECONNECT_S` have passed without a success."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        quiet: bool = False,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._since: float | None = None
        self._wait_s = _FIRST_WAIT_S
        self._told = quiet

    def succeed(self) -> None:
        """Forget earlier failures."""
        self._since, self._wait_s, self._told = None, _FIRST_WAIT_S, False

    def wait(self, error: AxernError) -> None:
        """Wait before the next attempt, or raise *error* when it has been tried long enough."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since >= RECONNECT_S:
            raise error
        if now - self._since >= _QUIET_S and not self._told:
            self._told = True
            say(f"axern: {error.message}; trying again for {RECONNECT_S:.0f} s")
        self._sleep(self._wait_s)
        self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)


class Pipe:
    """Hand the output events of a stream on to our own descriptors, byte for byte.

    `offset` is where a new stream must start; it moves only after the bytes were written.
    `incomplete` tells whether something is missing, which is said at once; `started` whether
    anything has come, so that `offset` is a place in the stream.
    """

    def __init__(self, offset: int = 0, *, timestamps: bool = False) -> None:
        self.offset = offset
        self.stdout_used = False
        self.incomplete = False
        self.started = False
        # How many records came before; None if nobody knows.
        self._records: int | None = None
        self._unpacker = Unpacker(timestamps=timestamps)
        self._unpacked_before = 0

    def connect(self) -> None:
        """Expect another stream, whose `start` may come behind some of its output."""
        self._unpacked_before = self._unpacker.records

    def take(self, event: Event) -> None:
        """Write what *event* carries; other events than output are not for us."""
        if event.name not in {RECORDS, "start", "stdout", "stderr", "dropped"}:
            return
        try:
            offset = int(event.id)
            if event.name == RECORDS:
                self._take_records(event.data)
            elif event.name == "start":
                self._begin(json.loads(event.data))
            elif event.name == "dropped":
                self._skip(json.loads(event.data))
            else:
                self._write(event.name, binascii.a2b_base64(event.data, strict_mode=True))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"the daemon sent output that can't be read: {error}") from error
        self.offset, self.started = offset, True

    def _begin(self, start: Json) -> None:
        """Count on from where this stream began, unless it is known from one before."""
        began = start.get("records")
        if self._records is None and began is not None:
            self._records = began + self._unpacker.records - self._unpacked_before

    def _take_records(self, text: bytes) -> None:
        broken, records = self._unpacker.broken, self._unpacker.records
        for output in self._unpacker.unpack(text):
            self._write(output.stream, output.data)
        if self._records is not None:
            self._records += self._unpacker.records - records
        if self._unpacker.broken > broken:
            self._miss(None, None)  # and nobody knows how much the full disk refused around it

    def _write(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            self.stdout_used = True
            write(STDOUT, data)
        else:
            write(STDERR, data)

    def _skip(self, lost: Json) -> None:
        """Go on behind what the daemon has dropped; what it did not count, it says the end of."""
        missing = lost.get("records")
        if "records_before" in lost:
            before, self._records = self._records, lost["records_before"]
            if before is not None and self._records is not None:
                missing = self._records - before
        self._miss(missing, lost["bytes"])

    def _miss(self, lines: int | None, log_bytes: int | None) -> None:
        """Say that something is missing here; a line that came in parts counts as many."""
        self.incomplete = True
        what = (
            "output of unknown length" if lines is None else counted(lines, "line") + " of output"
        )
        if log_bytes:
            least = "at least " if lines is None else ""
            what += f" ({least}{log_bytes:,} bytes of log)"
        say(
            f"axern: missing here: {what}; it came faster than it was read and is no longer kept, "
            "or the node's disk was full"
        )


class Interrupts:
    """While entered, SIGINT and SIGTERM cancel the run; a second one kills it and raises.

    SIGHUP raises too, and leaves the run to the daemon: its user may come back to it.
    `exit_code` is None until a signal has come.
    """

    def __init__(self, where: Where) -> None:
        self.exit_code: int | None = None
        self._where = where
        self._run_id: str | None = None
        self._owed = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # Who started us with a signal ignored, as a shell does with `&`, meant it.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def watch(self, run_id: str) -> None:
        """Cancel *run_id* from now on, at once if a signal came before the run had an id."""
        self._run_id = run_id
        self.settle()

    def settle(self) -> None:
        """Send the cancellation that no daemon has received yet, if there is one."""
        if self._owed:
            self._cancel(None)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        first = self.exit_code is None
        self.exit_code = 128 + number
        if number == signal.SIGHUP:
            if first and self._run_id is not None:
                say(f"axern: {goes_on(self._run_id)}")
            raise Interrupted
        if first:
            say("axern: cancelling the run; once more kills it and leaves at once")
            self._cancel(None)
            return
        self._cancel(0)
        if self._owed:
            say("axern: the daemon could not be told to end the run; it may go on")
        raise Interrupted

    def _cancel(self, grace_ms: int | None) -> None:
        self._owed = True
        if self._run_id is None:
            return
        try:
            with self._where.reach() as client:
                target = query(f"/v2/runs/{self._run_id}", grace_ms=grace_ms)
                client.request("DELETE", target, timeout_s=HEALTH_TIMEOUT_S)
        except DaemonUnreachable:
            return  # `settle` tries again with the next connection
        except AxernError as error:
            say(f"axern: {error.message} [{error.code}]")
        self._owed = False


def goes_on(run_id: str) -> str:
    """Return what there is to know once we no longer follow *run_id*."""
    return f"the run goes on; to end it: axern run cancel {run_id}"


def submit(where: Where, body: Json) -> Json:
    """Return the run that *body* asks for; raises as `insist` does."""
    run: Json = insist(where, "/v2/runs", body)["run"]
    return run


def insist(where: Where, path: str, body: Json) -> Json:
    """Return the answer to the POST of *body*, which has a request id.

    A request that may have arrived is repeated under its request id, so it is done only once.

    Raises:
        DaemonUnreachable: Nobody was there from the start, or not for `RECONNECT_S` afterwards.
        ApiError: Refused.
    """
    patience = Patience()
    may_have_arrived = False
    while True:
        try:
            with where.reach() as client:
                return client.request("POST", path, body)
        except ConnectionLost as error:
            may_have_arrived = True
            patience.wait(error)
        except DaemonUnreachable as error:
            if not may_have_arrived:
                raise
            patience.wait(error)
        except ApiError as error:
            if not may_have_arrived or error.code != "busy":
                raise
            patience.wait(error)


def follow(
    where: Where,
    run_id: str,
    pipe: Pipe,
    before_connecting: Callable[[], None] = lambda: None,
    begin: Mapping[str, int | None] | None = None,
) -> Json:
    """Hand the run's output to *pipe* until the run ends, and return the run.

    Args:
        where: The daemon; it may be restarted meanwhile.
        run_id: The run.
        pipe: Takes the output, and knows where to go on.
        before_connecting: Called before each connection.
        begin: The stream's parameters until something has come: where *pipe* is, if None.
    Raises:
        DaemonUnreachable: It has been away for longer than `RECONNECT_S`.
        ApiError: The run is not known, for example.
    """
    patience = Patience()
    while True:
        place = begin if begin and not pipe.started else {"from": pipe.offset}
        target = query(f"/v2/runs/{run_id}/stream", **place, follow="true")
        try:
            before_connecting()
            events = where.client().events(target)
            patience.succeed()
            pipe.connect()
            for event in events:
                if event.name == "exit":
                    return _ended(event)
                pipe.take(event)
            patience.wait(ConnectionLost("the daemon ended the stream before the run's end"))
        except DaemonUnreachable as error:
            patience.wait(error)
        except ApiError as error:
            if error.code != "busy":
                raise
            patience.wait(error)


def _ended(event: Event) -> Json:
    try:
        run: Json = json.loads(event.data)["run"]
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError("the daemon ended the stream with no run") from error
    return run


def outcome(run: Json, pipe: Pipe) -> int:
    """Return the exit code that the ended *run*, whose output *pipe* took, gives to its command.

    Raises:
        RunFailed: It has none of its own.
        OutputIncomplete: It has, but whoever reads the output must not take it for all of it.
    """
    if run["exit_code"] is None:
        raise RunFailed(run)
    if pipe.incomplete:
        raise OutputIncomplete(
            f"the run ended with {run['exit_code']}, but not all of its output came through",
            hint="let the run write it to a file, read faster, or raise log_max on the node",
        )
    if run["diagnostic_code"] not in {None, _ENDED_ITSELF}:
        say(f"axern: {run['message']} [{run['diagnostic_code']}]")
    code = run["cli_exit_code"]
    return int(run["exit_code"] if code is None else code)
