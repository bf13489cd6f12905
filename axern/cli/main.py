"""The entry point: the tree of commands, and the one place where errors become exit codes."""

import itertools
import os
import sys
from typing import Annotated

import typer

from axern.cli import node, reservations, run
from axern.cli.actions import show
from axern.cli.actions.foreground import OWN_FAILURE
from axern.cli.actions.where import Where
from axern.cli.options import Output, group, where
from axern.cli.output import STDERR, OutputClosed, exit_code, report, write
from ledger.errors import AxernError, InvalidArgument

READER_GONE = 128 + 13
"""What a shell shows for a program that SIGPIPE ended."""
_USAGE = 2
_OUTPUT_FLAGS = ("-o", "--output", "--format")
_MISPLACED = tuple(f"No such option: {flag}" for flag in _OUTPUT_FLAGS)

app = group(
    "admit, launch and bury sandboxes on this host\n\n"
    "Data goes to standard output, talk to standard error. With -o json an error is JSON on "
    "standard output as well. Exit codes: 0 done, 2 usage, 3 the node refuses, 4 the namespace "
    "refuses, 5 not found or conflict, 6 no daemon, 7 ledger damaged, 1 anything else.",
    "axern run -- echo hello",
    add_completion=True,
)
app.add_typer(run.app, name="run")
app.add_typer(reservations.app, name="reservations")
app.add_typer(node.app, name="node")
app.add_typer(node.template_app, name="template")


def _show_version(wanted: bool) -> None:
    if wanted:
        show.version(as_json=False)
        raise typer.Exit


@app.callback()
def axern(
    ctx: typer.Context,
    config: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="configuration file  [default: /etc/axern/axern.toml]"),
    ] = None,
    socket: Annotated[
        str | None, typer.Option(metavar="PATH", help="the daemon's socket, if not as configured")
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="show the version"),
    ] = False,
) -> None:
    """Keep the global options."""
    options = where(ctx)
    options.config, options.socket = config, socket


@app.command("version", help="show the version", epilog="Example: axern version")
def version(output: Output = "table") -> None:
    """Show the version."""
    show.version(as_json=output == "json")


def main() -> int:
    """Run the command line and return its exit code."""
    _hold_standard_descriptors()
    arguments = sys.argv[1:]
    as_json = _wants_json(arguments)
    command = typer.main.get_command(app)
    try:
        result = command(arguments, prog_name="axern", obj=Where(), standalone_mode=False)
    except OutputClosed:
        return READER_GONE
    except AxernError as error:
        return _failed(error, as_json=as_json)
    except typer.TyperException as error:
        return _misused(error, as_json=as_json)
    return result if isinstance(result, int) else 0


def _failed(error: AxernError, *, as_json: bool) -> int:
    try:
        report(error, as_json=as_json)
    except OutputClosed:
        return READER_GONE
    return exit_code(error)


def _misused(error: typer.TyperException, *, as_json: bool) -> int:
    """Tell how the command is used; below `run` that is a failure of ours, not of the workload."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path.removesuffix(f" {run.START}") if ctx else "axern"
    code = OWN_FAILURE if path == "axern run" else _USAGE
    if type(error).__name__ == "NoArgsIsHelpError":
        write(STDERR, f"{error.message}\n".encode())
        return code
    hint = f"{path} --help"
    is_group = ctx is not None and hasattr(ctx.command, "commands")
    if is_group and error.format_message() in _MISPLACED:
        hint = "it goes behind the command, for example: axern run list -o json"
    wrong = InvalidArgument(error.format_message(), hint=hint)
    return code if _failed(wrong, as_json=as_json) != READER_GONE else READER_GONE


def _wants_json(arguments: list[str]) -> bool:
    """Tell whether errors shall be JSON too; needed even where the arguments can't be parsed."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    spellings = {"-ojson", "-ondjson"}
    for name, form in itertools.product(_OUTPUT_FLAGS, ("json", "ndjson")):
        spellings |= {f"{name} {form}", f"{name}={form}"}
    return any(word in spellings for word in own) or any(
        " ".join(pair) in spellings for pair in itertools.pairwise(own)
    )


def _hold_standard_descriptors() -> None:
    """Open /dev/null where a standard descriptor is closed, so that no socket takes its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the kernel gives out the lowest free number


if __name__ == "__main__":
    sys.exit(main())
