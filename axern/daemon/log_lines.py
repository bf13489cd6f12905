"""The daemon's log: one record is one line, printable and bounded, whatever it quotes.

What clients, workloads and runtimes say ends up in messages and in tracebacks. It is escaped
here, in the one formatter, so that no place that logs has to remember it.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from types import TracebackType

MESSAGE_LIMIT = 4096
"""Characters of a message, and again of a traceback; the middle of a longer one is left out."""

_PRIORITIES = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}
"""From Python's levels to those of syslog(3)."""

_log = logging.getLogger("axernd")


class LineFormatter(logging.Formatter):
    """Write a record as one line; the lines of its traceback are joined with ` | `.

    In the journal a level stands in front, as `<4>`, so that `journalctl -p warning` finds it.
    Source: sd-daemon(3).
    """

    def __init__(self, *, in_journal: bool = False) -> None:
        super().__init__()
        self._in_journal = in_journal

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as a line without its end; a record that can't be formatted is told."""
        try:
            message = record.getMessage()
        except Exception as error:  # noqa: BLE001 - a wrong call must not cost the line
            message = f"{record.msg!r} could not be written: {error!r}"
        parts = [f"{record.levelname} {record.name}: {message}"]
        if record.exc_info:
            parts.append(" | ".join(self.formatException(record.exc_info).split("\n")))
        line = " | ".join(printable(part, MESSAGE_LIMIT) for part in parts)
        return f"<{_PRIORITIES.get(record.levelno, 6)}>{line}" if self._in_journal else line


def printable(text: str, limit: int) -> str:
    """Return *text* on one line: controls, line ends and marks of direction escaped, cut short."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [{len(text) - 2 * half} more] {text[-half:]}"
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def set_up(stream: IO[str], *, verbose: bool, in_journal: bool = False) -> None:
    """Let everything that the process has to say go through the formatter to *stream*.

    That includes warnings, and what Python itself reports of exceptions that nobody caught.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(in_journal=in_journal))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # a closed stderr must not cost more than the line
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    sys.excepthook = _tell_uncaught
    sys.unraisablehook = _tell_unraisable
    threading.excepthook = _tell_thread


def tell_of_loop(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the event loop can't tell anybody: a line of its own words, and why.

    A lack of descriptors is a state of the host and no bug: a traceback would say nothing.
    """
    error = context.get("exception")
    message = context["message"]
    if isinstance(error, OSError):
        _log.warning("%s: %s", message, error.strerror)
    else:
        _log.error("%s", message, exc_info=error)


def _tell_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    _log.critical("ended by a bug", exc_info=(kind, error, trace))


def _tell_unraisable(found: sys.UnraisableHookArgs) -> None:
    _log.error("%s", found.err_msg or "an exception was ignored", exc_info=found.exc_value)


def _tell_thread(found: threading.ExceptHookArgs) -> None:
    name = found.thread.name if found.thread else "?"
    _log.error("thread %s ended by a bug", name, exc_info=found.exc_value)
