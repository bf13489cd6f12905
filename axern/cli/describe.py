"""The table of commands in words: what the reference and the manual pages have in common."""

from __future__ import annotations

from collections.abc import Iterator

from axern.cli import commands
from axern.cli.grammar import OWN_FAILURE, Command, Group, Option

EXIT_CODES = (
    ("0", "done"),
    ("1", "anything that has no code of its own, a busy daemon for example"),
    ("2", "the command line, or a value in it, is wrong"),
    ("3", "the node refuses: it is full, too small, or lacks what is asked for"),
    ("4", "the namespace refuses: a quota or a claim"),
    ("5", "not found, in the wrong phase, in conflict, or not permitted"),
    ("6", "no daemon answers"),
    ("7", "the ledger is damaged or newer than this program"),
    ("130", "interrupted (SIGINT)"),
    ("141", "nobody reads the output any more"),
)
WORKLOAD_EXIT_CODES = (
    ("N", "the workload's own code; 128 and the signal's number where one ended it"),
    ("124", "its --timeout or --ttl is over"),
    (str(OWN_FAILURE), "a failure of our own; its code is in the message, or in the JSON error"),
    ("126", "the program was found, but can't be executed"),
    ("127", "the program was not found"),
    ("130", "interrupted (SIGINT)"),
)

Entry = tuple[tuple[str, ...], Command | Group]
"""The words that lead to a row, `axern` first, and the row."""


def entries(row: Command | Group | None = None, words: tuple[str, ...] = ("axern",)) -> list[Entry]:
    """Return *row*, by default the whole table, and all that is visible below it."""
    row = row or commands.tree()
    found: list[Entry] = [(words, row)]
    for child in row.commands if isinstance(row, Group) else ():
        if isinstance(child, Group) or not child.hidden:
            found += entries(child, (*words, child.name))
    return found


def acts(row: Command | Group) -> Command | None:
    """Return what runs when *row* is called with none of its commands: itself, or the default."""
    return row.default if isinstance(row, Group) else row


def own(row: Command | Group) -> Command | None:
    """Return the command whose flags belong to *row*, not to one that is shown below it."""
    command = acts(row)
    shown = row.commands if isinstance(row, Group) else ()
    return None if command in shown else command


def usages(words: tuple[str, ...], row: Command | Group) -> Iterator[str]:
    """Yield the ways to call *row*."""
    path = " ".join(words)
    command = acts(row)
    if command is not None:
        parts = ["[OPTIONS]"] if command.options else []
        for argument in command.arguments:
            shown = f"-- {argument.metavar}" if argument.rest else argument.metavar
            parts.append(shown if argument.required else f"[{shown}]")
        yield " ".join((path, *parts))
    if isinstance(row, Group):
        yield f"{path} COMMAND …"


def exit_codes(row: Command | Group) -> tuple[tuple[str, str], ...]:
    """Return what *row* may end with, and what that means."""
    command = acts(row)
    runs_workload = command is not None and command.usage_exit_code == OWN_FAILURE
    return WORKLOAD_EXIT_CODES if runs_workload else EXIT_CODES


def value_of(option: Option) -> str | None:
    """Return what stands for the value of *option*: its metavar or its choices."""
    return option.metavar or "|".join(option.choices) or None


def default_of(option: Option) -> str | None:
    """Return the default of *option* as it would be typed; None where there is none."""
    return None if option.default in {None, (), False} else str(option.default)


def sentence(text: str) -> str:
    """Return *text* as one that begins with a capital and ends with a full stop."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")
