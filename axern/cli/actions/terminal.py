"""Our own terminal, lent to a process in a sandbox: every key goes there, its size follows ours."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios
import tty
from typing import TYPE_CHECKING

from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STDIN = 0
_USUAL = (24, 80)


def require_terminal() -> None:
    """Raise InvalidArgument unless our standard input is a terminal."""
    if not os.isatty(STDIN):
        raise InvalidArgument(
            "-t needs a terminal, and standard input is none", hint="leave -t out to use pipes"
        )


def size() -> tuple[int, int]:
    """Return rows and columns of our terminal, as usual where we have none or it does not say."""
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(descriptor)
            if rows and columns:
                return rows, columns
    return _USUAL


def resize(master: int | None) -> None:
    """Give the terminal of *master* the size of ours; None and one that has ended are fine."""
    if master is None:
        return
    rows, columns = size()
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextlib.contextmanager
def lent(on_resize: Callable[[], None]) -> Iterator[None]:
    """Let our terminal interpret no key, and call *on_resize* whenever its size changes."""
    before = termios.tcgetattr(STDIN)
    previous = signal.signal(signal.SIGWINCH, lambda *_: on_resize())
    try:
        tty.setraw(STDIN, termios.TCSADRAIN)
        on_resize()  # it may have changed before anybody listened
        yield
    finally:
        signal.signal(signal.SIGWINCH, previous)
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
