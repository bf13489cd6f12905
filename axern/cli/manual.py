"""The manual pages, made from the table of commands: `python -m axern.cli.manual FOLDER`.

One page for `axern`, and one for each first word with all that is below it. Source: man(7).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from axern import __version__
from axern.cli import commands
from axern.cli.describe import (
    Entry,
    default_of,
    entries,
    exit_codes,
    own,
    sentence,
    usages,
    value_of,
)
from axern.cli.grammar import Argument, Command, Group, Option
from axern.config import DEFAULT_PATH, DEFAULT_STATE_DIR


def pages() -> dict[str, str]:
    """Return the pages by file name: `axern-run.1`."""
    (_, tree), *rest = entries()
    below: dict[str, list[Entry]] = {}
    for words, row in rest:
        below.setdefault(words[1], []).append((words, row))
    made = {f"axern-{word}.1": _page(found) for word, found in below.items()}
    return {"axern.1": _overview(tree), **made}


def _overview(tree: object) -> str:
    assert isinstance(tree, Group)  # noqa: S101 - the table's root is one
    rows = [(f"axern\\-{_text(row.name)}(1)", row.summary) for row in _visible(tree)]
    return "\n".join(
        [
            *_head(("axern",), tree.summary),
            _synopsis(["axern [--config PATH] [--socket PATH] COMMAND …", "axern --version"]),
            f".SH DESCRIPTION\n{_text(tree.detail)}",
            ".SH OPTIONS\nThey stand in front of the first word.",
            *map(_option, commands.GLOBALS),
            ".SH COMMANDS",
            *(f".TP\n.B {name}\n{_text(sentence(what))}" for name, what in rows),
            _codes(exit_codes(tree)),
            f".SH FILES\n.TP\n.I {_text(DEFAULT_PATH)}\nThe configuration.",
            f".TP\n.I {_text(DEFAULT_STATE_DIR)}\nLedger, runs, templates and file systems.",
            _example([tree.example]),
            "",
        ]
    )


def _page(found: list[Entry]) -> str:
    (words, row), *rest = found
    lines = _head(words, row.summary)
    lines.append(_synopsis([usage for entry in found for usage in usages(*entry)]))
    lines.append(f".SH DESCRIPTION\n{_text(row.detail or sentence(row.summary))}")
    lines += _parameters(row, ".SH OPTIONS")
    if rest:
        lines.append(".SH COMMANDS")
    for path, child in rest:
        lines.append(f".SS {_text(' '.join(path))}\n{_text(sentence(child.summary))}")
        if child.detail:
            lines.append(f".PP\n{_text(child.detail)}")
        lines += _parameters(child, None)
    lines.append(_codes(exit_codes(row)))
    lines.append(_example([child.example for _, child in found]))
    lines += [".SH SEE ALSO\n.BR axern (1)", ""]
    return "\n".join(lines)


def _visible(group: Group) -> list[Command | Group]:
    return [row for row in group.commands if isinstance(row, Group) or not row.hidden]


def _head(words: tuple[str, ...], summary: str) -> list[str]:
    name = "-".join(words)
    return [
        f'.TH {name.upper().replace("-", chr(92) + "-")} 1 "" "axern {__version__}" "Axern"',
        f".SH NAME\n{_text(name)} \\- {_text(summary)}",
    ]


def _synopsis(usage: Iterable[str]) -> str:
    return ".SH SYNOPSIS\n" + "\n.br\n".join(_text(line) for line in usage)


def _parameters(row: Command | Group, heading: str | None) -> list[str]:
    command = own(row)
    if command is None or not (command.arguments or command.options):
        return []
    entries_of = [*map(_argument, command.arguments), *map(_option, command.options)]
    return [heading, *entries_of] if heading else entries_of


def _argument(argument: Argument) -> str:
    return f".TP\n.I {_text(argument.metavar)}\n{_text(sentence(argument.help))}"


def _option(option: Option) -> str:
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in option.flags)
    value = value_of(option)
    shown = f"{flags} \\fI{_text(value)}\\fR" if value else flags
    default = default_of(option)
    told = f" Default: {_text(default)}." if default else ""
    return f".TP\n{shown}\n{_text(sentence(option.help))}{told}"


def _codes(codes: Iterable[tuple[str, str]]) -> str:
    rows = (f".TP\n.B {code}\n{_text(sentence(what))}" for code, what in codes)
    return "\n".join([".SH EXIT STATUS", *rows])


def _example(examples: Iterable[str]) -> str:
    lines = "\n".join(_text(example) for example in dict.fromkeys(examples))
    return f".SH EXAMPLES\n.nf\n{lines}\n.fi"


def _text(text: str) -> str:
    """Return *text* so that roff shows it as it is."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    escaped = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in escaped)
    return f"\\&{escaped}" if escaped[:1] in {".", "'"} else escaped


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    for name, page in pages().items():
        with open(f"{folder}/{name}", "w", encoding="ascii") as file:
            file.write(page)
