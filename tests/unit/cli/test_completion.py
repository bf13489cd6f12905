"""What completion offers is what the table has, at each place of a command line."""

import pytest

from axern.cli import commands, fast
from axern.cli.completion import place
from axern.cli.describe import acts, entries
from axern.cli.grammar import FLAG, Command, Group
from tests.tidy.table import leaves


def offered(*words: str) -> list[str]:
    return [word for word, _ in place(list(words)).candidates]


@pytest.mark.parametrize(("words", "row"), entries())
def test_every_word_and_flag_is_offered(words: tuple[str, ...], row: Command | Group) -> None:
    path = words[1:]
    if isinstance(row, Group):
        shown = [child for child in row.commands if not getattr(child, "hidden", False)]
        names = [child.name for child in shown]
        assert offered(*path, "") == names
        assert offered(*path, names[0][:1])[0] == names[0]
    command = acts(row)
    options = command.options if command else () if path else commands.GLOBALS
    flags = {flag for option in options for flag in option.flags}
    assert flags <= set(offered(*path, "-"))
    for option in options:
        if option.kind == FLAG:
            continue
        for flag in option.flags:
            found = place([*path, flag, ""])
            assert [word for word, _ in found.candidates] == list(option.choices)
            assert found.source == option.source
            assert offered(*path, f"{flag}=") == [f"{flag}={value}" for value in option.choices]


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("run get ", "runs"),
        ("run get -o json ", "runs"),
        ("run get 4f1c ", None),
        ("run logs --from 7 ", "runs"),
        ("reservations inspect ", "reservations"),
        ("reservations --namespace ", "namespaces"),
        ("run --template=", "templates"),
        ("run --detach -- cat ", None),
        ("--config ", "files"),
    ],
)
def test_where_other_words_are_to_be_found(line: str, source: str | None) -> None:
    assert place(line.split(" ")).source == source


def test_a_workload_is_left_alone() -> None:
    assert offered("run", "--", "--") == []
    assert offered("run", "sh", "--") == []
    assert offered("run", "-d", "--", "get", "-") == []


def test_global_options_are_noted_for_the_question() -> None:
    found = place(["--socket", "s", "--config=c", "run", "get", ""])
    assert found.options == {"socket": "s", "config": "c"}


def test_what_is_offered_for_a_choice_is_read_fast() -> None:
    for words, row in leaves():
        for option in row.options:
            for value in option.choices:
                needed = ["x"] * len(row.arguments)
                assert fast.parse([*words, f"{option.flags[0]}={value}", *needed]), words
