"""`axern queue`: who waits for capacity, in which order, and what for."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT, OUTPUT
from axern.cli.grammar import Argument, Command, Group

_TICKET = Argument("ticket_id", "ID", "id of the ticket, or a unique beginning of it")

QUEUE = Group(
    "queue",
    "see who waits for capacity, and take somebody out of the queue",
    detail="What waits is granted in the commit that makes room for it: by priority and age, then "
    "the namespace that holds least, then who came first.",
    example="axern queue list",
    commands=(
        Command(
            "list",
            "list who waits, in order",
            example="axern queue list",
            action="axern.cli.actions.queueing:list_all",
            options=(LIST_OUTPUT,),
        ),
        Command(
            "inspect",
            "show one who waits, and what for",
            example="axern queue inspect 4f1c",
            action="axern.cli.actions.queueing:inspect",
            arguments=(_TICKET,),
            options=(OUTPUT,),
        ),
        Command(
            "cancel",
            "take one out of the queue",
            example="axern queue cancel 4f1c",
            action="axern.cli.actions.queueing:cancel",
            arguments=(_TICKET,),
            options=(OUTPUT,),
        ),
        Command(
            "pause",
            "grant nothing that waits; it grows no older",
            example="axern queue pause",
            action="axern.cli.actions.queueing:pause",
            options=(OUTPUT,),
        ),
        Command(
            "resume",
            "let the queue go on",
            example="axern queue resume",
            action="axern.cli.actions.queueing:resume",
            options=(OUTPUT,),
        ),
    ),
)
