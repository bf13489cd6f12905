"""`axern node`: what there is to run on."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.grammar import Command, Group

NODE = Group(
    "node",
    "show this node",
    example="axern node capacity",
    commands=(
        Command(
            "status",
            "show the daemon, its runtimes and what this host can enforce",
            example="axern node status",
            action="axern.cli.actions.show:node_status",
            options=(OUTPUT,),
        ),
        Command(
            "capacity",
            "show what the node has, and who holds how much",
            detail="Amounts are rounded down.",
            example="axern node capacity -o json",
            action="axern.cli.actions.show:node_capacity",
            options=(OUTPUT,),
        ),
    ),
)
