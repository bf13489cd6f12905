"""The table of commands, walked."""

from collections.abc import Iterator

from axern.cli import commands
from axern.cli.grammar import Command, Group


def leaves(
    group: Group | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command with the words that lead to it, hidden defaults of groups included."""
    group = group or commands.tree()
    default = group.default
    if default is not None and default not in group.commands:
        yield (*path, default.name), default
    for row in group.commands:
        if isinstance(row, Group):
            yield from leaves(row, (*path, row.name))
        else:
            yield (*path, row.name), row
