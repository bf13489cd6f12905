"""The one table of commands: parsers, help, completion, man pages and docs/cli.md are made from it.

To add a command:

1. Write what it does as a function in `axern/cli/actions/`: `def get(where, *, run_id, output)`,
   with one keyword for each option and argument of the row; it returns an exit code or None.
2. Add its row, a `Command`, to the module of its group here. For a new group write a module with a
   `Group`, and name it in `TOP` below; a command that is no group may stand in `root`.
3. `make docs` rewrites docs/cli.md.
4. `pytest tests/tidy tests/unit/cli`: row and function must agree, the help must not be cut.

Rows that look alike share the options in `axern.cli.commands.common`. A module here imports
nothing but `grammar`, `common` and what is as cheap: each start loads it.
"""

from __future__ import annotations

from axern.cli.grammar import Command, Group, text

TOP = {
    "run": "run:RUN",
    "exec": "execs:EXEC",
    "cp": "execs:CP",
    "reservations": "reservations:RESERVATIONS",
    "namespace": "namespaces:NAMESPACE",
    "quota": "namespaces:QUOTA",
    "claim": "namespaces:CLAIM",
    "queue": "queue:QUEUE",
    "node": "node:NODE",
    "template": "template:TEMPLATE",
    "ledger": "ledger:LEDGER",
    "reserve": "reserve:RESERVE",
    "explain": "explain:EXPLAIN",
    "events": "events:EVENTS",
    "whoami": "root:WHOAMI",
    "version": "root:VERSION",
    "completion": "root:COMPLETION",
    "__complete": "root:COMPLETE",
}
"""The first word behind `axern`, and the module here and the name in it that hold its row."""

GLOBALS = (
    text(
        "--config",
        "PATH",
        "configuration file; /etc/axern/axern.toml where not given",
        source="files",
    ),
    text("--socket", "PATH", "the daemon's socket, if not as configured", source="files"),
)
"""Options in front of the first word; they become the fields of `Where`."""


def top(word: str) -> Command | Group | None:
    """Return what the first word behind `axern` names, loading only its module."""
    if word not in TOP:
        return None
    module, _, name = TOP[word].partition(":")
    found: Command | Group = getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)
    return found


def tree() -> Group:
    """Return the whole table."""
    return Group(
        "axern",
        "admit, launch and bury sandboxes on this host",
        detail="Data goes to standard output, talk to standard error. With -o json an error is "
        "JSON on standard output as well. Exit codes: 0 done, 2 usage, 3 the node refuses, 4 the "
        "namespace refuses, 5 not found or conflict, 6 no daemon, 7 ledger damaged, "
        "1 anything else.",
        example="axern run -- echo hello",
        commands=tuple(row for word in TOP if (row := top(word)) is not None),
    )
