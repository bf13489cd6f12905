"""The commands that belong to no group."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.grammar import Command

VERSION = Command(
    "version",
    "show the version",
    example="axern version",
    action="axern.cli.actions.version:version",
    options=(OUTPUT,),
)
