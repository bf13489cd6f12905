"""The grammar of `axern node` and `axern template`: what there is to run on, and from."""

import typer

from axern.cli.actions import show
from axern.cli.options import ListOutput, Output, group, where

app = group("show this node", "axern node capacity")
template_app = group("show root file systems", "axern template list")


@app.command(
    "status",
    help="show the daemon, its runtimes and what this host can enforce",
    epilog="Example: axern node status",
)
def status(ctx: typer.Context, output: Output = "table") -> None:
    """Show the daemon, its runtimes and what this host can enforce."""
    show.node_status(where(ctx), as_json=output == "json")


@app.command(
    "capacity",
    help="show what the node has and who holds how much of it; amounts are rounded down",
    short_help="show what the node has, and who holds how much",
    epilog="Example: axern node capacity -o json",
)
def capacity(ctx: typer.Context, output: Output = "table") -> None:
    """Show what the node has and who holds how much of it."""
    show.node_capacity(where(ctx), as_json=output == "json")


@template_app.command(
    "list", help="list the templates that a run may name", epilog="Example: axern template list"
)
def list_templates(ctx: typer.Context, output: ListOutput = "table") -> None:
    """List the templates that a run may name."""
    show.list_templates(where(ctx), form=output)
