"""What `axern ledger check` does: the files by themselves, then the files against the host."""

from __future__ import annotations

import os
import time

from axern.cli.actions.closely import put_findings
from axern.cli.output import counted, put, put_json, say
from axern.errors import DaemonUnreachable
from ledger.errors import AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.check import Report

    Json = dict[str, Any]

_EXIT_CODES = {"warning": 1, "problem": 3, "damage": 7}
_SECOND_LOOK_S = 1.0
_UNTRUSTED: Json = {"findings": [], "source": None, "message": "nobody can tell what it holds"}


def check(where: Where, *, output: str) -> int:
    """Print every finding; return 0 in order, 1 for warnings, 3 for a problem, 7 for damage."""
    report = _files(where.ledger_dir)
    host = _host(where) if report.present else _UNTRUSTED
    present = report.present
    findings = [_view(finding) for finding in report.findings] + host["findings"]
    answer: Json = {
        "generation": present.contents.generation if present else None,
        "reservations": len(present.contents.tables["reservations"]) if present else None,
        "findings": findings,
        "host": host["source"],
        "host_message": host["message"],
    }
    if output == "json":
        put_json(answer)
    else:
        _put(answer)
    return max((_EXIT_CODES.get(finding["severity"], 3) for finding in findings), default=0)


def _files(ledger_dir: str) -> Report:
    """Look at the files, twice where something is found: a daemon may have been writing."""
    from ledger.check import examine

    report = examine(ledger_dir)
    if report.findings:
        time.sleep(_SECOND_LOOK_S)
        seen = {(finding.code, finding.id) for finding in report.findings}
        report = examine(ledger_dir)
        report.findings = [each for each in report.findings if (each.code, each.id) in seen]
    return report


def _host(where: Where) -> Json:
    """Return what the daemon's doctor finds, or root's without one, or why nobody looked."""
    nobody: Json = {"findings": [], "source": None}
    try:
        with where.reach() as client:
            return client.request("GET", "/v2/doctor") | {"message": None}
    except DaemonUnreachable as error:
        if os.geteuid() != 0:
            return nobody | {"message": f"{error.message}; only root may look without one"}
    except AxernError as error:
        return nobody | {"message": error.message}
    from axern.cli.actions.offline import SOURCE
    from axern.config import load
    from axern.runtime import offline

    try:
        return offline.examine(load(where.config)) | {"source": SOURCE, "message": None}
    except AxernError as error:
        return nobody | {"message": error.message}


def _view(finding: object) -> Json:
    from dataclasses import asdict

    return asdict(finding)  # type: ignore[call-overload,no-any-return]  # a finding is a dataclass


def _put(answer: Json) -> None:
    if answer["findings"]:
        put_findings(answer["findings"])
    elif answer["generation"] is not None:
        entries = counted(answer["reservations"], "reservation")
        host = ", and the host agrees with it" if answer["host"] else ""
        put(f"the ledger is in order: generation {answer['generation']}, {entries}{host}")
    if answer["host_message"]:
        say(f"not compared with the host: {answer['host_message']}")
