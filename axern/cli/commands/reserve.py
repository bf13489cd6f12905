"""`axern reserve`: a lease for work outside of sandboxes, held for a command or for oneself."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.commands.resources import FLAGS
from axern.cli.grammar import OWN_FAILURE, Argument, Command, Group, text

_START = Command(
    "start",
    "hold resources while a command runs",
    example="axern reserve --request-cpu 2 --request-memory 8GiB -- make -j2",
    action="axern.cli.actions.reserve:hold",
    hidden=True,
    usage_exit_code=OWN_FAILURE,
    arguments=(
        Argument(
            "command", "COMMAND…", "program and arguments, after --", rest=True, required=False
        ),
    ),
    options=(
        text("--namespace", "NAME", "who is charged; default where not given", source="namespaces"),
        text(
            "--parent",
            "ID",
            "draw it from this lease, which holds it already",
            source="reservations",
        ),
        text("--name", "TEXT", "what it is for, to find it in lists"),
        text("--ttl", "DURATION", "it ends so long after it was last renewed; 10m where not given"),
        text("--max-lifetime", "DURATION", "no renewal goes beyond this; the node has a default"),
        text("--request-id", "TEXT", "your name for this request: a repeat holds nothing twice"),
        OUTPUT,
        *(flag.option() for flag in FLAGS if flag.side == "requests"),
    ),
)

RESERVE = Group(
    "reserve",
    "hold resources without a sandbox",
    detail="Runs COMMAND here, on the host, and holds what was asked for until it ends; its id is "
    "in AXERN_LEASE there. Where the lease is lost or its time is over, COMMAND is ended. Exits "
    "with the command's own code; 125: failure of our own, 126: the program can't be executed, "
    "127: it was not found, 130: interrupted. Without COMMAND the lease and its token are printed, "
    "and it lasts for its --ttl unless it is renewed; axern reservations release gives it up.",
    example="axern reserve --request-cpu 2 --request-memory 8GiB -- make -j2",
    default=_START,
    commands=(
        Command(
            "renew",
            "let a lease last longer, and show when it ends",
            detail="The token is read from AXERN_LEASE_TOKEN where --token is not given, since "
            "others see the words of a command.",
            example="axern reserve renew --ttl 30m 4f1c",
            action="axern.cli.actions.reserve:renew",
            arguments=(
                Argument(
                    "reservation_id",
                    "ID",
                    "id, or a unique beginning of it",
                    source="reservations",
                ),
            ),
            options=(
                text("--token", "TEXT", "what was printed with the lease; - is standard input"),
                text("--ttl", "DURATION", "it ends so long from now; 10m where not given"),
                OUTPUT,
            ),
        ),
    ),
)
