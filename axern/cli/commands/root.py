"""The commands that belong to no group."""

from __future__ import annotations

from axern.cli.commands.common import OUTPUT
from axern.cli.grammar import Argument, Command

WHOAMI = Command(
    "whoami",
    "show what the daemon lets you do",
    detail="Your rights are read, reserve, launch and admin, by user, groups and axern.toml; "
    "what is yours you may always end.",
    example="axern whoami",
    action="axern.cli.actions.whoami:whoami",
    options=(OUTPUT,),
)
VERSION = Command(
    "version",
    "show the version",
    example="axern version",
    action="axern.cli.actions.version:version",
    options=(OUTPUT,),
)
COMPLETION = Command(
    "completion",
    "write the script by which a shell completes commands",
    detail="For the shell you are in: `source <(axern completion bash)`, the same for zsh behind "
    "`compinit`, or `axern completion fish | source`. For all: write it to "
    "/etc/bash_completion.d/axern, to _axern in a folder of zsh's fpath, or to "
    "/etc/fish/completions/axern.fish.",
    example="axern completion bash",
    action="axern.cli.actions.complete:script",
    arguments=(Argument("shell", "SHELL", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
)
COMPLETE = Command(
    "__complete",
    "say what may stand for the last word",
    example="axern __complete -- run get 4f",
    action="axern.cli.actions.complete:words",
    hidden=True,
    arguments=(Argument("words", "WORD…", "the words typed so far", rest=True, required=False),),
)
