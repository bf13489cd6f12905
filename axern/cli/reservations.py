"""The grammar of `axern reservations`."""

from typing import Annotated, get_args

import typer

from axern.cli.actions import show
from axern.cli.options import ListOutput, Namespace, Output, Phase, group, where

app = group(
    "show who holds what\n\nWithout a command: list. When the daemon is down, the ledger's files "
    "are read instead, and the output says so.",
    "axern reservations",
    invoke_without_command=True,
    no_args_is_help=False,
)


@app.callback()
def reservations(ctx: typer.Context, output: ListOutput = "table") -> None:
    """List all reservations when no command is given."""
    if ctx.invoked_subcommand is None:
        show.list_reservations(where(ctx), None, None, form=output)


@app.command(
    "list", help="list reservations", epilog="Example: axern reservations list --format ndjson"
)
def list_reservations(
    ctx: typer.Context,
    namespace: Namespace = None,
    phase: Annotated[
        Phase | None,
        typer.Option(metavar="PHASE", help=f"only those: {', '.join(get_args(Phase))}"),
    ] = None,
    output: ListOutput = "table",
) -> None:
    """List reservations."""
    show.list_reservations(where(ctx), namespace, phase, form=output)


@app.command(
    "inspect", help="show one reservation", epilog="Example: axern reservations inspect 4f1c"
)
def inspect(
    ctx: typer.Context,
    reservation_id: Annotated[
        str, typer.Argument(metavar="ID", help="id, or a unique beginning of it")
    ],
    output: Output = "table",
) -> None:
    """Show one reservation."""
    show.inspect_reservation(where(ctx), reservation_id, as_json=output == "json")
