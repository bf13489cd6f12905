r"""The format of a monitor's log, and the way from its records back to the bytes of both outputs.

Each record is one line, `TIME STREAM TAG BYTES\n`. With the tag F the bytes were followed by a
newline, with P they were not, so that no byte is added or lost: BYTES never holds a newline. TIME
has 35 characters and STREAM 6, so that all up to BYTES has one length.
Source: conmon, src/ctr_logging.c, TSBUFLEN; kubernetes/design-proposals-archive,
node/kubelet-cri-logging.md.
"""

from __future__ import annotations

from bisect import bisect_right
from io import BytesIO
from itertools import repeat

from axern.errors import HostError
from ledger.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Row = tuple[bytes, bytes, int]
    """A head, the content of all records in a row that have it, and how long the row is."""

STDOUT = "stdout"
STDERR = "stderr"
RECORD_LIMIT_BYTES = 64 * 1024
"""conmon reads 8 KiB at a time, so that a longer record is not from it."""
HEAD_BYTES = 45
_TIME_BYTES = 35
_UTC = b"+00:00"
_ZONE_AT = 29
_TAG = slice(43, 44)
_KIND = slice(_TIME_BYTES, HEAD_BYTES)
_INNER = slice(_ZONE_AT, _TIME_BYTES + 4)
"""`+00:00 std`: what every head holds, and output hardly ever."""
_STREAMS = {
    b" stdout F ": STDOUT,
    b" stdout P ": STDOUT,
    b" stderr F ": STDERR,
    b" stderr P ": STDERR,
}
_INNER_HEAD = rb"[-0-9:T.]{29}[-+][0-9:]{5} std(?:out|err) [FP] "


@frozen
class Output:
    """What one stream got; `size_bytes` is what that took in the log."""

    stream: str
    data: bytes
    size_bytes: int


class Unpacker:
    """Turn records back into output; with *timestamps* each line begins with its time.

    `broken` counts the records that were none, and are left out: a full disk cuts one short, and
    where room comes back the next one follows on the same line. `records` counts all of them.
    """

    __slots__ = ("_inside", "broken", "records", "timestamps")

    def __init__(self, *, timestamps: bool = False) -> None:
        self.timestamps = timestamps
        self.broken = 0
        self.records = 0
        # The outputs that were left in the middle of a line; matters for timestamps alone.
        self._inside: frozenset[str] = frozenset()

    def unpack(self, text: bytes) -> list[Output]:
        """Return the output in *text*, whole records: neighbours of one stream are one piece.

        What the monitor has read at once it logs as a row of records under one head, and all heads
        of a row go at once: a line of output is often shorter than the head of its record.
        """
        outputs: list[Output] = []
        parts: list[bytes] = []
        stream, size_bytes = "", 0
        records = BytesIO(text).readlines()
        self.records += len(records)
        for head, content, row_bytes in _rows(records, len(text)) or self._one_by_one(records):
            if _STREAMS[head[_KIND]] != stream and parts:
                outputs.append(Output(stream, b"".join(parts), size_bytes))
                parts, size_bytes = [], 0
            stream = _STREAMS[head[_KIND]]
            parts.append(self._told(head, content))
            size_bytes += row_bytes
        if parts:
            outputs.append(Output(stream, b"".join(parts), size_bytes))
        return outputs

    def _one_by_one(self, records: list[bytes]) -> Iterator[Row]:
        """Yield each sound one of *records*, and count the others."""
        for record in records:
            if _is_record(record):
                yield record[:HEAD_BYTES], record[HEAD_BYTES:], len(record)
            else:
                self.broken += 1

    def _told(self, head: bytes, content: bytes) -> bytes:
        """Return *content* as the workload wrote it, but for the times if they are wanted."""
        is_line = is_whole_line(head)
        if not is_line:
            content = content[:-1]
        if self.timestamps:
            stream = _STREAMS[head[_KIND]]
            time = shown_time(head) + b" "
            content = content.replace(b"\n", b"\n" + time, content.count(b"\n") - 1)
            if stream not in self._inside:
                content = time + content
            self._inside = self._inside - {stream} if is_line else self._inside | {stream}
        return content


def _rows(records: list[bytes], text_bytes: int) -> list[Row]:
    """Return *records*, in all of *text_bytes*, by heads; empty if any needs a closer look.

    What is done for each record is done by one call for all of a row. A record that was cut short
    is followed by one of its own time, or is the last that the disk took of its row.
    Source: conmon, src/ctr_logging.c, write_k8s_log.
    """
    rows: list[Row] = []
    begin, size_bytes = 0, 0
    while begin < len(records):
        head = records[begin][:HEAD_BYTES]
        # Times rise, as a rule: a guess, checked below.
        end = bisect_right(records, head + b"\xff", begin + 1)
        row = records[begin:end]
        content = b"".join(map(bytes.removeprefix, row, repeat(head)))
        row_bytes = len(content) + HEAD_BYTES * len(row)
        rows.append((head, content, row_bytes))
        if (
            head[_KIND] not in _STREAMS
            or (len(row) > 1 and not is_whole_line(head))
            or head[_INNER] in content
            or _may_have_another(row[-1])
        ):
            return []
        begin = end
        size_bytes += row_bytes
    # A record without its row's head has kept all of its bytes, so that the sum is too large.
    return rows if size_bytes == text_bytes else []


def count_records(text: bytes) -> int:
    """Return how many records end in *text*.

    To delete a byte leaps from one to the next, where `bytes.count` looks at each: nine times as
    fast. Source: CPython 3.11, Objects/stringlib/transmogrify.h and fastsearch.h.
    """
    return len(text) - len(text.replace(b"\n", b""))


def shown_time(record: bytes) -> bytes:
    """Return the time of *record* as it is told: in UTC, as monitors write it, with a Z."""
    time = record[:_TIME_BYTES]
    return time.removesuffix(_UTC) + b"Z" if time.endswith(_UTC) else time


def _is_record(line: bytes) -> bool:
    has_head = len(line) > HEAD_BYTES and line[_KIND] in _STREAMS
    return has_head and not (_may_have_another(line) and _has_another(line))


def _may_have_another(line: bytes) -> bool:
    """Tell whether there may be a head behind the first; one look is nearly always enough."""
    return line.find(b" std", HEAD_BYTES) > 0 and (
        line.find(b" stdout ", HEAD_BYTES) > 0 or line.find(b" stderr ", HEAD_BYTES) > 0
    )


def _has_another(line: bytes) -> bool:
    """Tell whether a second record begins within *line*.

    Output may hold records, too, such as another log's; those are older than what it stands in.
    """
    import re

    own = line[:_TIME_BYTES]
    for head in re.findall(_INNER_HEAD, line[HEAD_BYTES:]):
        inner = head[:_TIME_BYTES]
        if inner[_ZONE_AT:] == own[_ZONE_AT:]:
            if inner >= own:
                return True
            continue
        try:
            if written_at_ns(inner) >= written_at_ns(own):
                return True
        except HostError:  # it only looks like one
            continue
    return False


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
    return record[_TAG] == b"F"
