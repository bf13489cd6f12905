"""The commands that reach into a running sandbox."""

from __future__ import annotations

from axern.cli.commands.common import RUN_ID
from axern.cli.grammar import OWN_FAILURE, Argument, Command, flag, several, text

EXEC = Command(
    "exec",
    "run one more command in a running sandbox",
    example="axern exec -it 4f1c -- sh",
    detail="What is left out is as the run has it. Flags stand before the ID. Exits with the "
    "command's own code; 125: failure of our own, 126: the program can't be executed, 127: it was "
    "not found, 130: interrupted. The command is charged to the sandbox and ends with it.",
    action="axern.cli.actions.execute:start",
    usage_exit_code=OWN_FAILURE,
    arguments=(
        RUN_ID,
        Argument("command", "COMMAND…", "program and arguments, after --", rest=True),
    ),
    options=(
        flag("--interactive -i", "let it read our standard input; else it has none"),
        flag("--tty -t", "give it a terminal, with -i ours"),
        several("--env", "KEY[=VALUE]", "set a variable, or pass yours on; repeatable"),
        several(
            "--env-file",
            "PATH",
            "file of variables, KEY=VALUE a line; repeatable",
            name="env_files",
            source="files",
        ),
        text("--cwd", "PATH", "folder to start in"),
        text("--user -u", "USER[:GROUP]", "who runs it: ids, or names that the root knows"),
    ),
)
CP = Command(
    "cp",
    "copy files into a sandbox or out of it",
    example="axern cp 4f1c:/tmp/result .",
    detail="One of SRC and DST is ID:PATH, with an absolute path. Folders are copied with all that "
    "is in them, into DST if that is a folder. A tar in the sandbox reads and writes there. What "
    "comes out belongs to you; devices and links that lead out of it are left out, which ends "
    "with 1.",
    action="axern.cli.actions.copy:copy",
    arguments=(
        Argument("source", "SRC", "what to copy: a path, or ID:PATH"),
        Argument("target", "DST", "where to: a path, or ID:PATH"),
    ),
)
