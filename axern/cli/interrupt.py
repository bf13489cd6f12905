"""SIGINT (Ctrl-C) outside of what a command does: the process ends at once, without a traceback."""

from __future__ import annotations

import os
import signal

INTERRUPTED = 128 + 2
"""What a shell shows for a program that SIGINT ended."""


def leave_at_once() -> None:
    """End the process at SIGINT from now on."""
    _handle(lambda *_: os._exit(INTERRUPTED))


class Interruptible:
    """While entered, SIGINT raises KeyboardInterrupt: a command may have something to say."""

    def __enter__(self) -> None:
        self._previous = signal.getsignal(signal.SIGINT)
        _handle(signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        _handle(self._previous)


def _handle(handler: object) -> None:
    """Set *handler*; who was started with SIGINT ignored, as a shell does with `&`, meant it."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]
