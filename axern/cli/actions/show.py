"""What the commands do that only show something: reservations, the node."""

from __future__ import annotations

from collections.abc import Callable

from axern.cli.actions import offline
from axern.cli.actions.target import query
from axern.cli.output import SHORT_ID, amount, owner, put, put_fields, put_json
from axern.cli.table import Column, put_list, put_table
from axern.cli.when import ahead
from axern.errors import DaemonUnreachable
from ledger.dimensions import BY_NAME, DIMENSIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.dimensions import Dimension
    from ledger.reader import Snapshot

    Json = dict[str, Any]

_AMOUNTS = {
    "capacity": Column("CAPACITY", right=True),
    "system_reserve": Column("RESERVE", right=True, rank=2),
    "allocatable": Column("ALLOCATABLE", right=True, rank=4),
    "effective_allocatable": Column("EFFECTIVE", right=True),
    "committed": Column("COMMITTED", right=True),
    "held": Column("HELD", right=True, rank=3),
    "claimed": Column("CLAIMED", right=True, rank=3),
    "retiring": Column("RETIRING", right=True, rank=1),
    "headroom": Column("HEADROOM", right=True),
    "exposure": Column("EXPOSURE", right=True, rank=3),
}
_RANKS = {"ephemeral_storage_bytes": 2, "sandbox_slots": 4}
"""Which dimensions a narrow table can do without; see `Column.rank`."""


def list_reservations(
    where: Where, *, namespace: str | None, phase: str | None, output: str
) -> None:
    """Show all reservations; *output* is text, table, json or ndjson."""
    target = query("/v2/reservations", namespace=namespace, phase=phase)
    answer = _ask(where, target, lambda files: offline.reservations(files, namespace, phase))
    if output != "json":
        offline.announce(answer)
    rows = answer["reservations"]
    # A column of zeros tells nothing; on most hosts that is GPU memory.
    shown = [dim for dim in DIMENSIONS if any(row["charged"][dim.name] for row in rows)]
    header: tuple[Column | str, ...] = (
        "ID",
        "NAMESPACE",
        Column("OWNER", "cut", rank=3),
        Column("PHASE", status=True),
        Column("LIVENESS", status=True),
        *(_heading(dimension) for dimension in shown),
        Column("EXPIRES", rank=1),
    )
    put_list(answer, "reservations", output, header, lambda row: _line(row, shown))


def _heading(dimension: Dimension) -> Column:
    return Column(dimension.heading, right=True, rank=_RANKS.get(dimension.name, 0))


def _line(row: Json, shown: list[Dimension]) -> list[object]:
    return [
        row["id"][:SHORT_ID],
        row["namespace"],
        owner(row["owner"]),
        row["phase"],
        row["liveness"],
        *(amount(dimension, row["charged"][dimension.name]) for dimension in shown),
        ahead(row["expires_at"]),
    ]


def node_capacity(where: Where, *, output: str) -> None:
    """Show what the node has in each dimension, and who holds how much of it."""
    answer = _ask(where, "/v2/node", offline.node)
    if output == "json":
        put_json(answer)
        return
    offline.announce(answer)
    rows: list[list[object]] = []
    for entry in answer["node"]["dimensions"]:
        rows.append(_capacity_line(entry["label"], entry["name"], entry))
        rows.extend(
            _capacity_line(f"  {device['device']}", entry["name"], device)
            for device in entry["devices"]
        )
    put_table(("DIMENSION", *_AMOUNTS.values()), rows)


def _capacity_line(label: str, dimension: str, values: Json) -> list[object]:
    return [label, *(amount(BY_NAME[dimension], values.get(name)) for name in _AMOUNTS)]


def node_status(where: Where, *, output: str) -> None:
    """Show what the daemon is, and what this host can run and enforce."""
    with where.reach() as client:
        answer = client.request("GET", "/v2/node")
    if output == "json":
        put_json(answer)
        return
    node = answer["node"]
    lost = ", ".join(node.get("degraded") or ())  # an older daemon does not tell
    put_fields(
        [
            ("node", node["node_id"]),
            ("daemon", node["version"]),
            ("ledger", _ledger(node["ledger"])),
            ("generation", node["generation"]),
            ("boot id", node["boot_id"]),
            ("limits", node["cgroup_enforcement"]),
            ("standing", _standing(node["standing"])),
            ("reservations", node["entries"]),
            *([("degraded", f"lost, and still asked for by what runs: {lost}")] if lost else ()),
        ]
    )
    if node["runtimes"]:
        put("")
        put_table(
            ("RUNTIME", Column("VERSION", "cut"), Column("PATH", "fold")),
            [(entry["name"], entry["version"], entry["path"]) for entry in node["runtimes"]],
        )
    if node["capabilities"]:
        put("")
        put_table(
            ("CAPABILITY", Column("STATUS", status=True), Column("MESSAGE", "fold", least=24)),
            [(entry["key"], entry["status"], entry["message"]) for entry in node["capabilities"]],
        )


def _ledger(ledger: Json) -> str:
    if ledger["reason"] is None:
        return str(ledger["state"])
    words = f"{ledger['state']} since {ledger['since']}, accepts {ledger['accepts']}"
    return f"{words}: {ledger['reason']}" + (f" ({ledger['remedy']})" if ledger["remedy"] else "")


def _standing(standing: Json) -> str:
    if standing["since"] is None:
        return str(standing["state"])
    return f"{standing['state']} since {standing['since']}: {standing['reason']}"


def _ask(where: Where, target: str, from_files: Callable[[Snapshot], Json]) -> Json:
    """Return the daemon's answer to *target*, or what the ledger's files say if it is down."""
    try:
        with where.reach() as client:
            return client.request("GET", target)
    except DaemonUnreachable as error:
        return from_files(offline.read(where, error))
