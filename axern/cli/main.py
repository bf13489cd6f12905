"""The entry point, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys

from axern.cli import fast
from axern.cli.actions.where import Where
from axern.cli.output import STDERR, OutputClosed, exit_code, report, write
from ledger.errors import AxernError

INTERRUPTED = 128 + 2
READER_GONE = 128 + 13
"""What a shell shows for a program that SIGPIPE ended."""
_JSON = frozenset(
    f"{flag}{between}{form}"
    for flag in ("-o", "--output", "--format")
    for between in ("", " ", "=")
    for form in ("json", "ndjson")
)
"""How somebody asks for JSON."""


def main() -> int:
    """Run the command line and return its exit code."""
    _hold_standard_descriptors()
    words = sys.argv[1:]
    as_json = _wants_json(words)
    try:
        call = fast.parse(words)
        return _perform(call) if call is not None else _read_in_full(words, as_json=as_json)
    except OutputClosed:
        return READER_GONE
    except KeyboardInterrupt:
        return INTERRUPTED
    except AxernError as error:
        return _failed(error, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - nobody can do anything with a traceback
        from axern.cli.unexpected import explained

        return _failed(explained(error), as_json=as_json)


def _perform(call: fast.Call) -> int:
    """Do what *call* asks for, and return the exit code."""
    module, _, name = call.command.action.partition(":")
    action = getattr(__import__(module, fromlist=[name]), name)
    result = action(Where(**call.options), **call.values)
    return result if isinstance(result, int) else 0


def _read_in_full(words: list[str], *, as_json: bool) -> int:
    from axern.cli import full

    try:
        call = full.parse(words)
        return 0 if call is None else _perform(call)
    except full.Misused as error:
        report(error, as_json=as_json)
        return error.exit_code
    except full.HelpNeeded as needed:
        write(STDERR, f"{needed.help}\n".encode())
        return needed.exit_code


def _failed(error: AxernError, *, as_json: bool) -> int:
    try:
        report(error, as_json=as_json)
    except OutputClosed:
        return READER_GONE
    return exit_code(error)


def _wants_json(words: list[str]) -> bool:
    """Tell whether errors shall be JSON too; needed even where the words can't be parsed."""
    own = words[: words.index("--")] if "--" in words else words
    pairs = [f"{flag} {value}" for flag, value in zip(own, own[1:])]  # noqa: B905, RUF007
    return any(word in _JSON for word in (*own, *pairs))


def _hold_standard_descriptors() -> None:
    """Open /dev/null where a standard descriptor is closed, so that no socket takes its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the kernel gives out the lowest free number


if __name__ == "__main__":
    sys.exit(main())
