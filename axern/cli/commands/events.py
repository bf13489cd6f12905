"""`axern events`: everything that happens on the node, in one order."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT, ONLY_NAMESPACE
from axern.cli.grammar import CHOICE, Command, Option, flag, text

KINDS = (
    "grant",
    "phase",
    "release",
    "reclaim",
    "lease",
    "queue",
    "operator",
    "node",
    "upkeep",
    "refusal",
    "overdraft",
    "adoption",
    "capability",
    "daemon",
)
"""What the daemon tells; a test compares it with the daemon's own list."""

EVENTS = Command(
    "events",
    "show what happens: grants, refusals, releases, changes",
    detail="Everything of the last hour, or with --follow whatever comes. Each has a number, which "
    "never changes: who goes on with --since and the last one is told each event once, whatever "
    "has become of the daemon meanwhile. What others do has no names and no details, but for "
    "root. Heartbeats and the like are shown where --kind names them.",
    example="axern events -f --kind refusal --kind grant",
    action="axern.cli.actions.events:events",
    options=(
        flag("--follow -f", "go on with what happens, until interrupted"),
        text("--since", "NUMBER|TIME", "what came behind that event; a duration ago, or a time"),
        ONLY_NAMESPACE,
        Option(
            "--kind",
            f"only this: {', '.join(KINDS)}; may be repeated",
            kind=CHOICE,
            choices=KINDS,
            metavar="KIND",
            repeats=True,
        ),
        LIST_OUTPUT,
    ),
)
