"""What `axern ledger log` and `dump` do: the journal and the present state, from the files."""

from __future__ import annotations

import os
import time

from axern.cli.actions.target import checked_id
from axern.cli.lines import put_line
from axern.cli.output import amounts, put_json, put_ndjson, say
from axern.cli.when import moment_ms
from ledger.errors import InvalidArgument
from ledger.units import format_rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.log import Entry, Log

    Json = dict[str, Any]

_PAUSE_S = 0.5
_SHORT_ID = 12


def log(
    where: Where,
    *,
    reservation_id: str | None,
    namespace: str | None,
    kind: tuple[str, ...],
    since: str | None,
    follow: bool,
    output: str,
) -> None:
    """Print the operations that are wanted, and with *follow* those that come."""
    if follow and output == "json":
        raise InvalidArgument(
            "--follow has no end, and a JSON document has one", hint="--output ndjson"
        )
    from ledger.log import Log, Wanted

    wanted = Wanted(
        prefix=None if reservation_id is None else checked_id(reservation_id),
        namespace=namespace,
        operations=kind,
        since_wall_ms=0 if since is None else moment_ms(since, "--since"),
    )
    journal = Log(where.ledger_dir, wanted)
    if output == "json":
        put_json({"operations": [_view(entry) for entry in journal.new()]} | _damage(journal))
        return
    told = 0
    while True:
        for entry in journal.new():
            if output == "ndjson":
                put_ndjson([_view(entry)])
            else:
                _put(entry)
        for words in journal.damage[told:]:
            say(f"the journal is damaged, operations may be missing: {words}")
        told = len(journal.damage)
        if not follow:
            return
        time.sleep(_PAUSE_S)


def dump(where: Where) -> None:
    """Print all that the ledger says."""
    from ledger.contents import as_document, read
    from ledger.files import Folder, translate

    path = os.path.abspath(where.ledger_dir)
    try:
        folder = Folder(path)
        try:
            document = as_document(read(folder))
        finally:
            folder.close()
    except OSError as error:
        raise translate(error, path) from error
    put_json(document)


def _damage(journal: Log) -> Json:
    return {"damage": journal.damage}


def _view(entry: Entry) -> Json:
    from axern.api.views import resources_view

    return {
        "generation": entry.generation,
        "at": format_rfc3339(entry.wall_ms),
        "operation": entry.operation,
        "by": entry.by,
        "table": entry.table,
        "id": entry.id,
        "namespace": entry.namespace,
        "phase": entry.phase,
        "owner_uid": entry.owner_uid,
        "requests": None if entry.requests is None else resources_view(entry.requests),
        "note": entry.note,
    }


def _put(entry: Entry) -> None:
    """Write one line, or more where the terminal is too narrow for it."""
    name = (entry.id or entry.table or "")[:_SHORT_ID]
    head = (
        f"{format_rfc3339(entry.wall_ms)} {entry.generation:>6}  {entry.operation:<12} "
        f"{name:<{_SHORT_ID}} {entry.by:<8}"
    )
    put_line(head, _why(entry))


def _why(entry: Entry) -> str:
    parts = []
    if entry.namespace and entry.namespace != "default":
        parts.append(entry.namespace)
    if entry.operation in ("reserve", "grant") and entry.requests is not None:
        from axern.api.views import resources_view

        asked = resources_view(entry.requests)
        asked.pop("sandbox_slots")  # always one
        parts.append(amounts(asked))
    if entry.note:
        parts.append(entry.note)
    return ", ".join(parts)
