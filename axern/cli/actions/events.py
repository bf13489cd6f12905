"""What `axern events` does: all events, so far or as they come, through restarts of the daemon."""

from __future__ import annotations

import json
import re

from axern.api.client import ApiError, ConnectionLost
from axern.cli.actions.foreground import Patience
from axern.cli.actions.target import query
from axern.cli.lines import put_line
from axern.cli.output import SHORT_ID, put_json, put_ndjson, say
from axern.cli.when import moment_ms
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from axern.api.decoding import Event
    from axern.cli.actions.where import Where

    Json = dict[str, Any]
    Begin = dict[str, str | int]

_ALL = "/v2/events"
_NUMBER = re.compile(r"[0-9]{1,16}([.~][0-9]{1,16})?", re.ASCII)
_USUAL = "1h"
_BEGIN, _DROPPED = "begin", "dropped"


def events(
    where: Where,
    *,
    follow: bool,
    since: str | None,
    namespace: str | None,
    kind: tuple[str, ...],
    output: str,
) -> None:
    """Print the events that are wanted, and with *follow* those that come."""
    if follow and output == "json":
        raise InvalidArgument(
            "--follow has no end, and a JSON document has one", hint="--output ndjson"
        )
    wanted = {"namespace": namespace, "kind": ",".join(kind) or None}
    reader = _Reader(where, wanted, _begin(since, follow=follow))
    try:
        told = reader.follow() if follow else reader.so_far()
        if output == "json":
            put_json({"events": list(told)})
            return
        for event in told:
            if output == "ndjson":
                put_ndjson([event])
            else:
                _put(event)
    except KeyboardInterrupt:
        if reader.last:
            say(f"axern: to go on from here: axern events -f --since {reader.last}")
        raise


def _begin(since: str | None, *, follow: bool) -> Begin:
    """Return where to begin, as parameters of the stream."""
    if since is None:
        return {} if follow else {"since_ms": moment_ms(_USUAL, "--since")}
    if _NUMBER.fullmatch(since):
        return {"since": since}
    return {"since_ms": moment_ms(since, "--since")}


class _Reader:
    """Reads the stream; `last` is the number of the last event that was handed on, or its begin."""

    def __init__(self, where: Where, wanted: dict[str, str | None], begin: Begin) -> None:
        self.last = ""
        self._where = where
        self._wanted = wanted
        self._begin = begin

    def so_far(self) -> Iterator[Json]:
        """Yield what there is."""
        target = query(_ALL, **self._begin, **self._wanted, follow="false")
        yield from self._told(self._where.reach().events(target))

    def follow(self) -> Iterator[Json]:
        """Yield what comes, also when the daemon was away for a while.

        Raises:
            DaemonUnreachable: It is away for too long.
        """
        self._where.reach().close()
        patience = Patience()
        while True:
            begin = self._begin | ({"since": self.last} if self.last else {})
            target = query(_ALL, **begin, **self._wanted, follow="true")
            try:
                stream = self._where.client().events(target)
                patience.succeed()
                yield from self._told(stream)
                patience.wait(ConnectionLost("the daemon ended the stream"))
            except DaemonUnreachable as error:
                patience.wait(error)
            except ApiError as error:
                if error.code != "busy":
                    raise
                patience.wait(error)

    def _told(self, stream: Iterator[Event]) -> Iterator[Json]:
        for event in stream:
            try:
                value: Json = json.loads(event.data)
            except ValueError as error:
                raise ProtocolError("the daemon sent an event that is no JSON") from error
            if event.name == _DROPPED:
                say(f"axern: {value.get('message')}")
                continue
            if event.name != _BEGIN:
                yield value
            self.last = event.id


def _put(event: Json) -> None:
    name = (event["id"] or event["table"] or "")[:SHORT_ID]
    head = (
        f"{event['at']} {event['sequence']:>8}  {event['operation']:<18} {name:<{SHORT_ID}} "
        f"{event['by'] or '':<8}"
    )
    put_line(head, _why(event))


def _why(event: Json) -> str:
    parts = []
    if event["namespace"] and event["namespace"] != "default":
        parts.append(event["namespace"])
    if event["count"] > 1:
        parts.append(f"{event['count']} times")
    code = event["detail"].get("code")
    if code:
        parts.append(code)
    if event["message"]:
        parts.append(event["message"])
    return ", ".join(parts)
