"""Every `axern …` that a message or a page tells people to type is a command of this version."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from axern.cli import full
from tests.tidy.sources import PACKAGES, ROOT, python_files, shown

PAGES = ("README.md", "docs/operating.md")
TREE: Any = typer.main.get_command(full.app())
PLACEHOLDER = "X"
ANY = {PLACEHOLDER, "COMMAND"}
"""What stands for some command."""
COMMAND = re.compile(r"(?<!group )(?<![\w/.-])axern((?: +(?!--? )[\w./=:{}'-]+)+(?: --(?= ))?)")
"""`axern` and the words after it, up to punctuation or the `--` in front of a workload."""
UNIT = re.compile(r"(?:systemctl|journalctl)\b.*?\baxernd?\b(?:\.[a-z]+)?(?:\s+axernd?\.[a-z]+)*")
"""What is said to systemd; the units that it names are among ours."""
UNITS = {path.name for path in (ROOT / "systemd").iterdir() if path.is_file()} | {"axernd"}
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string below *tree* that is no docstring, values as a word."""
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        yield tree.lineno, tree.value
    elif isinstance(tree, ast.JoinedStr):
        parts = (
            str(part.value) if isinstance(part, ast.Constant) else PLACEHOLDER
            for part in tree.values
        )
        yield tree.lineno, "".join(parts)
    elif not (isinstance(tree, ast.Expr) and isinstance(tree.value, ast.Constant)):
        for child in ast.iter_child_nodes(tree):
            yield from literals(child)


def unknown(text: str) -> list[str]:
    """Return each command in *text* that names no subcommand, or a flag that it does not have."""
    hits = ((hit[0], hit[1].split()) for hit in COMMAND.finditer(text))
    wrong = [hit for hit, words in hits if words[0] not in ANY and not resolves(words)]
    named = [(hit, re.findall(r"\baxernd?\b(?:\.[a-z]+)?", hit)) for hit in UNIT.findall(text)]
    return wrong + [hit for hit, units in named if not set(units) <= UNITS]


def resolves(words: list[str]) -> bool:
    """Tell whether *words*, those behind `axern`, lead through the tree, flags included."""
    command = TREE
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return False
        command = command.commands[words.pop(0)]
    # `axern run` is a command of its own.
    command = getattr(command, "commands", {}).get("start", command)
    flags = {flag for parameter in command.params for flag in parameter.opts} | {"--help", "--"}
    short = [word for word in words if re.fullmatch("-[a-zA-Z]{2,}", word)]
    letters = [f"-{letter}" for word in short for letter in word[1:]]
    others = [word for word in words if word.startswith("-") and word not in short]
    return all(word.partition("=")[0] in flags for word in (*letters, *others))


def test_messages_name_commands_that_exist() -> None:
    found = [
        f"{shown(path)}:{line}: {command}"
        for path in python_files(*PACKAGES)
        for line, text in literals(ast.parse(path.read_text(encoding="utf-8")))
        for command in unknown(text)
    ]
    assert found == []


def test_pages_name_commands_that_exist() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    spans = [(page, code[0]) for page, text in texts.items() for code in CODE.finditer(text)]
    assert sum(len(COMMAND.findall(code)) for _, code in spans) > 5
    assert [f"{page}: {command}" for page, code in spans for command in unknown(code)] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f(hint="see `axern node healer`")', ["axern node healer"]),
        ('f(hint=f"axern secret create {name}")', ["axern secret create X"]),
        ('h = {"a": "use: " "axern run cancel --hard ID"}', ["axern run cancel --hard ID"]),
        ('f(hint="axern run --fast -- sh -c x")', ["axern run --fast --"]),
        ('f(hint="with: systemctl start axernd")', []),
        ('f(hint="with: systemctl stop axern")', ["systemctl stop axern"]),
        ('f(hint="journalctl -u axernd.timer")', ["journalctl -u axernd.timer"]),
        ('f(hint=f"axern run logs -f --from {offset} {run_id}, or axern node status")', []),
        ('f("axern: failed", "the group axern may", f"axern {version}", "axern run -- ls -l")', []),
        ('"""A page about axern node healer."""', []),
    ],
)
def test_control_wrong_commands_are_found(source: str, found: list[str]) -> None:
    texts = [text for _, text in literals(ast.parse(source))]
    assert [command for text in texts for command in unknown(text)] == found
