"""From words to an exit code: the one place that reads them, calls the command and meets errors."""

from __future__ import annotations

from axern.cli import fast
from axern.cli.actions.where import Where
from axern.cli.interrupt import INTERRUPTED, Interruptible
from axern.cli.output import STDERR, STDOUT, OutputClosed, exit_code, report, write
from ledger.errors import AxernError

READER_GONE = 128 + 13
"""What a shell shows for a program that SIGPIPE ended."""
_JSON = frozenset(
    f"{flag}{between}{form}"
    for flag in ("-o", "--output", "--format")
    for between in ("", " ", "=")
    for form in ("json", "ndjson")
)
"""How somebody asks for JSON."""


def answer(words: list[str]) -> int:
    """Do what *words*, those behind `axern`, ask for, and return the exit code."""
    try:
        call = fast.parse(words)
        return _perform(call) if call is not None else _answer_in_full(words)
    except OutputClosed:
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except AxernError as error:
        return _failed(error, words)
    except Exception as error:  # noqa: BLE001 - nobody can do anything with a traceback
        from axern.cli.unexpected import explained

        return _failed(explained(error), words)


def _failed(error: AxernError, words: list[str], code: int | None = None) -> int:
    """Tell about *error* and return its exit code, or *code* where there is one."""
    from axern.cli.actions.wording import in_flags

    try:
        report(in_flags(error), as_json=wants_json(words))
    except OutputClosed:
        return READER_GONE
    return exit_code(error) if code is None else code


def _perform(call: fast.Call) -> int:
    """Do what *call* asks for, and return the exit code."""
    module, _, name = call.command.action.partition(":")
    action = getattr(__import__(module, fromlist=[name]), name)
    where = Where(**call.options)
    with Interruptible():
        result = action(where, **call.values)
    return result if isinstance(result, int) else 0


def _answer_in_full(words: list[str]) -> int:
    from axern.cli import full

    try:
        found = full.parse(words)
    except full.Misused as error:
        return _failed(error, words, error.exit_code)
    except full.HelpNeeded as needed:
        write(STDERR, f"{needed.help}\n".encode())
        return needed.exit_code
    if isinstance(found, fast.Call):
        return _perform(found)
    write(STDOUT, found.encode())
    return 0


def wants_json(words: list[str]) -> bool:
    """Tell whether errors shall be JSON too; needed even where the words can't be parsed."""
    own = words[: words.index("--")] if "--" in words else words
    pairs = [f"{flag} {value}" for flag, value in zip(own, own[1:])]  # noqa: B905, RUF007
    return any(word in _JSON for word in (*own, *pairs))
