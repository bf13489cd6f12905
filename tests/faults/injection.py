"""One system call of a forked process is answered with an error, or kills it: by strace.

A process is forked, so that its start costs nothing, and waits until strace has hold of it.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.faults.lives import Tell

ERRORS = (
    *(errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINTR, errno.EAGAIN),
    *(errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.EBADF),
)
KILL = "signal=KILL"
FAULTS = (KILL, *(f"error={errno.errorcode[number]}" for number in ERRORS))
"""What may strike a call, in strace's words: the process dies before it, or it is not done."""

_CALL = re.compile(r"(\w+)\(")
_EVERY_FILE = "%file,%desc"
_GO = signal.SIGUSR1


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: the *number*th, from 1, of its *name* in a process."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes which call; `str` is the argument for strace."""

    call: Call
    kind: str

    def __str__(self) -> str:
        return f"inject={self.call.name}:{self.kind}:when={self.call.number}"


@dataclass(frozen=True, slots=True)
class Traced:
    """What came of a process: its wait status, what it told, what it printed, and its calls."""

    status: int
    words: list[str]
    printed: str
    lines: list[str]

    def calls(self, below: str) -> Iterator[tuple[Call, str]]:
        """Yield each call on files whose path begins with *below*, and its line."""
        seen: Counter[str] = Counter()
        for line in self.lines:
            if match := _CALL.match(line):
                seen[match[1]] += 1
                if below in line:
                    yield Call(match[1], seen[match[1]]), line

    def require(self, fault: Fault, below: str) -> None:
        """See that *fault* has struck its call on files *below*, and nothing worse has happened.

        Raises:
            AssertionError: It was not reached, or the process has not come to its end otherwise.
        """
        assert self.was_struck(fault, below), f"not reached: {self.printed}"
        assert self.status == (signal.SIGKILL if fault.kind == KILL else 0), self.printed

    def was_struck(self, fault: Fault, below: str) -> bool:
        """Tell whether *fault* has struck its call, and that on files *below*."""
        line = dict(self.calls(below)).get(fault.call, "")
        if fault.kind == KILL:
            return [line, "+++ killed by SIGKILL +++"] == self.lines[-2:]
        return line.endswith("(INJECTED)") and fault.kind.removeprefix("error=") in line


def traced(life: Callable[[Tell], None], trace: Path, fault: Fault | None = None) -> Traced:
    """Run *life* in a forked process that *fault* strikes; *trace* is where its calls go."""
    told, telling = os.pipe()
    printed = trace.with_suffix(".printed")
    with open(printed, "wb") as file:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {_GO})
        child = os.fork()
        if child == 0:
            _live(life, telling, file.fileno())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(telling)
    assert os.read(told, 1) == b"\n"  # whatever runs behind a fork has run
    argv = ["strace", "-y", "-s0", "-o", str(trace), "-e", f"trace={_EVERY_FILE}"]
    inject = [] if fault is None else ["-e", str(fault)]
    with subprocess.Popen([*argv, *inject, "-p", str(child)], stderr=subprocess.PIPE) as tracer:
        assert tracer.stderr is not None
        attached = tracer.stderr.readline()
        os.kill(child, _GO)
        with open(told, "rb") as pipe:
            words = pipe.read().decode().splitlines()
        _, status = os.waitpid(child, 0)
    assert b"attached" in attached, attached
    said = printed.read_text("utf-8")
    return Traced(status, words, said, trace.read_text("utf-8").splitlines())


def _live(life: Callable[[Tell], None], telling: int, printed: int) -> NoReturn:
    """Live as soon as strace has hold of this process, and end it."""
    code = 1

    def tell(word: str) -> None:
        os.write(telling, word.encode() + b"\n")

    try:
        for descriptor in (1, 2):
            os.dup2(printed, descriptor)
        tell("")
        signal.sigwait({_GO})
        life(tell)
        code = 0
    except BaseException:  # noqa: BLE001 - the parent judges it
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)
