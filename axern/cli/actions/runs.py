"""What the commands about many runs do: list them, prune what is over."""

from __future__ import annotations

import os

from axern.cli.actions.target import query
from axern.cli.output import SHORT_ID, counted, put, put_json, say
from axern.cli.table import Column, put_list
from axern.cli.when import age, moment_ms
from ledger.errors import InvalidArgument
from ledger.units import format_bytes, format_short, parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]


_SHOWN = 100
"""How many runs a table shows where nothing else is said; for programs it is all of them."""
_PAGE = 1_000


def list_runs(
    where: Where,
    *,
    namespace: str | None,
    statuses: tuple[str, ...],
    labels: tuple[str, ...],
    owner: str | None,
    mine: bool,
    since: str | None,
    before: str | None,
    limit: int | None,
    cursor: str | None,
    output: str,
) -> None:
    """Show the runs that are still remembered, newest first."""
    is_for_people = output in {"table", "text"}
    wanted = {
        "namespace": namespace,
        "status": ",".join(statuses) or None,
        "label": ",".join(map(_label, labels)) or None,
        "owner": _owner(owner, mine=mine),
        "created_from_ms": None if since is None else moment_ms(since, "--since"),
        "created_before_ms": None if before is None else moment_ms(before, "--before"),
    }
    answer = _pages(where, wanted, limit or (_SHOWN if is_for_people else None), cursor)
    header = (
        "ID",
        Column("NAMESPACE", rank=1),
        Column("STATUS", status=True),
        Column("EXIT", right=True),
        Column("AGE", right=True),
        Column("COMMAND", "cut", least=20),
    )
    put_list(answer, "runs", output, header, _line)
    if is_for_people and answer["next_cursor"]:
        say(f"axern: there are more: --cursor {answer['next_cursor']} shows what follows")


def _pages(where: Where, wanted: Json, limit: int | None, cursor: str | None) -> Json:
    """Return the answer with *limit* runs, or with all of them, however many pages that takes."""
    runs: list[Json] = []
    with where.reach() as client:
        while True:
            left = _PAGE if limit is None else min(_PAGE, limit - len(runs))
            target = query("/v2/runs", **wanted, limit=left, cursor=cursor)
            answer = client.request("GET", target)
            runs += answer["runs"]
            cursor = answer["next_cursor"]
            if cursor is None or (limit is not None and len(runs) >= limit):
                return answer | {"runs": runs}


def _owner(owner: str | None, *, mine: bool) -> int | None:
    if mine and owner is not None:
        raise InvalidArgument("--mine and --owner exclude each other: give one of them")
    if owner is not None and not (owner.isascii() and owner.isdecimal()):
        raise InvalidArgument(
            f"--owner: {owner!r} is no user's id", hint="for example --owner 1000"
        )
    return os.getuid() if mine else None if owner is None else int(owner)


def _label(word: str) -> str:
    """Return the label filter *word* as a part of a list with commas."""
    return word.replace("%", "%25").replace(",", "%2C")


def _line(run: Json) -> list[object]:
    return [
        run["id"][:SHORT_ID],
        run["namespace"],
        run["status"],
        run["exit_code"],
        age(run["created_at"]),
        words(run["command"]),
    ]


def words(command: list[str] | None) -> str | None:
    """Return *command* as a shell would take it; the daemon keeps other users' commands secret."""
    import shlex

    return None if command is None else shlex.join(command)


def prune(
    where: Where,
    *,
    older_than: str | None,
    namespace: str | None,
    statuses: tuple[str, ...],
    labels: tuple[str, ...],
    all_users: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Remove what is remembered of runs that are over: spec, exit record and output."""
    pairs = [label.partition("=") for label in labels]
    body = {
        "older_than_ms": 0 if older_than is None else parse_duration_ms(older_than, "--older-than"),
        "namespace": namespace,
        "statuses": list(statuses),
        "labels": {key: value if equals else None for key, equals, value in pairs},
        "all_users": all_users,
        "dry_run": dry_run,
    }
    with where.reach() as client:
        answer = client.request("POST", "/v2/runs/prune", body)
    if output == "json":
        put_json(answer)
        return
    pruned = answer["pruned"]
    if dry_run:
        for run_id in pruned["run_ids"]:
            put(run_id)
    what = counted(pruned["count"], "run")
    size = format_short(pruned["disk_bytes"], format_bytes)
    (say if dry_run else put)(
        f"{what} would be removed, {size} in all" if dry_run else f"{what} removed, {size} freed"
    )
