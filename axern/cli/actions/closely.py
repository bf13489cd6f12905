"""What `axern reservations inspect` and `doctor` do: one entry from all sides, and all of them."""

from __future__ import annotations

import os

from axern.cli.actions import offline
from axern.cli.actions.target import checked_id
from axern.cli.output import (
    ABSENT,
    amounts,
    counted,
    owner,
    put,
    put_fields,
    put_json,
    say,
    visible,
)
from axern.cli.table import Column, put_table
from axern.cli.when import span
from axern.errors import DaemonUnreachable
from ledger.units import format_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

_EXIT_CODES = {"warning": 1, "problem": 3}


def inspect(where: Where, *, reservation_id: str, output: str) -> None:
    """Show one reservation: what the ledger has, what the host has, and what became of it."""
    word = checked_id(reservation_id)
    try:
        with where.reach() as client:
            target = f"/v2/reservations/{word}?evidence=true&history=true"
            answer = client.request("GET", target)
    except DaemonUnreachable as error:
        answer = offline.closely(where, word, error)
    if output == "json":
        put_json(answer)
        return
    offline.announce(answer)
    if answer["reservation"] is None:
        say("the journal has no more than the end of it")
    else:
        _put_row(answer["reservation"])
    if answer.get("exit"):
        _put_section("EXIT", list(answer["exit"].items()))
    if answer.get("evidence"):
        _put_section("EVIDENCE", _evidence(answer["evidence"]))
    _put_history(answer["history"])


def _put_row(row: Json) -> None:
    put_fields(
        [
            ("id", row["id"]),
            ("namespace", row["namespace"]),
            ("owner", owner(row["owner"])),
            ("phase", row["phase"]),
            ("liveness", row["liveness"]),
            ("reason", row["reason"]),
            ("requests", amounts(row["requests"])),
            ("limits", amounts(row["limits"])),
            ("charged", amounts(row["charged"])),
            ("enforced", row["enforced"]),
            ("runtime class", row["runtime_class"]),
            ("lane", row["lane"]),
            ("GPU device", row["gpu_device"]),
            ("request id", row["request_id"]),
            ("created", row["created_at"]),
            ("last heartbeat", row["last_heartbeat_at"]),
            ("expires", row["expires_at"]),
        ]
    )


def _put_section(heading: str, fields: list[tuple[str, object]]) -> None:
    put(f"\n{heading}")
    put_fields((name.replace("_", " "), value) for name, value in fields)


def _evidence(seen: Json) -> list[tuple[str, object]]:
    fields: list[tuple[str, object]] = [
        ("last heartbeat", _ago(seen["last_heartbeat_age_ms"])),
        ("deadline", _left(seen["deadline_in_ms"])),
        ("owner process", _process(seen["owner_process"])),
    ]
    if "cgroup" not in seen:
        return fields
    matches = seen["cgroup"]["inode_matches"]
    fields += [
        ("monitor", _process(seen["monitor"])),
        ("monitor cgroup", _group(seen["monitor_cgroup"])),
        ("cgroup", _group(seen["cgroup"])),
        ("cgroup inode", None if matches is None else "as made" if matches else "another one"),
        ("stray processes", ", ".join(map(str, seen["stray_pids"]))),
        ("mounts", len(seen["mounts"])),
        ("sandbox folder", seen["sandbox_folder"]),
        ("filestore", seen["store"]),
        ("written", _bytes(seen["store_bytes"])),
        ("exit file", seen["exit_file"]),
        ("run folder", seen["run_folder"]),
    ]
    return fields


def _process(process: Json | None) -> str | None:
    if process is None:
        return None
    return f"{process['pid']}, {'alive' if process['alive'] else 'gone'}"


def _group(group: Json) -> str:
    if not group["exists"]:
        return f"{group['path']}, not there"
    return f"{group['path']}, {counted(group['processes'], 'process', 'processes')}"


def _ago(age_ms: int | None) -> str:
    return "never" if age_ms is None else f"{span(age_ms / 1000)} ago"


def _left(left_ms: int | None) -> str:
    if left_ms is None:
        return "none"
    return f"in {span(left_ms / 1000)}" if left_ms >= 0 else f"{span(-left_ms / 1000)} ago"


def _bytes(count: int | None) -> str | None:
    from ledger.units import format_bytes

    return None if count is None else format_short(count, format_bytes)


def _put_history(history: Json) -> None:
    put("\nHISTORY")
    if history["omitted"]:
        put(f"not shown: {counted(history['omitted'], 'older step')}")
    put_table(
        ("AT", "STEP", "BY", Column("PHASE", status=True), Column("NOTE", "fold", least=24)),
        [
            (
                step["at"],
                step["operation"],
                step["by"],
                step["phase"],
                step["note"] or step["reason"],
            )
            for step in history["steps"]
        ],
    )
    for words in history["damage"]:
        say(f"the journal is damaged, steps may be missing: {words}")


def doctor(where: Where, *, output: str) -> int:
    """Compare ledger and host; return 0 where they agree, 1 for warnings, 3 for a problem."""
    try:
        with where.reach() as client:
            answer = client.request("GET", "/v2/doctor")
    except DaemonUnreachable as error:
        answer = _examine_offline(where, error)
    findings = answer["findings"]
    if output == "json":
        put_json(answer)
    else:
        offline.announce(answer)
        put_findings(findings)
    return max((_EXIT_CODES.get(finding["severity"], 3) for finding in findings), default=0)


def put_findings(findings: list[Json]) -> None:
    """Write each finding with its remedy, or that there is none."""
    if not findings:
        put("ledger and host agree: nothing is stale, expired, orphaned, drifting or leaked")
    for number, finding in enumerate(findings):
        if number:
            put("")
        put_fields(
            [
                (finding["severity"], f"{finding['code']}  {finding['id']}"),
                ("found", finding["found"]),
                ("remedy", visible(finding["remedy"]) or ABSENT),
            ]
        )


def _examine_offline(where: Where, reason: DaemonUnreachable) -> Json:
    from axern.config import load
    from axern.runtime import offline as desk

    if os.geteuid() != 0:
        raise DaemonUnreachable(
            f"{reason.message}; only root may examine the host without one", hint=reason.hint
        )
    return desk.examine(load(where.config)) | {"source": offline.SOURCE}
