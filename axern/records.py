r"""The format of a monitor's log, and the way from its records back to the bytes of both outputs.

Each record is one line, `TIME STREAM TAG BYTES\n`. With the tag F the bytes were followed by a
newline, with P they were not, so that no byte is added or lost: BYTES never holds a newline. TIME
has 35 characters and STREAM 6, so that all up to BYTES has one length.
Source: conmon, src/ctr_logging.c, TSBUFLEN; kubernetes/design-proposals-archive,
node/kubelet-cri-logging.md.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from axern.errors import HostError
from ledger.frozen import frozen

STDOUT = "stdout"
STDERR = "stderr"
RECORD_LIMIT_BYTES = 64 * 1024
"""conmon reads 8 KiB at a time, so that a longer record is not from it."""
HEAD_BYTES = 45
_TIME_BYTES = 35
_WHOLE = frozenset({b" stdout F ", b" stderr F "})
_KINDS = {
    b" stdout F ": STDOUT,
    b" stdout P ": STDOUT,
    b" stderr F ": STDERR,
    b" stderr P ": STDERR,
}
_time = itemgetter(slice(_TIME_BYTES))
_kind = itemgetter(slice(_TIME_BYTES, HEAD_BYTES))
_content = itemgetter(slice(HEAD_BYTES, None))


@frozen
class Output:
    """What one stream got; `size_bytes` is what that took in the log, with what is left out."""

    stream: str
    data: bytes
    size_bytes: int


class Unpacker:
    """Turn records back into output; with *timestamps* each line begins with its time.

    `broken` counts the records that were none, as a full disk leaves them: they are left out.
    """

    __slots__ = ("_inside", "broken", "timestamps")

    def __init__(self, *, timestamps: bool = False) -> None:
        self.timestamps = timestamps
        self.broken = 0
        # The outputs that were left in the middle of a line; matters for timestamps alone.
        self._inside: frozenset[str] = frozenset()

    def unpack(self, text: bytes) -> list[Output]:
        """Return the output in *text*, whole records: neighbours of one stream are one piece.

        Everything that is done once for each record is done by one call for all of them, since a
        line of output is often shorter than the head of its record.
        """
        lines = text.split(b"\n")
        lines.pop()
        kinds = list(map(_kind, lines))
        contents = self._stamped(lines, kinds) if self.timestamps else list(map(_content, lines))
        outputs: list[Output] = []
        parts: list[bytes] = []
        stream, size_bytes = None, 0
        for begin, end in _runs(kinds):
            kind = kinds[begin]
            of = _KINDS.get(kind, stream)
            if kind not in _KINDS:
                self.broken += end - begin
            elif of != stream and stream is not None:
                outputs.append(Output(stream, b"".join(parts), size_bytes))
                parts, size_bytes = [], 0
            size_bytes += sum(map(len, lines[begin:end])) + end - begin
            stream = of
            if kind in _WHOLE:
                parts.append(b"\n".join([*contents[begin:end], b""]))
            elif kind in _KINDS:
                parts.extend(contents[begin:end])
        if stream is not None:
            outputs.append(Output(stream, b"".join(parts), size_bytes))
        return outputs

    def _stamped(self, lines: list[bytes], kinds: list[bytes]) -> list[bytes]:
        contents = []
        for line, kind in zip(lines, kinds, strict=True):
            stream = _KINDS.get(kind, "")
            begins = stream not in self._inside
            contents.append(_time(line) + b" " + _content(line) if begins else _content(line))
            if kind in _WHOLE:
                self._inside -= {stream}
            else:
                self._inside |= {stream}
        return contents


def _runs(kinds: list[bytes]) -> list[tuple[int, int]]:
    """Return where each row of equal *kinds* begins and ends."""
    runs: list[tuple[int, int]] = []
    begin = 0
    for _, row in groupby(kinds):
        end = begin + len(list(row))
        runs.append((begin, end))
        begin = end
    return runs


def written_at_ns(record: bytes) -> int:
    """Return when *record* was written, in nanoseconds of the wall clock since the epoch.

    Raises:
        HostError: It does not begin with a time.
    """
    from datetime import UTC, datetime

    text = record[:_TIME_BYTES].decode("ascii", "replace")
    seconds, _, rest = text.partition(".")
    try:
        # RFC 3339 with nine digits of a second, which datetime can't hold.
        moment = datetime.fromisoformat(seconds + rest[9:])
        return int(moment.astimezone(UTC).timestamp()) * 1_000_000_000 + int(rest[:9])
    except ValueError as error:
        raise HostError(f"no log record: {record[:HEAD_BYTES]!r}", syscall="read") from error


def is_whole_line(record: bytes) -> bool:
    """Tell whether *record* ends a line of its output."""
    return _kind(record) in _WHOLE
