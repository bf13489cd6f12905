"""The whole command line, made from the table with typer: help, errors, and every spelling.

Costly to import, so `axern.cli.main` does it only for what the fast parser leaves.
"""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from axern.cli import commands
from axern.cli.fast import LONGEST_INTEGER, SIMILAR, Call
from axern.cli.grammar import (
    CHOICE,
    FLAG,
    INTEGER,
    USAGE_EXIT_CODE,
    Argument,
    Command,
    Group,
    Option,
)
from ledger.errors import InvalidArgument

_MISPLACED = tuple(f"No such option: {flag}" for flag in ("-o", "--output", "--format"))
_VERSION = Option("--version", "show the version", kind=FLAG, default=False)


class Misused(InvalidArgument):
    """The words are no command line of ours; `exit_code` is what such a command ends with."""

    def __init__(self, message: str, *, hint: str | None, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


class VersionWanted(Exception):
    """`--version` was given; it wins over whatever follows."""

    @property
    def call(self) -> Call:
        """Return what it is short for."""
        command = commands.top("version")
        assert isinstance(command, Command)  # noqa: S101 - a row of the table
        defaults = {option.name: option.default for option in command.options}
        return Call(command, defaults, dict.fromkeys(("config", "socket")))


class HelpNeeded(Exception):
    """A group without a command: `help` is what there is to know."""

    def __init__(self, help: str, exit_code: int) -> None:  # noqa: A002 - the word for it
        super().__init__(help)
        self.help = help
        self.exit_code = exit_code


def parse(words: list[str]) -> Call | str:
    """Return the call, or the text of the help, that *words*, those behind `axern`, ask for.

    Raises:
        HelpNeeded: A group was named, but none of its commands.
        Misused: The words can't be read.
    """
    command = typer.main.get_command(app())
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            found = command(list(words), prog_name="axern", standalone_mode=False)
    except VersionWanted as wanted:
        return wanted.call
    except typer.TyperException as error:
        raise _told(error) from error
    return found if isinstance(found, Call) else printed.getvalue()


def _told(error: typer.TyperException) -> HelpNeeded | Misused:
    """Return *error* as one of ours."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "axern"
    row = _row(path.split()[1:])
    if isinstance(row, Command) and row.hidden:
        # Nobody types its name: it is the default of its group.
        path = path.removesuffix(f" {row.name}")
    default = row.default if isinstance(row, Group) else row
    exit_code = default.usage_exit_code if default else USAGE_EXIT_CODE
    if type(error).__name__ == "NoArgsIsHelpError":
        return HelpNeeded(error.message, exit_code)
    hint = f"{path} --help"
    if isinstance(row, Group) and error.format_message() in _MISPLACED:
        hint = "it goes behind the command, for example: axern run list -o json"
    return Misused(" ".join(error.format_message().split()), hint=hint, exit_code=exit_code)


def _row(words: list[str]) -> Command | Group | None:
    """Return what typer means with *words*; they may name the hidden default of a group."""
    row: Command | Group | None = commands.tree()
    for word in words:
        if not isinstance(row, Group):
            return None
        default = row.default
        row = default if default is not None and default.name == word else row.find(word)
    return row


def app() -> typer.Typer:
    """Return the whole table as an application whose commands return a `Call`."""

    def show_version(wanted: bool) -> None:
        if wanted:
            raise VersionWanted

    def keep(ctx: typer.Context, **options: object) -> None:
        options.pop("version")
        _refuse_empty(ctx, commands.GLOBALS, options)
        ctx.obj = options

    row = commands.tree()
    version = typer.Option("--version", callback=show_version, is_eager=True, help=_VERSION.help)
    parameters = [_option(option) for option in commands.GLOBALS]
    parameters.append(_parameter("version", Annotated[bool, version], default=False))
    made = _group(row)
    made.callback()(_function(keep, parameters))
    return made


def _group(row: Group) -> typer.Typer:
    default = row.default
    made = typer.Typer(
        name=row.name,
        help=_help(row),
        epilog=f"Example: {row.example}",
        cls=_class(row),
        subcommand_metavar="-- COMMAND… | SUBCOMMAND" if default and default.takes_rest else None,
        no_args_is_help=default is None or bool(default.arguments),
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for child in row.commands:
        _add(made, child)
    if default is not None and default not in row.commands:
        _add(made, default)
    return made


def _add(made: typer.Typer, child: Command | Group) -> None:
    if isinstance(child, Group):
        made.add_typer(_group(child))
        return

    def action(ctx: typer.Context, **values: Any) -> Call:
        _refuse_empty(ctx, child.options, values)
        fixed = {
            name: tuple(value or ()) if name in several else value for name, value in values.items()
        }
        return Call(child, fixed, ctx.obj)

    several = {option.name for option in child.options if option.repeats}
    several |= {argument.name for argument in child.arguments if argument.repeats}
    parameters = [*map(_argument, child.arguments), *map(_option, child.options)]
    made.command(
        child.name,
        cls=PlacedCommand,
        help=_help(child),
        short_help=child.summary,
        epilog=f"Example: {child.example}",
        hidden=child.hidden,
        context_settings={"allow_interspersed_args": not child.takes_rest},
    )(_function(action, parameters))


def _refuse_empty(
    ctx: typer.Context, options: tuple[Option, ...], values: Mapping[str, Any]
) -> None:
    """Refuse a value of nothing: it comes from a variable that is not set, and means no default."""
    for option in options:
        value = values[option.name]
        if value == "" or (option.repeats and "" in (value or ())):
            _fail(ctx, f"Option {option.flags[0]!r} must not have an empty value.")


class PlacedCommand(TyperCommand):
    """A command whose errors all say where they belong; those of typer's parser do not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read *args*."""
        try:
            rest: list[str] = super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise
        return rest


def _help(row: Command | Group) -> str:
    return f"{row.summary}\n\n{row.detail}" if row.detail else row.summary


def _function(
    function: Callable[..., Any], parameters: list[inspect.Parameter]
) -> Callable[..., Any]:
    """Give *function*, which takes a context and keywords, the signature that typer reads."""
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    both = [context, *parameters]
    # typer reads the signature, and the annotations beside it.
    function.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    function.__annotations__ = {entry.name: entry.annotation for entry in both}
    return function


def _option(option: Option) -> inspect.Parameter:
    kind: Any = {FLAG: bool, INTEGER: int}.get(option.kind, str)
    parser = _whole_number(option.minimum or 0) if option.kind == INTEGER else None
    if option.kind == CHOICE:
        # typer knows no list of literals.
        words = [(word, word) for word in option.choices]
        kind = StrEnum("Word", words) if option.repeats else Literal[option.choices]
    if option.repeats:
        kind = list[kind]
    if option.default in {None, ()}:
        kind = kind | None
    declared = typer.Option(*option.flags, metavar=option.metavar, help=option.help, parser=parser)
    default = None if option.repeats else option.default
    return _parameter(option.name, Annotated[kind, declared], default=default)


def _whole_number(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > LONGEST_INTEGER:
            raise typer.BadParameter(
                f"{text!r} is no whole number of at most {LONGEST_INTEGER} digits."
            )
        if int(text) < minimum:
            raise typer.BadParameter(f"{text} is less than {minimum}.")
        return int(text)

    return number


def _argument(argument: Argument) -> inspect.Parameter:
    kind: Any = Literal[argument.choices] if argument.choices else str
    if argument.repeats:
        kind = list[kind]
    declared = typer.Argument(metavar=argument.metavar, help=argument.help)
    if argument.required:
        return _parameter(argument.name, Annotated[kind, declared])
    return _parameter(argument.name, Annotated[kind | None, declared], default=None)


def _parameter(
    name: str, annotation: object, default: object = inspect.Parameter.empty
) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _class(row: Group) -> type[TyperGroup]:
    """Return the class of typer's group for *row*, whose commands are shown in its order."""

    class TableGroup(TyperGroup):
        """A group in the order of the table."""

        def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
            """Return the names of what is visible."""
            return [child.name for child in row.commands]

    return TableGroup if row.default is None else _class_with_default(TableGroup, row, row.default)


def _class_with_default(base: Any, row: Group, default: Command) -> type[TyperGroup]:

    class DefaultGroup(base):  # type: ignore[misc]
        """A group that is a command too: what begins with none of its commands is `default`."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Put the default before *args* unless they name a command, or are to have help."""
            word = args[0] if args else None
            named = word == "--help" or (word is not None and row.find(word) is not None)
            if not named and self._is_meant(ctx, word):
                args = [default.name, *args]
            rest: list[str] = super().parse_args(ctx, args)
            return rest

        def _is_meant(self, ctx: Any, word: str | None) -> bool:
            if word is None:
                return not default.arguments
            if word.startswith("-"):
                return True
            if default.arguments:
                _refuse_typing_error(ctx, row, word)
            return bool(default.arguments)

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """Show the flags of the default as this group's own."""
            self.commands[default.name].format_options(ctx, formatter)
            self.format_commands(ctx, formatter)

    return DefaultGroup


def _refuse_typing_error(ctx: Any, group: Group, word: str) -> None:
    """Refuse what was probably meant as a subcommand, instead of running a program."""
    names = [row.name for row in group.commands if row.name[:1] == word[:1]]
    similar = get_close_matches(word, names, n=1, cutoff=SIMILAR)
    if similar and not ctx.resilient_parsing:
        path = ctx.command_path
        _fail(ctx, f"{word!r} looks like {similar[0]!r}; to run it: {path} -- {word}")


def _fail(ctx: Any, message: str) -> NoReturn:
    ctx.fail(message)
    raise AssertionError  # `fail` does not return
