"""What `axern queue` does, and how a run waits for its grant."""

from __future__ import annotations

import json
from collections.abc import Callable

from axern.cli.actions.asking import change, path
from axern.cli.actions.foreground import Patience
from axern.cli.output import amounts, put, put_fields, put_json, say
from axern.cli.table import Column, put_list
from axern.cli.when import age
from axern.errors import DaemonUnreachable
from ledger.errors import AxernError
from ledger.units import format_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_ALL = "/v2/queue"
_PAUSE = "/v2/queue/pause"


class TicketEnded(AxernError):
    """It waits no more and was not granted: cancelled, or its time is over."""

    code = "state_conflict"


def until_granted(where: Where, ticket: Json, before_connecting: Callable[[], None]) -> Json:
    """Follow *ticket* until it is granted, telling on standard error how it stands.

    Returns:
        What was granted: an object with `run` or `reservation`.

    Raises:
        TicketEnded: It was taken out of the queue, or has waited for as long as it would.
        DaemonUnreachable: No daemon came back in time.
    """
    patience, told = Patience(), ""
    while True:
        before_connecting()
        try:
            with where.reach() as client:
                for event in client.events(path(_ALL, ticket["id"], "stream")):
                    patience.succeed()
                    data: Json = json.loads(event.data)
                    if event.name == "granted":
                        return data
                    if event.name == "ended":
                        raise TicketEnded(data["error"]["message"], hint="ask again, or for less")
                    told = _tell(data["ticket"], told)
            patience.wait(DaemonUnreachable("the daemon ended while a request waited"))
        except DaemonUnreachable as error:
            patience.wait(error)


def _tell(ticket: Json, told: str) -> str:
    """Say where *ticket* stands, unless *told* has said the same."""
    words = f"waiting, position {ticket['position']}: {ticket['reason'] or 'its turn comes'}"
    if words != told:
        say(f"axern: {words}")
    return words


def list_all(where: Where, *, output: str) -> None:
    """Show who waits, in order; *output* is text, table, json or ndjson."""
    answer = change(where, "GET", _ALL)
    if answer["paused"] and output in ("table", "text"):
        say(f"axern: the queue rests since {answer['paused']['since']}: axern queue resume")
    header = (
        Column("PLACE", right=True),
        "ID",
        Column("NAMESPACE", rank=2),
        Column("PRIORITY", right=True, rank=3),
        Column("AGE", rank=1),
        "WAITS FOR",
    )
    put_list(answer, "tickets", output, header, _line)


def _line(row: Json) -> list[object]:
    return [
        row["position"],
        row["id"][:12],
        row["namespace"],
        row["priority"],
        age(row["created_at"]),
        row["reason"],
    ]


def inspect(where: Where, *, ticket_id: str, output: str) -> None:
    """Show one who waits."""
    _show(change(where, "GET", path(_ALL, ticket_id)), output)


def cancel(where: Where, *, ticket_id: str, output: str) -> None:
    """Take one out of the queue."""
    answer = change(where, "DELETE", path(_ALL, ticket_id))
    if output == "json":
        put_json(answer)
    else:
        put(f"{answer['ticket']['id']} waits no more")


def pause(where: Where, *, output: str) -> None:
    """Let the queue rest."""
    _rest(change(where, "POST", _PAUSE), output)


def resume(where: Where, *, output: str) -> None:
    """Let the queue go on."""
    _rest(change(where, "DELETE", _PAUSE), output)


def _rest(answer: Json, output: str) -> None:
    if output == "json":
        put_json(answer)
    else:
        put("the queue rests" if answer["paused"] else "the queue goes on")


def _show(answer: Json, output: str) -> None:
    if output == "json":
        put_json(answer)
        return
    row = answer["ticket"]
    held = amounts({name: value for name, value in row["held"].items() if value})
    put_fields(
        [
            ("id", row["id"]),
            ("place", row["position"]),
            ("namespace", row["namespace"]),
            ("owner", f"uid {row['owner']['uid']}"),
            ("asks for", amounts(row["requests"])),
            ("waits for", row["reason"]),
            ("priority", row["priority"]),
            ("age", age(row["created_at"])),
            ("gives up in", format_duration_ms(row["expires_in_ms"])),
            ("passed by", f"{row['bypasses']} times"),
            ("held for it", held or None),
        ]
    )
