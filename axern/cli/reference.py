"""docs/cli.md, made from the table of commands: `python -m axern.cli.reference FILE`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from axern.cli import commands
from axern.cli.describe import (
    EXIT_CODES,
    WORKLOAD_EXIT_CODES,
    Entry,
    default_of,
    entries,
    exit_codes,
    own,
    sentence,
    usages,
    value_of,
)
from axern.cli.grammar import Argument, Option

_HEAD = """# Command line

Made from the table of commands by `make docs`; changes belong into `axern/cli/commands`. The same
is in the manual pages and behind `--help`.

Data goes to standard output, talk to standard error. With `-o json` an error is JSON on standard
output as well.
"""


def reference() -> str:
    """Return the text of docs/cli.md."""
    (_, _), *rest = entries()
    return (
        "\n".join(
            [
                _HEAD,
                "## Options of every command\n\nThey stand in front of the command's first word.\n",
                _options(commands.GLOBALS),
                "## Exit codes\n",
                _codes(EXIT_CODES),
                "Of a command that runs a workload:\n",
                _codes(WORKLOAD_EXIT_CODES),
                *(_section(entry) for entry in rest),
            ]
        ).rstrip("\n")
        + "\n"
    )


def _section(entry: Entry) -> str:
    words, row = entry
    parts = [f"{'#' * len(words)} {' '.join(words)}\n", f"{sentence(row.summary)}\n"]
    if row.detail:
        parts.append(f"{row.detail}\n")
    usage = "\n".join(usages(words, row))
    parts.append(f"```text\n{usage}\n```\n")
    command = own(row)
    if command is not None and (command.arguments or command.options):
        parts.append(_options((*command.arguments, *command.options)))
    if exit_codes(row) is WORKLOAD_EXIT_CODES:
        parts.append("Exit codes: [those of a workload](#exit-codes).\n")
    parts.append(f"Example: `{row.example}`\n")
    return "\n".join(parts)


def _options(rows: Iterable[Option | Argument]) -> str:
    lines = ["| option | default | what |", "| --- | --- | --- |"]
    lines += [f"| {_spelling(row)} | {_default(row)} | {_cell(row.help)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _spelling(row: Option | Argument) -> str:
    if isinstance(row, Argument):
        return f"`{row.metavar}`"
    value = value_of(row)
    names = ", ".join(f"`{flag}`" for flag in row.flags)
    return f"{names} `{_cell(value)}`" if value else names


def _default(row: Option | Argument) -> str:
    default = None if isinstance(row, Argument) else default_of(row)
    return "" if default is None else f"`{default}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _codes(codes: Iterable[tuple[str, str]]) -> str:
    lines = [
        "| code | meaning |",
        "| ---: | --- |",
        *(f"| {code} | {what} |" for code, what in codes),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(reference())
