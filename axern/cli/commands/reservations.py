"""`axern reservations`: who holds what."""

from __future__ import annotations

from axern.cli.commands.common import (
    LIST_OUTPUT,
    ONLY_NAMESPACE,
    OUTPUT,
    PHASES,
    RESERVATION_ID,
)
from axern.cli.grammar import Argument, Command, Group, choice, flag, text

_LIST = Command(
    "list",
    "list reservations",
    example="axern reservations list --format ndjson",
    action="axern.cli.actions.show:list_reservations",
    options=(
        ONLY_NAMESPACE,
        choice("--phase", PHASES, f"only those: {', '.join(PHASES)}", metavar="PHASE"),
        LIST_OUTPUT,
    ),
)
RESERVATIONS = Group(
    "reservations",
    "show who holds what",
    detail="Without a command: list. When the daemon is down, the ledger's files are read instead, "
    "and the output says so.",
    example="axern reservations",
    default=_LIST,
    commands=(
        _LIST,
        Command(
            "inspect",
            "show one from all sides: owner, phase, evidence, history",
            detail="What was released is shown as long as the journal's archive has it. Without a "
            "daemon, only root sees the evidence.",
            example="axern reservations inspect 4f1c",
            action="axern.cli.actions.closely:inspect",
            arguments=(RESERVATION_ID,),
            options=(OUTPUT,),
        ),
        Command(
            "release",
            "give up what does not run, or stop it first",
            detail="What runs is refused without --force. Waits until nothing of it is left and "
            "says what proved that; releasing again tells the same. Without a daemon, root "
            "releases under the ledger's lock, by the same rules.",
            example="axern reservations release --force --reason 'host goes down' 4f1c",
            action="axern.cli.actions.release:release",
            arguments=(
                Argument(
                    "reservation_ids",
                    "ID…",
                    "ids, or unique beginnings of them",
                    repeats=True,
                    source="reservations",
                ),
            ),
            options=(
                flag("--force", "stop what runs: TERM, then KILL; needs --reason"),
                text("--reason", "TEXT", "why; kept in the journal and told to its owner"),
                text("--grace", "DURATION", "time from TERM to KILL; the node has a default"),
                OUTPUT,
            ),
        ),
        Command(
            "doctor",
            "list what is stale, expired, orphaned, drifting or leaked",
            detail="Compares the ledger with the host, in both directions, and names the remedy "
            "for each finding. Exits with 0 where they agree, 1 for warnings, 3 for a problem.",
            example="axern reservations doctor",
            action="axern.cli.actions.closely:doctor",
            options=(OUTPUT,),
        ),
    ),
)
