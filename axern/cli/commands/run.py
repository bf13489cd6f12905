"""`axern run`: a command of its own, and the group of commands about runs.

The first word decides: it is one of the subcommands, or else the words are flags and the workload's
command, which begins after `--` or with the first word that is no flag.
"""

from __future__ import annotations

from axern.cli.commands.common import (
    ENDED,
    LIST_OUTPUT,
    ONLY_NAMESPACE,
    OUTPUT,
    RUN_ID,
    STATUSES,
)
from axern.cli.commands.resources import RESOURCE_OPTIONS
from axern.cli.grammar import (
    CHOICE,
    OWN_FAILURE,
    Argument,
    Command,
    Group,
    Option,
    choice,
    flag,
    integer,
    several,
    text,
)

ASKED = (
    text("--file -f", "PATH", "run what this file says; - is standard input", source="files"),
    text(
        "--template",
        "NAME",
        "registered root file system; the node has a default",
        source="templates",
    ),
    text("--rootfs", "PATH", "folder to use as root; administrators only", source="folders"),
    flag("--rootfs-readonly", "give the run no writable root"),
    choice("--runtime-class", ("runsc", "runc"), "what isolates it; the node has a default"),
    several("--env", "KEY[=VALUE]", "set a variable, or pass yours on; repeatable"),
    several(
        "--env-file",
        "PATH",
        "file of variables, KEY=VALUE a line; - is standard input; repeatable",
        name="env_files",
        source="files",
    ),
    text("--cwd", "PATH", "folder to start in; / where not given"),
    text("--user -u", "USER[:GROUP]", "who runs it: ids, or names that the root knows"),
    text("--namespace", "NAME", "who is charged; default where not given", source="namespaces"),
    several("--label", "KEY=VALUE", "mark it, to find it again; repeatable", name="labels"),
    several("--require", "KEY[=VALUE]", "run only where the node has it; repeatable"),
    choice(
        "--network",
        ("none", "bridge", "host"),
        "none, a private one with a way out, or the host's own; none where not given",
    ),
    several("--publish -p", "HOST:SANDBOX[/udp]", "let a port of the host lead to it; repeatable"),
    flag("--oom-kill-one", "out of memory, let the kernel kill one process of it and not all"),
    text("--timeout", "DURATION", "end it when it has run for this time, e.g. 1h30m"),
    text("--ttl", "DURATION", "end it at this time from now, waiting and starting included"),
    text("--wait-for-capacity", "DURATION", "wait in the queue for so long if there is no room"),
    integer("--priority", "NUMBER", "how urgently it waits, 0 to 9; 5 where not given"),
    text("--request-id", "TEXT", "your name for this request: a repeat runs nothing twice"),
    OUTPUT,
    *RESOURCE_OPTIONS,
)
"""What describes a run, whether it is started or only asked about."""

_START = Command(
    "start",
    "run a command in a sandbox",
    example="axern run --request-memory 512MiB -- sh -c 'echo hello'",
    action="axern.cli.actions.run:start",
    hidden=True,
    usage_exit_code=OWN_FAILURE,
    arguments=(
        Argument(
            "command", "COMMAND…", "program and arguments, after --", rest=True, required=False
        ),
    ),
    options=(
        flag("--interactive -i", "let it read our standard input; else it has none"),
        flag("--detach -d", "print the id and leave the run to the daemon"),
        flag("--dry-run", "start nothing: say whether it fits, and if not, why"),
        *ASKED,
    ),
)

_LABELS = several("--label", "KEY[=VALUE]", "only those with this label; repeatable", name="labels")


def _one_of_several(statuses: tuple[str, ...]) -> Option:
    return Option(
        "--status",
        f"only those; repeatable: {', '.join(statuses)}",
        kind=CHOICE,
        metavar="STATUS",
        choices=statuses,
        repeats=True,
        name="statuses",
    )


RUN = Group(
    "run",
    "run a command in a sandbox, or look after runs",
    detail="Exits with the command's own code; 124: its --timeout or --ttl is over, 125: failure "
    "of our own (with -o json it is on standard output as well), 126: the program can't be "
    "executed, 127: it was not found, 130: interrupted.",
    example="axern run --request-memory 512MiB -- sh -c 'echo hello'",
    default=_START,
    commands=(
        Command(
            "get",
            "show a run",
            example="axern run get 4f1c",
            action="axern.cli.actions.run:get",
            arguments=(RUN_ID,),
            options=(OUTPUT,),
        ),
        Command(
            "list",
            "list runs",
            example="axern run list --status running",
            detail="Newest first. A table shows 100 and says when there are more; json and ndjson "
            "have all of them. For --since and --before: 2h is two hours ago, "
            "2026-01-31T12:00:00Z is that moment.",
            action="axern.cli.actions.runs:list_runs",
            options=(
                ONLY_NAMESPACE,
                _one_of_several(STATUSES),
                _LABELS,
                text("--owner", "UID", "only those of this user"),
                flag("--mine", "only your own"),
                text("--since", "TIME", "only those created at this time or later"),
                text("--before", "TIME", "only those created before this time"),
                integer("--limit -n", "NUMBER", "show at most so many", minimum=1),
                text("--cursor", "TEXT", "go on where an earlier list ended"),
                LIST_OUTPUT,
            ),
        ),
        Command(
            "prune",
            "forget runs that are over",
            example="axern run prune --older-than 1d --status succeeded",
            detail="Removes spec, exit record and output of your own runs that have ended; the "
            "node does so by itself for old ones and where they are too many or too large.",
            action="axern.cli.actions.runs:prune",
            options=(
                text("--older-than", "DURATION", "only those that ended at least so long ago"),
                ONLY_NAMESPACE,
                _one_of_several(ENDED),
                _LABELS,
                flag("--all", "those of all users; administrators only", name="all_users"),
                flag("--dry-run", "print the ids of what would be removed, and remove nothing"),
                OUTPUT,
            ),
        ),
        Command(
            "cancel",
            "end a run: TERM, then KILL",
            example="axern run cancel --grace 5s 4f1c",
            action="axern.cli.actions.run:cancel",
            arguments=(RUN_ID,),
            options=(
                text("--grace", "DURATION", "time from TERM to KILL; the node has a default"),
                OUTPUT,
            ),
        ),
        Command(
            "revoke",
            "end what was added to a run by axern exec",
            example="axern run revoke 4f1c 09ab12cd34ef5678",
            detail="Kills one command, or all that were added; axern run get shows them.",
            action="axern.cli.actions.execute:revoke",
            arguments=(
                RUN_ID,
                Argument("exec_id", "EXEC", "which one; all where not given", required=False),
            ),
        ),
        Command(
            "logs",
            "write what a run has written",
            example="axern run logs -f 4f1c",
            action="axern.cli.actions.run:logs",
            arguments=(RUN_ID,),
            options=(
                flag("--follow -f", "go on until the run ends"),
                text("--since", "TIME", "begin at this time, or so long ago, e.g. 10m"),
                integer("--tail", "LINES", "begin with the last lines, so many of them"),
                flag("--timestamps -t", "begin each line with the time at which it was written"),
                integer("--from", "OFFSET", "begin at this offset of the log", name="offset"),
            ),
        ),
    ),
)
