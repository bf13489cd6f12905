"""Every command and group of `axern` answers `--help` and shows an example."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from axern.cli import full

EXAMPLE = re.compile(r"^\s*Examples?\b", re.MULTILINE)


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words that lead to *command* and to every visible one below it."""
    yield path
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            yield from paths(child, (*path, name))


def poor_help(app: typer.Typer) -> list[str]:
    """Return a line for each command whose help fails or lacks its example.

    An example is a line that starts with "Example", and one that spells the command out.
    """
    found = []
    for path in paths(typer.main.get_command(app)):
        shown = " ".join(("axern", *path))
        result = CliRunner().invoke(app, [*path, "--help"], prog_name="axern")
        if "..." in result.output.replace("[ARGS]...", ""):
            found.append(f"{shown} --help: a summary is cut: give the command a short_help")
        if result.exit_code != 0:
            found.append(f"{shown} --help: exit {result.exit_code}: {result.exception!r}")
            continue
        marker = EXAMPLE.search(result.output)
        example = " ".join(result.output[marker.end() :].split()) if marker else ""
        if shown not in example:
            found.append(f'{shown} --help: no "Example" line followed by `{shown} …`')
    return found


def test_every_command_helps_with_an_example() -> None:
    app = full.app()
    assert len(list(paths(typer.main.get_command(app)))) > 1
    assert poor_help(app) == []


def test_control_a_command_without_example_is_found() -> None:
    app = typer.Typer(rich_markup_mode=None, help="Root.\n\nExample: axern good")
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="group", help="group of commands\n\nExample: axern group deep")

    @app.command(help="good one\n\nExample: axern good --fast")
    def good() -> None: ...

    @app.command(help="poor one")
    def poor() -> None: ...

    @app.command(help=f"one that says {'much ' * 20}\n\nExample: axern long")
    def long() -> None: ...

    @group.command(help="example of another command\n\nExample: axern good")
    def deep() -> None: ...

    assert [line.partition(" --help")[0] for line in poor_help(app)] == [
        "axern",
        "axern group deep",
        "axern poor",
    ]
