"""Bytes between our standard descriptors and the streams of an added process, until it ends."""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING

from axern.cli.output import STDERR, STDOUT, say, write

if TYPE_CHECKING:
    from axern.cli.actions.added import Added

STDIN = 0
_PART_BYTES = 256 * 1024
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLNVAL
_OUTPUTS = {"stdout": STDOUT, "stderr": STDERR, "terminal": STDOUT}
_SETTLE_MS = 200
"""What a terminal has taken may be on its way for a moment; a pipe has it at once."""


def copy(added: Added, *, reads: bool) -> None:
    """Copy until the process has ended and all that it wrote is here; with *reads* our input too.

    Raises:
        OutputClosed, OutputFailed: Our own output takes no more.
    """
    _Copy(added, reads=reads).run()


class _Copy:
    """The state between two looks at what is ready."""

    def __init__(self, added: Added, *, reads: bool) -> None:
        self._added = added
        self._into = "terminal" if "terminal" in added.ends else "stdin"
        self._reads = reads and self._into in added.ends
        self._pending = memoryview(b"")
        if self._reads:
            os.set_blocking(added.ends[self._into], False)

    def run(self) -> None:
        """Copy to the end."""
        over = self._added.over
        while True:
            ready = self._ready()
            if self._reads:
                self._move_input(ready)
            self._move_outputs(ready)
            if over in ready:
                break
        settle_ms = _SETTLE_MS if self._into == "terminal" else 0
        while any(name in self._added.ends for name in _OUTPUTS):
            found = self._look(self._outputs(), settle_ms)
            if not found:
                return
            self._move_outputs(found)

    def _ready(self) -> dict[int, int]:
        wanted = self._outputs() | {self._added.over: select.POLLIN}
        if self._reads:
            end = self._added.ends[self._into]
            if self._pending:
                wanted[end] = wanted.get(end, 0) | select.POLLOUT
            else:
                wanted.setdefault(end, 0)  # to hear that nobody reads any more
                wanted[STDIN] = select.POLLIN
        return self._look(wanted, None)

    def _outputs(self) -> dict[int, int]:
        ends = self._added.ends
        return {ends[name]: select.POLLIN for name in _OUTPUTS if name in ends}

    def _look(self, wanted: dict[int, int], timeout_ms: int | None) -> dict[int, int]:
        poller = select.poll()
        for descriptor, events in wanted.items():
            poller.register(descriptor, events)
        return dict(poller.poll(timeout_ms))

    def _move_input(self, ready: dict[int, int]) -> None:
        end = self._added.ends[self._into]
        if ready.get(STDIN, 0) & _READABLE and not self._pending:
            data = _read_input()
            if not data:
                self._end_input()
                return
            self._pending = memoryview(data)
        if self._pending:
            try:
                self._pending = self._pending[os.write(end, self._pending) :]
            except BlockingIOError:
                return
            except OSError:  # nobody reads any more: EPIPE, or EIO of a terminal
                self._end_input()
        elif self._into == "stdin" and ready.get(end, 0) & select.POLLERR:
            self._end_input()

    def _end_input(self) -> None:
        self._reads = False
        if self._into == "stdin":
            self._added.close("stdin")

    def _move_outputs(self, ready: dict[int, int]) -> None:
        for name, target in _OUTPUTS.items():
            end = self._added.ends.get(name)
            if end is None or not ready.get(end, 0) & _READABLE:
                continue
            try:
                data = os.read(end, _PART_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # a terminal that its process has left says EIO
                data = b""
            if data:
                write(target, data)
            else:
                self._reads = self._reads and name != "terminal"
                self._added.close(name)


def _read_input() -> bytes:
    try:
        return os.read(STDIN, _PART_BYTES)
    except OSError as error:
        say(f"axern: standard input can't be read: {error.strerror}")
        return b""
