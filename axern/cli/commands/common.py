"""Options and arguments that several commands share."""

from __future__ import annotations

from axern.cli.grammar import Argument, choice, text

OUTPUT = choice(
    "--output -o",
    ("table", "json"),
    "print for people or for programs; with json errors are JSON too",
    default="table",
)
LIST_OUTPUT = choice(
    "--output -o --format",
    ("table", "text", "json", "ndjson"),
    "text is another word for table; ndjson is one a line",
    default="table",
)
ONLY_NAMESPACE = text("--namespace", "NAME", "only those of this namespace", source="namespaces")

PHASES = ("reserved", "starting", "running", "stopping", "retiring")
ENDED = ("succeeded", "failed", "cancelled")
STATUSES = (*PHASES, *ENDED)
"""A run has the phase of its reservation until it has ended."""

RUN_ID = Argument("run_id", "ID", "id of the run, or a unique beginning of it", source="runs")
RESERVATION_ID = Argument(
    "reservation_id", "ID", "id, or a unique beginning of it", source="reservations"
)
