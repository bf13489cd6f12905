"""A lease that is held while a command runs here: heard from, renewed, and given up at the end.

One thread waits for whatever comes first: the end of the command, a signal to hand on, the next
heartbeat, the end of the lease. What runs without its lease would use what somebody else was
promised: if it is lost, the command is ended with all that it has started, and if we are killed
the kernel ends the command.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time

from axern.api.client import ApiError
from axern.api.term import GONE, GRACE_S, boottime_s
from axern.cli.output import say
from axern.errors import DaemonUnreachable, LeaseLost, ProgramNotExecutable, ProgramNotFound
from axern.host import offspring
from ledger.errors import AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from axern.api.term import Term
    from axern.cli.actions.where import Where

    Json = dict[str, Any]

LEASE_VARIABLE = "AXERN_LEASE"
_BEAT_TIMEOUT_S = 2.0
"""A daemon that hangs must not keep signals from the command for longer."""
_RELEASES = 3
_PAUSE_S = 0.5
_HANDED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_KERNEL = 0x80
"""si_code of a signal of the terminal, which the command has got as well. Source: sigaction(2)."""


class Held:
    """A lease that we hold; on leaving it is given up, and signals are ours again."""

    def __init__(self, where: Where, reservation_id: str, token: str, term: Term) -> None:
        self._where = where
        self._path = f"/v2/reservations/{reservation_id}"
        self._id = reservation_id
        self._token = token
        self._term = term
        self._silent = False
        self._lost = False
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Who started us with a signal ignored, as a shell does with `&`, meant it for both.
        self._signals = {signal.SIGCHLD} | {
            number for number in _HANDED_ON if signal.getsignal(number) != signal.SIG_IGN
        }
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._signals)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._lost:
            self._release()
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def run(self, command: tuple[str, ...]) -> int:
        """Run *command* to its end and return its code, 128 and the number for a signal.

        Raises:
            ProgramNotFound, ProgramNotExecutable: It can't be started.
            LeaseLost: The lease was over before the command, which was ended for it.
        """
        pid = _start(command, {**os.environ, LEASE_VARIABLE: self._id}, self._mask)
        why = None
        while why is None:
            code = self._wait(pid, min(self._term.next_beat_s, self._term.last_call_s))
            if code is not None:
                return code
            why = self._beat()
        say(f"axern: {why}; the command is ended")
        self._end()
        raise LeaseLost(why, hint="ask for a longer --ttl or --max-lifetime, if it was too short")

    def _wait(self, pid: int, until_s: float) -> int | None:
        """Return the code of *pid* if it ends before *until_s*; hand on what signals come."""
        while True:
            left_s = until_s - boottime_s()
            info = signal.sigtimedwait(self._signals, max(0.0, left_s))
            if info is None:
                return None
            if info.si_signo != signal.SIGCHLD:
                if info.si_code != _FROM_KERNEL:
                    _tell(pid, info.si_signo)
                continue
            code = _reaped().get(pid)
            if code is not None:
                return code

    def _beat(self) -> str | None:
        """Be heard from and renew what runs out; return why the lease is over, or None."""
        term, now_s = self._term, boottime_s()
        if now_s >= term.last_call_s:
            return f"the time of lease {self._id} is over"
        body = term.beat(self._token, now_s)
        try:
            with self._where.client() as client:
                answer = client.request(
                    "POST", f"{self._path}/heartbeat", body, timeout_s=_BEAT_TIMEOUT_S
                )
        except DaemonUnreachable as error:
            self._complain(error)
            term.unanswered(boottime_s())
        except ApiError as error:
            if error.code in GONE:
                self._lost = True
                return f"lease {self._id} is lost: {error.message}"
            self._complain(error)
            term.unanswered(boottime_s())
        else:
            self._silent = False
            term.answered(now_s, answer["expires_in_ms"])
        return None

    def _complain(self, error: AxernError) -> None:
        if not self._silent:
            left_s = self._term.deadline_s - boottime_s()
            say(f"axern: {error.message}; the lease lasts for another {left_s:.0f} s")
        self._silent = True

    def _end(self) -> None:
        """End the command and all that it has started: TERM, and KILL when the time is over."""
        from axern.host.process import children

        until_s = boottime_s() + GRACE_S
        if self._term.deadline_s > boottime_s():
            until_s = min(until_s, self._term.deadline_s)
        told: set[int] = set()
        # Whoever loses its parent by this becomes our child, until there is nobody left.
        while (left := children(os.getpid())) and boottime_s() < until_s + GRACE_S:
            is_over = boottime_s() >= until_s
            for pid in left:
                # Nobody else can have its number: it is ours to reap.
                if is_over or pid not in told:
                    _tell(pid, signal.SIGKILL if is_over else signal.SIGTERM)
                told.add(pid)
            signal.sigtimedwait({signal.SIGCHLD}, _PAUSE_S)
            _reaped()
        if left:
            say(f"axern: what it has started does not end: process {', '.join(map(str, left))}")

    def _release(self) -> None:
        """Give it up; where nobody takes it, our own end will prove that we are gone."""
        for attempt in range(_RELEASES):
            if attempt:
                time.sleep(_PAUSE_S)
            try:
                with self._where.client() as client:
                    body = {"token": self._token}  # whoever holds it by now is not released
                    client.request("DELETE", self._path, body, timeout_s=_BEAT_TIMEOUT_S)
                return
            except AxernError as error:
                failed = error
                if error.code in GONE:
                    return
        say(f"axern: {failed.message}; the daemon ends the lease when it sees that we are gone")


def _tell(pid: int, number: int) -> None:
    """Send the signal *number*; what runs as somebody else, as by sudo, may not be told by us."""
    with contextlib.suppress(PermissionError):
        os.kill(pid, number)


def _reaped() -> dict[int, int]:
    """Return the codes of the children that have ended, 128 and the number for a signal."""
    codes = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            code = os.waitstatus_to_exitcode(status)
            codes[pid] = 128 - code if code < 0 else code
    return codes


def _start(command: tuple[str, ...], environment: dict[str, str], mask: set[Any]) -> int:
    """Start *command* with the signals of *mask* blocked, and return its process.

    Raises:
        ProgramNotFound, ProgramNotExecutable: As they say.
    """
    offspring.adopt_orphans()
    reader, writer = os.pipe()
    us = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(command, environment, mask, us, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        failed = pipe.read()
    if not failed:
        return pid
    os.waitpid(pid, 0)
    number = int(failed)
    if number in {errno.ENOENT, errno.ENOTDIR}:
        raise ProgramNotFound(command[0], "there is no such program")
    raise ProgramNotExecutable(command[0], os.strerror(number))


def _become(
    command: tuple[str, ...], environment: dict[str, str], mask: set[Any], parent: int, writer: int
) -> None:
    """Become *command*, or write why not; this process has nothing else to do."""
    number = errno.EIO
    try:
        offspring.end_with_parent()
        # What Python has set for itself; what we were started with stays.
        for changed in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(changed, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if os.getppid() == parent:
            os.execvpe(command[0], command, environment)  # noqa: S606 - it is what was asked for
    except OSError as error:
        number = error.errno or number
    finally:
        os.write(writer, str(number).encode())
        os._exit(1)
