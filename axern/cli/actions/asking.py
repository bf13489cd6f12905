"""Ask the daemon, and where none answers read the ledger's files: for what only shows something."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from axern.cli.actions import offline
from axern.errors import DaemonUnreachable
from ledger.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.reader import Snapshot

    Json = dict[str, Any]

NONE = "none"


def ask(where: Where, target: str, from_files: Callable[[Snapshot], Json]) -> Json:
    """Return the daemon's answer to *target*, or what the ledger's files say if it is down."""
    try:
        with where.reach() as client:
            return client.request("GET", target)
    except DaemonUnreachable as error:
        snapshot = offline.read(where, error)
        found = from_files(snapshot)
        return {**found, "generation": snapshot.generation, "source": offline.SOURCE}


def change(where: Where, method: str, target: str, body: Json | None = None) -> Json:
    """Return the daemon's answer to a change, which nobody else can make."""
    with where.reach() as client:
        return client.request(method, target, body)


def path(collection: str, name: str, *more: str) -> str:
    """Return the path of *name* in *collection*, whatever somebody has typed as a name.

    Raises:
        InvalidArgument: It is empty, or no UTF-8.
    """
    if not name:
        raise InvalidArgument("a name or id is missing: it is empty")
    try:
        return "/".join((collection, quote(name, safe=""), *more))
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{name!r} is not UTF-8 text", hint="every name is") from error
