"""`axern reservations`: who holds what."""

from __future__ import annotations

from axern.cli.commands.common import (
    LIST_OUTPUT,
    ONLY_NAMESPACE,
    OUTPUT,
    PHASES,
    RESERVATION_ID,
)
from axern.cli.grammar import Command, Group, choice

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
            "show one reservation",
            example="axern reservations inspect 4f1c",
            action="axern.cli.actions.show:inspect_reservation",
            arguments=(RESERVATION_ID,),
            options=(OUTPUT,),
        ),
    ),
)
