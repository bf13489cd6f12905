"""What `axern node doctor` does: checks this node, through the daemon or without one."""

from __future__ import annotations

from axern.cli.actions import offline
from axern.cli.output import put, put_fields, put_json, visible
from axern.cli.table import Column, put_table
from axern.errors import DaemonUnreachable
from ledger.errors import PermissionDenied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_DEPENDENCY_UNAVAILABLE = "dependency-unavailable"
_EXIT_CODES = {"ok": 0, "absent": 0, "warning": 1}


def doctor(where: Where, *, probe: bool, output: str) -> int:
    """Print every check; return 0, 1 where one warns, 3 where one is an error."""
    try:
        with where.reach() as client:
            answer = client.request("GET", "/v2/node/doctor")
    except DaemonUnreachable as error:
        answer = _alone(where, error)
    if probe:
        answer["checks"].extend(_probed(where))
    if output == "json":
        put_json(answer)
    else:
        _put(answer["checks"])
    return max((_EXIT_CODES.get(check["status"], 3) for check in answer["checks"]), default=0)


def _put(checks: list[Json]) -> None:
    """Print a line for each check, and below them each remedy once, with the checks it is for."""
    put_table(
        ("CHECK", Column("STATUS", status=True), "CODE", Column("MESSAGE", "fold", least=24)),
        [
            (check["check"], check["status"], check["code"], visible(check["message"]))
            for check in checks
        ],
    )
    remedies: dict[str, list[str]] = {}
    for check in checks:
        # What only lacks another capability is mended with that one.
        if check["remedy"] and check["code"] != _DEPENDENCY_UNAVAILABLE:
            remedies.setdefault(check["remedy"], []).append(check["check"])
    for remedy, names in remedies.items():
        put("")
        put_fields([("remedy", visible(remedy)), ("for", ", ".join(names))])


def _alone(where: Where, reason: DaemonUnreachable) -> Json:
    from axern.config import load
    from axern.runtime import node_doctor

    try:
        checks = node_doctor.examine(load(where.config))
    except PermissionDenied as error:
        raise DaemonUnreachable(f"{reason.message}; {error.message}", hint=reason.hint) from None
    return {"checks": checks, "generation": None, "source": offline.SOURCE}


def _probed(where: Where) -> list[Json]:
    from axern.config import load
    from axern.runtime import node_doctor

    return node_doctor.probe(load(where.config))
