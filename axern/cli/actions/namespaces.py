"""What `axern namespace` does: make, show, bound and delete namespaces."""

from __future__ import annotations

from axern.cli.actions import offline
from axern.cli.actions.asking import NONE, ask, change, path
from axern.cli.commands.namespaces import BOUNDS
from axern.cli.output import amount, counted, put, put_fields, put_json
from axern.cli.table import Column, put_list
from axern.cli.when import age
from ledger.dimensions import BY_NAME
from ledger.errors import InvalidArgument
from ledger.units import parse_ratio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_ALL = "/v2/namespaces"
_WORDS = (
    ("default_requests", "default request"),
    ("default_limits", "default limit"),
    ("minimum", "minimum"),
    ("maximum", "maximum"),
)


def create(where: Where, *, name: str, output: str) -> None:
    """Make the namespace *name*."""
    _show(change(where, "POST", _ALL, {"name": name}), output)


def list_all(where: Where, *, output: str) -> None:
    """Show all namespaces; *output* is text, table, json or ndjson."""
    from axern.api import namespace_views as views

    answer = ask(where, _ALL, lambda files: {"namespaces": views.namespaces(files.state)})
    if output != "json":
        offline.announce(answer)
    header = (
        "NAME",
        Column("RESERVATIONS", right=True),
        Column("CLAIM", rank=2),
        Column("BOUNDS", rank=1),
        Column("AGE", rank=3),
    )
    put_list(answer, "namespaces", output, header, _line)


def _line(row: Json) -> list[object]:
    bounded = any(
        value is not None for bound in BOUNDS for value in [row[bound.field][bound.dimension.name]]
    )
    claim = row["claim_id"][:12] if row["claim_id"] else None
    return [row["name"], row["reservations"], claim, bounded, age(row["created_at"])]


def get(where: Where, *, name: str, output: str) -> None:
    """Show the namespace *name*."""
    from axern.api import namespace_views as views

    def from_files(files: Any) -> Json:
        found = views.namespace_view(files.state, name)
        quota = views.quota_view(files.state, name)["quota"]
        return {"namespace": found | {"quota": quota}}

    _show(ask(where, path(_ALL, name), from_files), output)


def update(where: Where, *, name: str, output: str, **bounds: str | None) -> None:
    """Change what one request in *name* may be."""
    body: Json = {}
    for bound in BOUNDS:
        words = bounds[bound.parameter]
        if words is not None:
            body.setdefault(bound.field, {})[bound.dimension.name] = _value(bound, words)
    if not body:
        raise InvalidArgument("nothing to change: name a bound", hint="for example --max-cpu 4")
    _show(change(where, "PATCH", path(_ALL, name), body), output)


def delete(where: Where, *, name: str, output: str) -> None:
    """Delete the namespace *name*."""
    answer = change(where, "DELETE", path(_ALL, name))
    if output == "json":
        put_json(answer)
    else:
        put(f"{name} deleted")


def _value(bound: Any, words: str) -> int | str | None:
    if words == NONE:
        return None
    if bound.field == "ratios":
        parse_ratio(words, bound.flag)
        return words
    value: int = bound.dimension.parse(words, bound.flag)
    return value


def _show(answer: Json, output: str) -> None:
    if output == "json":
        put_json(answer)
        return
    offline.announce(answer)
    row = answer["namespace"]
    fields: list[tuple[str, object]] = [
        ("name", row["name"]),
        ("age", age(row["created_at"])),
        ("holds", counted(row["reservations"], "reservation")),
        ("claim", row["claim_id"]),
        ("quota", _amounts(row["quota"])),
    ]
    fields += [(word, _amounts(row[field])) for field, word in _WORDS]
    ratios = [f"{BY_NAME[name].label} {row['ratios'][name]}" for name in row["ratios"]]
    kept = [shown for shown, name in zip(ratios, row["ratios"], strict=True) if row["ratios"][name]]
    put_fields([*fields, ("limit to request", ", ".join(kept))])


def _amounts(values: Json) -> str:
    shown = [
        f"{BY_NAME[name].label} {amount(BY_NAME[name], value)}"
        for name, value in values.items()
        if value is not None
    ]
    return ", ".join(shown)
