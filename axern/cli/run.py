"""The grammar of `axern run`: a command of its own, and the group of commands about runs.

The first word decides: it is one of the subcommands, or else the words are flags and the workload's
command, which begins after `--` or with the first word that is no flag.
"""

from difflib import get_close_matches
from typing import Annotated, Any, Literal, NoReturn, get_args

import typer
from typer.core import TyperGroup

from axern.cli.actions import run as actions
from axern.cli.actions.request import RunOptions
from axern.cli.options import (
    ListOutput,
    Namespace,
    Output,
    RunId,
    Status,
    group,
    where,
    with_resource_flags,
)

START = "start"
"""Name of the hidden command behind `axern run [FLAGS] -- COMMAND…`."""


class RunGroup(TyperGroup):
    """A group that is a command too: what begins with none of its subcommands is `START`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `START` before *args* unless they name a subcommand."""
        named = args and (args[0] == "--help" or (args[0] in self.commands and args[0] != START))
        if args and not named:
            self._refuse_typing_error(ctx, args[0])
            args = [START, *args]
        return super().parse_args(ctx, args)

    def _refuse_typing_error(self, ctx: Any, word: str) -> None:
        """Refuse what was probably meant as a subcommand, instead of running a program."""
        visible = [name for name in self.commands if name != START]
        similar = get_close_matches(word, visible, n=1)
        if similar and not ctx.resilient_parsing:
            _fail(ctx, f"{word!r} looks like {similar[0]!r}; to run it: axern run -- {word}")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Show the flags of `START` as this group's own."""
        self.commands[START].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _fail(ctx: Any, message: str) -> NoReturn:
    ctx.fail(message)
    raise AssertionError  # `fail` does not return


app = group(
    "run a command in a sandbox, or look after runs\n\n"
    "Exits with the command's own code; 125: a failure of our own (with -o json it is on "
    "standard output as well), 126: the program can't be executed, 127: it was not found, "
    "130: interrupted.",
    "axern run --request-memory 512MiB -- sh -c 'echo hello'",
    cls=RunGroup,
    subcommand_metavar="-- COMMAND… | SUBCOMMAND",
)


@app.command(START, hidden=True, context_settings={"allow_interspersed_args": False})
@with_resource_flags
def start(
    *,
    ctx: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="program and arguments, after --")
    ],
    resources: dict[str, str | None],
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="print the id and leave the run to the daemon")
    ] = False,
    template: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="registered root file system; the node has a default"),
    ] = None,
    rootfs: Annotated[
        str | None, typer.Option(metavar="PATH", help="folder to use as root; administrators only")
    ] = None,
    rootfs_readonly: Annotated[
        bool, typer.Option("--rootfs-readonly", help="give the run no writable root")
    ] = False,
    runtime_class: Annotated[
        Literal["runsc", "runc"] | None,
        typer.Option(help="what isolates it; the node has a default"),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="set a variable, or pass yours on; repeatable"),
    ] = None,
    cwd: Annotated[str, typer.Option(metavar="PATH", help="folder to start in")] = "/",
    namespace: Annotated[str, typer.Option(metavar="NAME", help="who is charged")] = "default",
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="end it after this time, e.g. 1h30m")
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="your name for this request: a repeat runs nothing twice"
        ),
    ] = None,
    output: Output = "table",
) -> int:
    """Run a command in a sandbox."""
    options = RunOptions(
        command=command,
        resources=resources,
        env=env or (),
        cwd=cwd,
        namespace=namespace,
        template=template,
        rootfs=rootfs,
        rootfs_readonly=rootfs_readonly,
        runtime_class=runtime_class,
        ttl=ttl,
        request_id=request_id,
    )
    return actions.start(where(ctx), options, detach=detach, as_json=output == "json")


@app.command("get", help="show a run", epilog="Example: axern run get 4f1c")
def get(ctx: typer.Context, run_id: RunId, output: Output = "table") -> None:
    """Show a run."""
    actions.get(where(ctx), run_id, as_json=output == "json")


@app.command("list", help="list runs", epilog="Example: axern run list --status running")
def list_runs(
    ctx: typer.Context,
    namespace: Namespace = None,
    status: Annotated[
        Status | None,
        typer.Option(metavar="STATUS", help=f"only those: {', '.join(get_args(Status))}"),
    ] = None,
    output: ListOutput = "table",
) -> None:
    """List runs."""
    actions.list_runs(where(ctx), namespace, status, form=output)


@app.command(
    "cancel", help="end a run: TERM, then KILL", epilog="Example: axern run cancel --grace 5s 4f1c"
)
def cancel(
    ctx: typer.Context,
    run_id: RunId,
    grace: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="time from TERM to KILL; the node has a default"),
    ] = None,
    output: Output = "table",
) -> None:
    """End a run."""
    actions.cancel(where(ctx), run_id, grace, as_json=output == "json")


@app.command("logs", help="write what a run has written", epilog="Example: axern run logs -f 4f1c")
def logs(
    ctx: typer.Context,
    run_id: RunId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="go on until the run ends")
    ] = False,
    offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", min=0, help="start here instead of at 0")
    ] = 0,
) -> None:
    """Write what a run has written."""
    actions.logs(where(ctx), run_id, offset, following=follow)
