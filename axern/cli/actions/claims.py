"""What `axern claim` does: guarantee capacity to a namespace, and show who has claimed what."""

from __future__ import annotations

from axern.cli.actions import offline
from axern.cli.actions.asking import NONE, ask, change, path
from axern.cli.actions.target import query
from axern.cli.output import SHORT_ID, amount, amounts, put, put_fields, put_json
from axern.cli.table import Column, put_list
from axern.cli.when import age, ahead
from ledger.dimensions import BY_NAME, DIMENSIONS
from ledger.units import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_ALL = "/v2/claims"


def create(
    where: Where, *, namespace: str, mode: str, ttl: str | None, output: str, **claimed: str | None
) -> None:
    """Claim what is named for *namespace*."""
    body = {"namespace": namespace, "amounts": _amounts(claimed), "mode": mode, **_ttl(ttl)}
    _show(change(where, "POST", _ALL, body), output)


def list_all(where: Where, *, namespace: str | None, output: str) -> None:
    """Show all claims, or those of *namespace*."""
    from axern.api import namespace_views as views

    answer = ask(
        where,
        query(_ALL, namespace=namespace),
        lambda files: {"claims": views.claims(files.state, offline.clock(files.state), namespace)},
    )
    if output != "json":
        offline.announce(answer)
    header = (
        "ID",
        "NAMESPACE",
        "MODE",
        Column("CLAIMED", "fold"),
        Column("DRAWN", "fold", rank=1),
        Column("EXPIRES", rank=2),
    )
    put_list(answer, "claims", output, header, _line)


def _line(row: Json) -> list[object]:
    return [
        row["id"][:SHORT_ID],
        row["namespace"],
        row["mode"],
        amounts(row["amounts"]),
        amounts(row["drawdown"]),
        ahead(row["expires_at"]),
    ]


def get(where: Where, *, claim_id: str, output: str) -> None:
    """Show the claim whose id begins with *claim_id*."""
    from axern.api import namespace_views as views

    def from_files(files: Any) -> Json:
        row = views.find_claim(files.state, claim_id)
        return {"claim": views.claim_view(row, offline.clock(files.state))}

    _show(ask(where, path(_ALL, claim_id), from_files), output)


def update(
    where: Where,
    *,
    claim_id: str,
    mode: str | None,
    ttl: str | None,
    output: str,
    **claimed: str | None,
) -> None:
    """Change what is named of a claim."""
    body = {"amounts": _amounts(claimed), **_ttl(ttl)}
    if mode is not None:
        body["mode"] = mode
    _show(change(where, "PATCH", path(_ALL, claim_id), body), output)


def release(where: Where, *, claim_id: str, output: str) -> None:
    """Give a claim up."""
    answer = change(where, "DELETE", path(_ALL, claim_id))
    if output == "json":
        put_json(answer)
    else:
        put(f"{answer['claim']['id']} released")


def _amounts(claimed: dict[str, str | None]) -> dict[str, int]:
    return {
        each.name: each.parse(words, f"--{each.flag}")
        for each in DIMENSIONS
        if (words := claimed[each.flag.replace("-", "_")]) is not None
    }


def _ttl(words: str | None) -> Json:
    if words is None:
        return {}
    return {"ttl_ms": None if words == NONE else parse_duration_ms(words, "--ttl")}


def _show(answer: Json, output: str) -> None:
    if output == "json":
        put_json(answer)
        return
    offline.announce(answer)
    row = answer["claim"]
    fields: list[tuple[str, object]] = [
        ("id", row["id"]),
        ("namespace", row["namespace"]),
        ("mode", row["mode"]),
        ("age", age(row["created_at"])),
        ("expires", ahead(row["expires_at"])),
    ]
    for name in row["amounts"]:
        dimension = BY_NAME[name]
        drawn = amount(dimension, row["drawdown"][name])
        shown = f"{amount(dimension, row['amounts'][name])}, {drawn} drawn"
        fields.append((dimension.label, shown))
    if row["gpu_device"]:
        fields.append(("device", row["gpu_device"]))
    put_fields(fields)
