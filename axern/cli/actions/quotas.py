"""What `axern quota` does: ceilings of namespaces, what of them is in use, what was refused."""

from __future__ import annotations

from axern.cli.actions import offline
from axern.cli.actions.asking import ask, change, path
from axern.cli.actions.target import query
from axern.cli.output import ABSENT, amount, put_json
from axern.cli.table import Column, put_list, put_table
from axern.cli.when import age
from ledger.dimensions import DIMENSIONS
from ledger.errors import InvalidArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_ALL = "/v2/quotas"
_UNLIMITED = "unlimited"


def get(where: Where, *, namespace: str, output: str) -> None:
    """Show the quota of *namespace*, a dimension a line."""
    from axern.api import namespace_views as views

    answer = ask(
        where,
        path(_ALL, namespace),
        lambda files: {"quota": views.quota_view(files.state, namespace)},
    )
    _show(answer, output)


def list_all(where: Where, *, constrained: bool, pressure: bool, output: str) -> None:
    """Show the quotas of all namespaces, or of those that are as said."""
    from axern.api import namespace_views as views

    flags = {"constrained": constrained, "pressure": pressure}
    given = {name: "true" for name, value in flags.items() if value}
    answer = ask(
        where,
        query(_ALL, **given),
        lambda files: {"quotas": views.quotas(files.state, **flags)},
    )
    if output != "json":
        offline.announce(answer)
    rows = answer["quotas"]
    shown = [
        each for each in DIMENSIONS if any(row["quota"][each.name] is not None for row in rows)
    ] or list(DIMENSIONS[:2])
    columns = [Column(each.heading) for each in shown]
    header: tuple[Column | str, ...] = ("NAMESPACE", *columns, "PRESSURE")
    put_list(
        answer,
        "quotas",
        output,
        header,
        lambda row: [row["namespace"], *(_cell(row, each) for each in shown), row["pressure"]],
    )


def _cell(row: Json, dimension: Any) -> str:
    """Return `500m of 2 (25%)`, or `500m of -` without a ceiling."""
    name = dimension.name
    used, limit = amount(dimension, row["used"][name]), amount(dimension, row["quota"][name])
    percent = row["percent"][name]
    return f"{used} of {limit}" + ("" if percent is None else f" ({percent}%)")


def set_ceilings(where: Where, *, namespace: str, output: str, **amounts: str | None) -> None:
    """Change the ceilings of *namespace* that are named."""
    quota: Json = {}
    for each in DIMENSIONS:
        words = amounts[each.flag.replace("-", "_")]
        if words is not None:
            unlimited = words == _UNLIMITED
            quota[each.name] = None if unlimited else each.parse(words, f"--{each.flag}")
    if not quota:
        raise InvalidArgument("nothing to change: name a ceiling", hint="for example --cpu 16")
    _show(change(where, "PATCH", path(_ALL, namespace), {"quota": quota}), output)


def unset(where: Where, *, namespace: str, output: str) -> None:
    """Take every ceiling of *namespace* away."""
    _show(change(where, "DELETE", path(_ALL, namespace)), output)


def events(where: Where, *, namespace: str, limit: int | None, output: str) -> None:
    """Show what *namespace* was refused, newest first."""
    target = query(path(_ALL, namespace, "events"), limit=limit)
    answer = change(where, "GET", target)
    header = (
        Column("AGE", right=True),
        Column("TYPE", status=True),
        Column("REASON", "cut"),
        Column("COUNT", right=True),
        Column("UID", right=True, rank=1),
        Column("MESSAGE", "fold", least=24),
    )
    put_list(
        answer,
        "events",
        output,
        header,
        lambda row: [
            age(row["last_at"]),
            row["type"],
            row["reason"],
            row["count"],
            row["uid"],
            row["message"],
        ],
    )


def _show(answer: Json, output: str) -> None:
    if output == "json":
        put_json(answer)
        return
    offline.announce(answer)
    row = answer["quota"]
    lines = [
        (
            each.label,
            amount(each, row["used"][each.name]),
            amount(each, row["quota"][each.name]),
            amount(each, row["available"][each.name]),
            ABSENT if row["percent"][each.name] is None else f"{row['percent'][each.name]}%",
        )
        for each in DIMENSIONS
    ]
    headings = ("USED", "CEILING", "AVAILABLE", "PART")
    put_table(("DIMENSION", *(Column(each, right=True) for each in headings)), lines)
