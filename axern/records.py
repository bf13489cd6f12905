r"""The format of a monitor's log, and the way from its records back to the bytes of both outputs.

Each record is one line, `TIME STREAM TAG BYTES\n`. With the tag F the bytes were followed by a
newline, with P they were not, so that no byte is added or lost: BYTES never holds a newline. TIME
has 35 characters and STREAM 6, so that all up to BYTES has one length.
Source: conmon, src/ctr_logging.c, TSBUFLEN; kubernetes/design-proposals-archive,
node/kubelet-cri-logging.md.
"""

from __future__ import annotations

from io import BytesIO
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
_UTC = b"+00:00"
_ZONE_AT = 29
_TAG_AT = 43
_STREAM_AT = 39
"""Of all places in a record the one at which the streams' names differ."""
_TAGS = b"FP"
_INNER_HEAD = rb"[-0-9:T.]{29}[-+][0-9:]{5} std(?:out|err) [FP] "
_NAMES = {ord("o"): STDOUT, ord("e"): STDERR}
_STREAMS = bytes(_NAMES)
_time = itemgetter(slice(_TIME_BYTES))
_tag = itemgetter(_TAG_AT)
_stream = itemgetter(_STREAM_AT)
_content = itemgetter(slice(HEAD_BYTES, None))


@frozen
class Output:
    """What one stream got; `size_bytes` is what that took in the log."""

    stream: str
    data: bytes
    size_bytes: int


class Unpacker:
    """Turn records back into output; with *timestamps* each line begins with its time.

    `broken` counts the records that were none, and are left out: a full disk cuts one short, and
    where room comes back the next one follows on the same line.
    """

    __slots__ = ("_inside", "broken", "timestamps")

    def __init__(self, *, timestamps: bool = False) -> None:
        self.timestamps = timestamps
        self.broken = 0
        # The outputs that were left in the middle of a line; matters for timestamps alone.
        self._inside: frozenset[int] = frozenset()

    def unpack(self, text: bytes) -> list[Output]:
        """Return the output in *text*, whole records: neighbours of one stream are one piece.

        Everything that is done once for each record is done by one call for all of them, since a
        line of output is often shorter than the head of its record.
        """
        lines = BytesIO(text).readlines()
        try:
            tags, streams = bytes(map(_tag, lines)), bytes(map(_stream, lines))
            is_clean = not (tags.translate(None, _TAGS) or streams.translate(None, _STREAMS))
            is_clean = is_clean and (
                text.count(b" std") == len(lines)  # half the time, and nearly always enough
                or text.count(b" stdout ") + text.count(b" stderr ") == len(lines)
            )
        except IndexError:  # one is shorter than any record
            is_clean = False
        if not is_clean:
            records = [line for line in lines if _is_record(line)]
            if len(records) < len(lines):
                self.broken += len(lines) - len(records)
                return self.unpack(b"".join(records)) if records else []
        contents = list(map(_content, lines))
        place = tags.find(b"P")
        while place >= 0:
            contents[place] = contents[place][:-1]
            place = tags.find(b"P", place + 1)
        if self.timestamps:
            self._stamp(contents, lines, streams)
        if len(set(streams)) == 1:
            return [Output(_NAMES[streams[0]], b"".join(contents), len(text))]
        outputs = []
        begin = 0
        for stream, row in groupby(streams):
            end = begin + len(list(row))
            data = b"".join(contents[begin:end])
            outputs.append(Output(_NAMES[stream], data, sum(map(len, lines[begin:end]))))
            begin = end
        return outputs

    def _stamp(self, contents: list[bytes], lines: list[bytes], streams: bytes) -> None:
        """Put its time before each line of an output that begins here."""
        for place, content in enumerate(contents):
            stream = streams[place]
            if stream not in self._inside:
                contents[place] = shown_time(lines[place]) + b" " + content
            if content.endswith(b"\n"):
                self._inside -= {stream}
            else:
                self._inside |= {stream}


def shown_time(record: bytes) -> bytes:
    """Return the time of *record* as it is told: in UTC, as monitors write it, with a Z."""
    time = record[:_TIME_BYTES]
    return time.removesuffix(_UTC) + b"Z" if time.endswith(_UTC) else time


def _is_record(line: bytes) -> bool:
    is_one = len(line) > HEAD_BYTES and _tag(line) in _TAGS and _stream(line) in _STREAMS
    return is_one and not _has_another(line)


def _has_another(line: bytes) -> bool:
    """Tell whether a second record begins within *line*.

    Output may hold records, too, such as another log's; those are older than what it stands in.
    """
    import re

    own = _time(line)
    for inner in map(_time, re.findall(_INNER_HEAD, line[HEAD_BYTES:])):
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
    return record[_TAG_AT : _TAG_AT + 1] == b"F"
