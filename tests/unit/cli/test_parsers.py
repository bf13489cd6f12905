"""The fast parser and typer read every command line alike, or the fast one leaves it to typer."""

import contextlib
from functools import cache
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from axern.cli import commands, fast, full
from axern.cli.grammar import Option
from tests.tidy.table import leaves

Read = tuple[str, dict[str, Any], dict[str, Any]]
"""Action, values and global options of a call."""

COMMANDS = [command for _, command in leaves()]
OPTIONS = [*commands.GLOBALS, *{id(o): o for c in COMMANDS for o in c.options}.values()]
NAMES = [words for words, _ in leaves()]
VALUES = st.one_of(
    st.sampled_from(
        ["json", "table", "ndjson", "runc", "running", "7", "-1", "1_0", "", "-", "a=b"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
WORDS = st.one_of(
    VALUES,
    st.sampled_from(["--", "--help", "-h", "-", "--version", "-do", "-fo", "lst", "gett", "start"]),
    st.sampled_from([flag for option in OPTIONS for flag in option.flags]),
    st.sampled_from([word for words in NAMES for word in words]),
)


@cache
def whole() -> Any:
    return typer.main.get_command(full.app())


def shown(call: object) -> Read | None:
    if not isinstance(call, fast.Call):
        return None
    return call.command.action, call.values, call.options


def by_typer(words: list[str]) -> Read | None:
    """Return what typer reads in *words*, or None where it answers them itself."""
    with contextlib.redirect_stdout(None), contextlib.suppress(typer.TyperException):
        try:
            return shown(whole()(list(words), prog_name="axern", standalone_mode=False))
        except full.VersionWanted:
            return None
    return None


def by_fast(words: list[str]) -> Read | None:
    return shown(fast.parse(list(words)))


def flag(option: Option) -> st.SearchStrategy[list[str]]:
    """Draw one spelling of *option*, mostly with a value that it takes."""
    flags = st.sampled_from(option.flags)
    if option.kind == "flag":
        return flags.map(lambda name: [name])
    values = st.sampled_from(option.choices) if option.choices else VALUES
    if option.kind == "integer":
        values = st.integers(-2, 2**70).map(str)

    def spelled(drawn: tuple[str, str, str]) -> list[str]:
        name, between, value = drawn
        if between == " ":
            return [name, value]
        return [f"{name}{between}{value}"]

    return st.tuples(flags, st.sampled_from([" ", "=", ""]), values).map(spelled)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command line that is mostly regular."""
    path, command = draw(st.sampled_from(list(leaves())))
    words = [
        w
        for o in draw(st.lists(st.sampled_from(commands.GLOBALS), max_size=2))
        for w in draw(flag(o))
    ]
    words += path if draw(st.booleans()) or not command.hidden else path[:-1]
    parts: list[list[str]] = []
    if command.options:
        chosen = draw(st.lists(st.sampled_from(command.options), max_size=4))
        parts += [draw(flag(option)) for option in chosen]
    for argument in command.arguments:
        count = draw(st.integers(0, 3)) if argument.repeats else 1
        parts += [[draw(VALUES)] for _ in range(count)]
        if draw(st.booleans()):
            parts.append(["--"])
    if draw(st.booleans()):
        parts = draw(st.permutations(parts))
    return words + [word for part in parts for word in part]


@st.composite
def spoiled_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command line in which one word is lost, replaced or added."""
    words = draw(command_lines())
    place = draw(st.integers(0, len(words)))
    return (
        words[:place] + draw(st.lists(WORDS, max_size=1)) + words[place + draw(st.integers(0, 1)) :]
    )


def agree(words: list[str]) -> bool:
    read = by_fast(words)
    return read is None or read == by_typer(words)


@given(st.one_of(command_lines(), spoiled_lines(), st.lists(WORDS, max_size=8)))
@example(["run", "--", "--help"])
@example(["run", "-d", "sh", "-c", "x"])
@example(["reservations", "-ojson"])
def test_both_read_the_same(words: list[str]) -> None:
    assert agree(words), (words, by_fast(words), by_typer(words))


@pytest.mark.parametrize(
    "line",
    [
        "version",
        "version -o json",
        "--socket s --config=c version",
        "reservations",
        "reservations --namespace a -ojson",
        "reservations list --phase running --format=ndjson",
        "reservations inspect 4f1c",
        "node status -o json",
        "run true",
        "run -- ls -l",
        "run -d --env A=1 --env B --request-memory 1GiB -- sh -c x",
        "run logs -f --from 7 4f1c",
        "run cancel 4f1c --grace 5s",
        "template list",
    ],
)
def test_regular_lines_are_read_fast(line: str) -> None:
    assert by_fast(line.split()) is not None
    assert agree(line.split())


@pytest.mark.parametrize(
    "line",
    [
        "",
        "run",
        "run list --help",
        "run lst",
        "node",
        "node stat",
        "-o json version",
        "run get",
        "version x",
        "run logs --from -1 4f1c",
        "run list --status ended",
        "--version",
        "run --bad x",
    ],
)
def test_the_rest_is_left_to_typer(line: str) -> None:
    assert by_fast(line.split()) is None


def test_control_a_parser_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    options = fast._options

    def first_wins(*args: Any, **settings: Any) -> Any:
        values, rest = options(*args, **settings)
        return values | ({"output": "table"} if "output" in values else {}), rest

    monkeypatch.setattr(fast, "_options", first_wins)
    with pytest.raises(AssertionError):
        test_both_read_the_same()


def test_control_typing_errors_are_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "may_be_meant", lambda *_: False)
    assert not agree(["run", "lst"])


@given(st.text("abcdefghil", max_size=8), st.text("abcdefghil", min_size=1, max_size=8))
def test_the_cheap_likeness_is_never_smaller_than_the_real_one(word: str, name: str) -> None:
    from difflib import get_close_matches

    is_close = get_close_matches(word, [name], n=1, cutoff=fast.SIMILAR)
    if is_close and word[0] == name[0]:
        assert fast.may_be_meant(word, name)
