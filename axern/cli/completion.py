"""What may stand at the end of a command line, by the table of commands alone."""

from __future__ import annotations

from axern.cli import commands
from axern.cli.grammar import FLAG, Argument, Command, Group, Option

Candidate = tuple[str, str]
"""A word, and what it means."""

_HELP = Option("--help", "show this message and exit", kind=FLAG, default=False)
_VERSION = Option("--version", "show the version", kind=FLAG, default=False)


class Place:
    """The end of a command line: what is known to fit there.

    `candidates` are known words. `source` names where others are to be found; `prefix` is what the
    last word begins with in front of such a value, as `--config=`. `options` are the global ones.
    """

    __slots__ = ("candidates", "options", "prefix", "source")

    def __init__(self, candidates: list[Candidate], source: str | None = None) -> None:
        self.candidates = candidates
        self.source = source
        self.prefix = ""
        self.options: dict[str, str] = {}


def place(words: list[str]) -> Place:
    """Return what fits at the last of *words*, those behind `axern`; it may be empty."""
    *before, last = words or [""]
    options: dict[str, str] = {}
    row: Command | Group | None = commands.tree()
    waiting: Option | None = None
    taken: list[str] = []
    only_words = False
    for word in before:
        if waiting is not None:
            _note(options, waiting, word)
            waiting = None
        elif only_words or (taken and _takes_rest(row)):
            taken.append(word)
        elif word == "--":
            only_words, row = True, _acting(row)
        elif word.startswith("-") and word != "-":
            row = row if _is_global(row, taken) else _acting(row)
            option, equals, value = _option(_options(row), word)
            if option is not None and option.kind != FLAG:
                waiting = None if equals else option
                if equals:
                    _note(options, option, value)
        elif isinstance(row, Group) and row.find(word) is not None:
            row = row.find(word)
        else:
            row = _acting(row)
            taken.append(word)
    only_words = only_words or bool(taken and _takes_rest(row))
    found = _at(row, waiting, taken, last, only_words=only_words)
    found.options = options
    return found


def _at(
    row: Command | Group | None,
    waiting: Option | None,
    taken: list[str],
    last: str,
    *,
    only_words: bool,
) -> Place:
    if waiting is not None:
        return _values(waiting, last, "")
    if not only_words and last.startswith("-"):
        option, equals, _ = _option(_options(row), last)
        if option is not None and equals and option.kind != FLAG:
            return _values(option, last, last[: last.index(equals) + 1])
        return Place(_flags(row, last))
    if isinstance(row, Group) and not only_words:
        visible = [child for child in row.commands if not getattr(child, "hidden", False)]
        return Place([(c.name, c.summary) for c in visible if c.name.startswith(last)])
    argument = _argument(_acting(row), len(taken))
    if argument is None:
        return Place([])
    return Place([(c, "") for c in argument.choices if c.startswith(last)], argument.source)


def _values(option: Option, last: str, prefix: str) -> Place:
    known = [(f"{prefix}{value}", "") for value in option.choices]
    found = Place([pair for pair in known if pair[0].startswith(last)], option.source)
    found.prefix = prefix
    return found


def _flags(row: Command | Group | None, last: str) -> list[Candidate]:
    return [
        (flag, option.help)
        for option in _options(row)
        for flag in option.flags
        if flag.startswith(last)
    ]


def _options(row: Command | Group | None) -> tuple[Option, ...]:
    """Return the flags that fit where *row* was named last."""
    if isinstance(row, Group) and row.default is None:
        return (*commands.GLOBALS, _VERSION, _HELP) if row.name == "axern" else (_HELP,)
    command = _acting(row)
    return (*command.options, _HELP) if command is not None else (_HELP,)


def _is_global(row: Command | Group | None, taken: list[str]) -> bool:
    return isinstance(row, Group) and row.default is None and not taken


def _acting(row: Command | Group | None) -> Command | None:
    """Return what is meant from here on: the command, or the default of its group."""
    return row.default if isinstance(row, Group) else row


def _option(options: tuple[Option, ...], word: str) -> tuple[Option | None, str, str]:
    """Return the option that *word* begins with, then `=` and the value if it has them."""
    name, equals, value = word.partition("=")
    for option in options:
        if name in option.flags:
            return option, equals, value
    return None, "", ""


def _note(options: dict[str, str], option: Option, value: str) -> None:
    if option in commands.GLOBALS:
        options[option.name] = value


def _takes_rest(row: Command | Group | None) -> bool:
    command = _acting(row)
    return command is not None and command.takes_rest


def _argument(command: Command | None, count: int) -> Argument | None:
    """Return the argument that the word behind *count* others is for."""
    if command is None or not command.arguments:
        return None
    index = min(count, len(command.arguments) - 1)
    argument = command.arguments[index]
    return argument if index == count or argument.repeats else None
