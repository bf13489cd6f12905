"""The fast parser: it understands a regular command line, and nothing else.

What it can't read, be it help, a typing error or an unusual spelling, is None, and typer reads it
and answers. So it decides nothing that a user could notice but the time:
`tests/unit/cli/test_parsers.py` holds the two together.
"""

from __future__ import annotations

from axern.cli import commands
from axern.cli.grammar import CHOICE, FLAG, INTEGER, Command, Group, Option

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


SIMILAR = 0.6
"""How alike a word and a subcommand's name must be to count as a typing error."""
LONGEST_INTEGER = 15
"""Digits of a number; each of them is one that JSON keeps exact."""


class Irregular(Exception):
    """Not for this parser."""


class Call:
    """A command that was asked for, the values of its parameters, and the global options."""

    __slots__ = ("command", "options", "values")

    def __init__(self, command: Command, values: dict[str, Any], options: dict[str, Any]) -> None:
        self.command = command
        self.values = values
        self.options = options


def parse(words: list[str]) -> Call | None:
    """Return the call that *words*, those behind `axern`, ask for, or None."""
    try:
        options, rest = _options(commands.GLOBALS, words)
        row = commands.top(rest[0]) if rest else None
        rest = rest[1:]
        while isinstance(row, Group):
            row, rest = _below(row, rest)
        return None if row is None else Call(row, _values(row, rest), options)
    except Irregular:
        return None


def _below(group: Group, words: list[str]) -> tuple[Command | Group | None, list[str]]:
    """Return what *words* name in *group*, and the words behind it."""
    named = group.find(words[0]) if words else None
    if named is not None:
        return named, words[1:]
    default = group.default
    if default is None or not (words or not default.arguments):
        raise Irregular
    if words and not words[0].startswith("-") and not _is_no_command(group, default, words[0]):
        raise Irregular
    return default, words


def _is_no_command(group: Group, default: Command, word: str) -> bool:
    return bool(default.arguments) and not any(
        may_be_meant(word, command.name) for command in group.commands
    )


def may_be_meant(word: str, name: str) -> bool:
    """Tell whether *word* may be `SIMILAR` to *name*; the letters alone are compared.

    The first one must be the same: `true` is a program, and no slip of `prune`.
    """
    if word[:1] != name[:1]:
        return False
    common = sum(min(word.count(letter), name.count(letter)) for letter in set(word))
    return 2 * common >= SIMILAR * (len(word) + len(name))


def _values(command: Command, words: list[str]) -> dict[str, Any]:
    values, rest = _options(command.options, words, stops=command.takes_rest)
    for argument in command.arguments:
        if argument.repeats:
            values[argument.name], rest = tuple(rest), []
        else:
            values[argument.name] = rest.pop(0) if rest else None
        if argument.required and values[argument.name] in {None, ()}:
            raise Irregular
        if argument.choices and values[argument.name] not in argument.choices:
            raise Irregular
    if rest:
        raise Irregular
    return values


def _options(
    options: tuple[Option, ...], words: list[str], *, stops: bool = True
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of *options*, and the words that are no flags.

    With *stops* the first such word ends the flags, as `--` always does.
    """
    by_flag = {flag: option for option in options for flag in option.flags}
    values = {option.name: option.default for option in options}
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word == "--":
            return values, rest + words[index:]
        if word == "-" or not word.startswith("-"):
            if stops:
                return values, words[index - 1 :]
            rest.append(word)
            continue
        option, value = _flag(by_flag, word)
        if option.kind == FLAG:
            if value is not None:
                if word.startswith("--") or value.startswith("-"):
                    raise Irregular
                words = [*words[:index], f"-{value}", *words[index:]]  # -it is -i -t
            values[option.name] = True
            continue
        if value is None:
            if index == len(words):
                raise Irregular
            value = words[index]
            index += 1
        _set(values, option, value)
    return values, rest


def _flag(by_flag: dict[str, Option], word: str) -> tuple[Option, str | None]:
    """Return the option that *word* begins with, and the value that is stuck to it."""
    if word in by_flag:
        return by_flag[word], None
    if word.startswith("--"):
        word, equals, value = word.partition("=")
        stuck = value if equals else None
    else:
        word, stuck = word[:2], word[2:]
    if word not in by_flag:
        raise Irregular
    return by_flag[word], stuck


def _set(values: dict[str, Any], option: Option, value: str) -> None:
    """Put *value* where *option* has it; one that is wrong is told by typer, so it ends here."""
    if not value or (option.kind == CHOICE and value not in option.choices):
        raise Irregular
    if option.kind == INTEGER:
        if not value.isascii() or not value.isdecimal() or len(value) > LONGEST_INTEGER:
            raise Irregular
        number = int(value)
        if option.minimum is not None and number < option.minimum:
            raise Irregular
        values[option.name] = number
    elif option.repeats:
        values[option.name] = (*values[option.name], value)
    else:
        values[option.name] = value
