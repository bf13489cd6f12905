"""What a command line may consist of: the values of which the table of commands is made.

Plain classes and no imports: every command loads this, and `dataclasses` alone costs half a start.
"""

from __future__ import annotations

TEXT = "text"
FLAG = "flag"
CHOICE = "choice"
INTEGER = "integer"

USAGE_EXIT_CODE = 2
"""What a command ends with whose words can't be read."""
OWN_FAILURE = 125
"""The same, and any other failure of ours, where all other codes are a workload's."""


class Option:
    """One flag of a command; `name` is the parameter of the action that gets its value.

    `flags` are its spellings, long ones first. The value is a bool for a flag, an int for an
    integer, a tuple of texts for one that `repeats`, else a text, or `default` where it is absent.
    `source` names where completion finds values: see `axern.cli.actions.complete`.
    """

    __slots__ = (
        "choices",
        "default",
        "flags",
        "help",
        "kind",
        "metavar",
        "minimum",
        "name",
        "repeats",
        "source",
    )

    def __init__(
        self,
        flags: str,
        help: str,  # noqa: A002 - the word that everybody knows
        *,
        kind: str = TEXT,
        metavar: str | None = None,
        default: str | int | bool | None = None,
        choices: tuple[str, ...] = (),
        minimum: int | None = None,
        repeats: bool = False,
        name: str = "",
        source: str | None = None,
    ) -> None:
        self.flags = tuple(flags.split())
        self.help = help
        self.kind = kind
        self.metavar = metavar
        self.default: object = () if repeats else default
        self.choices = choices
        self.minimum = minimum
        self.repeats = repeats
        self.name = name or self.flags[0].removeprefix("--").replace("-", "_")
        self.source = source


def flag(flags: str, help: str, *, name: str = "") -> Option:  # noqa: A002 - as above
    """Return an option without a value: absent is False."""
    return Option(flags, help, kind=FLAG, default=False, name=name)


def text(
    flags: str,
    metavar: str,
    help: str,  # noqa: A002 - as above
    *,
    default: str | None = None,
    name: str = "",
    source: str | None = None,
) -> Option:
    """Return an option whose value is any text; the action reads quantities and durations."""
    return Option(flags, help, metavar=metavar, default=default, name=name, source=source)


def several(
    flags: str,
    metavar: str,
    help: str,  # noqa: A002 - as above
    *,
    name: str = "",
    source: str | None = None,
) -> Option:
    """Return an option that may be given more than once; its value is a tuple."""
    return Option(flags, help, metavar=metavar, repeats=True, name=name, source=source)


def choice(
    flags: str,
    choices: tuple[str, ...],
    help: str,  # noqa: A002 - as above
    *,
    default: str | None = None,
    metavar: str | None = None,
    name: str = "",
) -> Option:
    """Return an option whose value is one of *choices*; they are its metavar unless it has one."""
    return Option(
        flags, help, kind=CHOICE, choices=choices, default=default, metavar=metavar, name=name
    )


def integer(
    flags: str,
    metavar: str,
    help: str,  # noqa: A002 - as above
    *,
    default: int | None = None,
    minimum: int = 0,
    name: str = "",
) -> Option:
    """Return an option whose value is a whole number of at least *minimum*."""
    return Option(
        flags, help, kind=INTEGER, metavar=metavar, default=default, minimum=minimum, name=name
    )


class Argument:
    """A word without a flag in front; the value is a text, or None where none is required.

    With `choices` it is one of them.

    One that `repeats` takes all words that are left, as a tuple. With `rest` they begin with the
    first word that is no flag, and what follows is never taken for one: another program's words.
    """

    __slots__ = ("choices", "help", "metavar", "name", "repeats", "required", "rest", "source")

    def __init__(
        self,
        name: str,
        metavar: str,
        help: str,  # noqa: A002 - as above
        *,
        required: bool = True,
        repeats: bool = False,
        rest: bool = False,
        choices: tuple[str, ...] = (),
        source: str | None = None,
    ) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help
        self.required = required
        self.repeats = repeats or rest
        self.rest = rest
        self.choices = choices
        self.source = source


class Command:
    """One command: how it is called, what its help says, and the function that it is.

    `action` is `package.module:function`, imported when it is called: `function(where, **values)`
    with one value for each option and argument. What it returns is the exit code, None is 0.
    """

    __slots__ = (
        "action",
        "arguments",
        "detail",
        "example",
        "hidden",
        "name",
        "options",
        "summary",
        "usage_exit_code",
    )

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        example: str,
        action: str,
        options: tuple[Option, ...] = (),
        arguments: tuple[Argument, ...] = (),
        detail: str = "",
        hidden: bool = False,
        usage_exit_code: int = USAGE_EXIT_CODE,
    ) -> None:
        self.name = name
        self.summary = summary
        self.example = example
        self.action = action
        self.options = options
        self.arguments = arguments
        self.detail = detail
        self.hidden = hidden
        self.usage_exit_code = usage_exit_code

    @property
    def takes_rest(self) -> bool:
        """Tell whether the first word that is no flag ends the flags."""
        return any(argument.rest for argument in self.arguments)


class Group:
    """Commands under one word.

    `default` is the one that is meant where the next word is none of them: with no word or a flag
    (if it needs no argument), and with any other word too (if it takes arguments).
    """

    __slots__ = ("commands", "default", "detail", "example", "name", "summary")

    def __init__(
        self,
        name: str,
        summary: str,
        *,
        example: str,
        commands: tuple[Command | Group, ...],
        detail: str = "",
        default: Command | None = None,
    ) -> None:
        self.name = name
        self.summary = summary
        self.example = example
        self.commands = commands
        self.detail = detail
        self.default = default

    def find(self, word: str) -> Command | Group | None:
        """Return the command of this group that *word* names."""
        for command in self.commands:
            if command.name == word:
                return command
        return None
