"""`axern template`: what there is to run from."""

from __future__ import annotations

from axern.cli.commands.common import LIST_OUTPUT
from axern.cli.grammar import Command, Group

TEMPLATE = Group(
    "template",
    "show root file systems",
    example="axern template list",
    commands=(
        Command(
            "list",
            "list the templates that a run may name",
            example="axern template list",
            action="axern.cli.actions.show:list_templates",
            options=(LIST_OUTPUT,),
        ),
    ),
)
