"""What a run has written, put together from the events of its stream."""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable

from axern.api.decoding import RECORDS, Event
from axern.errors import ProtocolError
from axern.records import Unpacker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


class Output:
    """Take events; `offset` is where a new stream goes on, `complete` whether nothing is missing.

    Args:
        on_output: Called with the stream's name and bytes, as they come.
        capture: Whether they are kept in `stdout` and `stderr` too.
    """

    def __init__(self, on_output: Callable[[str, bytes], object] | None, *, capture: bool) -> None:
        self.offset = 0
        self.complete = True
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._on_output = on_output
        self._capture = capture
        self._unpacker = Unpacker()

    def take(self, event: Event) -> Json | None:
        """Take one event; return the run where it is the last one."""
        if event.name not in {RECORDS, "stdout", "stderr", "dropped", "exit"}:
            return None
        try:
            if event.name == "exit":
                run: Json = json.loads(event.data)["run"]
                return run
            offset = int(event.id)
            pieces = self._pieces(event)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"the daemon sent output that can't be read: {error}") from error
        for stream, data in pieces:
            self._put(stream, data)
        self.offset = offset
        return None

    def _pieces(self, event: Event) -> list[tuple[str, bytes]]:
        if event.name == RECORDS:
            broken = self._unpacker.broken
            pieces = [(piece.stream, piece.data) for piece in self._unpacker.unpack(event.data)]
            self.complete = self.complete and self._unpacker.broken == broken
            return pieces
        if event.name == "dropped":
            self.complete = False
            return []
        return [(event.name, binascii.a2b_base64(event.data, strict_mode=True))]

    def _put(self, stream: str, data: bytes) -> None:
        if self._capture:
            (self.stdout if stream == "stdout" else self.stderr).extend(data)
        if self._on_output is not None:
            self._on_output(stream, data)
