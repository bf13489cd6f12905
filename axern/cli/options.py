"""Options that several commands share, and how commands and groups are declared."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from axern.cli.actions.request import resource_flags
from axern.cli.actions.where import Where

Output = Annotated[
    Literal["table", "json"],
    typer.Option(
        "--output", "-o", help="print for people or for programs; with json errors are JSON too"
    ),
]
ListOutput = Annotated[
    Literal["table", "text", "json", "ndjson"],
    typer.Option(
        "--output", "-o", "--format", help="text is another word for table; ndjson is one a line"
    ),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="only those of this namespace")
]
Phase = Literal["reserved", "starting", "running", "stopping", "retiring"]
Status = Literal[Phase, "succeeded", "failed", "cancelled"]
"""A run has the phase of its reservation until it has ended."""
RunId = Annotated[
    str, typer.Argument(metavar="ID", help="id of the run, or a unique beginning of it")
]


def group(summary: str, example: str, **settings: Any) -> typer.Typer:
    """Return an empty group of commands; *settings* are typer's, and win over ours."""
    ours: dict[str, Any] = {"no_args_is_help": True, "add_completion": False}
    return typer.Typer(
        help=summary,
        epilog=f"Example: {example}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        **(ours | settings),
    )


def where(ctx: typer.Context) -> Where:
    """Return the global options of this call."""
    return ctx.ensure_object(Where)


def with_resource_flags(function: Callable[..., int]) -> Callable[..., int]:
    """Give the command *function* one flag for each request and limit that a user may set.

    Its parameter `resources` receives their texts, keyed by parameter name, None where not given.
    """
    flags = list(resource_flags())

    @functools.wraps(function)
    def command(**values: Any) -> int:
        resources = {flag.parameter: values.pop(flag.parameter) for flag in flags}
        return function(**values, resources=resources)

    own = inspect.signature(function).parameters.values()
    added = [
        inspect.Parameter(
            flag.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(flag.flag, metavar=flag.metavar, help=flag.help)
            ],
        )
        for flag in flags
    ]
    parameters = [*(parameter for parameter in own if parameter.name != "resources"), *added]
    # typer reads the signature, and the annotations beside it.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
