"""Each row of the table of commands agrees with the function that it names."""

import importlib
import inspect
from collections.abc import Callable

import pytest

from axern.cli import commands
from axern.cli.grammar import FLAG, INTEGER, Command, Option
from tests.tidy.table import leaves

ROWS = [pytest.param(row, id=" ".join(words)) for words, row in leaves()]


def action_of(row: Command) -> Callable[..., object]:
    module, _, name = row.action.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), name)
    return found


def annotation(option: Option) -> str:
    """Return the type of what the action gets for *option*."""
    kind = {FLAG: "bool", INTEGER: "int"}.get(option.kind, "str")
    if option.repeats:
        return f"tuple[{kind}, ...]"
    return f"{kind} | None" if option.default is None else kind


@pytest.mark.parametrize("row", ROWS)
def test_the_action_takes_what_the_row_gives(row: Command) -> None:
    parameters = inspect.signature(action_of(row)).parameters
    _where, *names = parameters
    given = {option.name: annotation(option) for option in row.options}
    for entry in row.arguments:
        kind = "tuple[str, ...]" if entry.repeats else "str"
        given[entry.name] = kind if entry.required or entry.repeats else f"{kind} | None"
    rest = [name for name in names if parameters[name].kind == inspect.Parameter.VAR_KEYWORD]
    taken = {name: parameters[name].annotation for name in names if name not in rest}
    extra = {name: kind for name, kind in given.items() if name not in taken}
    assert taken == {name: kind for name, kind in given.items() if name in taken}
    assert not extra or set(extra.values()) == {parameters[rest[0]].annotation}


@pytest.mark.parametrize("row", ROWS)
def test_rows_are_written_alike(row: Command) -> None:
    flags = [flag for option in row.options for flag in option.flags]
    assert len(flags) == len(set(flags))
    assert "--help" not in flags
    assert all(option.flags[0].startswith("--") for option in row.options)
    texts = [row.summary, *(option.help for option in row.options)]
    texts += [argument.help for argument in row.arguments]
    assert [text for text in texts if not text or text.endswith(".")] == []
    if row.detail:
        assert row.detail.endswith(".")


def test_each_first_word_is_the_name_of_its_row() -> None:
    rows = {word: commands.top(word) for word in commands.TOP}
    assert {word: row.name for word, row in rows.items() if row} == {word: word for word in rows}
