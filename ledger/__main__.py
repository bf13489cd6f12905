"""Look at a ledger where nothing else works: `python -m ledger check DIR` and `dump DIR`."""

from __future__ import annotations

import argparse
import json
import os
import sys

from ledger.check import examine_present
from ledger.contents import as_document, read
from ledger.errors import CODES, AxernError, LedgerError
from ledger.files import Folder, translate
from ledger.tables import RESERVATIONS

EXIT_FINDINGS = 1
EXIT_USAGE = 2
READER_GONE = 128 + 13
"""What a shell shows for a program that SIGPIPE ended."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ledger",
        description="Look at a ledger without its lock; nothing is ever written.",
        epilog="example: python -m ledger check /var/lib/axern/ledger. Exit codes: 0 in order, "
        "1 findings, 2 usage, 7 damaged, 141 nobody reads it.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("check", "recompute sums, chain and accounts, and print what is wrong"),
        ("dump", "print the present state as JSON"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("directory", help="the ledger's directory")
    chosen = parser.parse_args(arguments)
    path = os.path.abspath(chosen.directory)
    try:
        code, text = _run(chosen.command, Folder(path))
        return _put(text) or code
    except OSError as err:
        error: AxernError = translate(err, path)
    except AxernError as err:
        error = err
    print(f"ledger: {error.message}", file=sys.stderr)
    # What damage makes everybody else say is to run this very check.
    if error.hint and (chosen.command != "check" or "ledger check" not in error.hint):
        print(f"hint: {error.hint}", file=sys.stderr)
    return CODES[error.code].exit_code if isinstance(error, LedgerError) else EXIT_USAGE


def _run(command: str, folder: Folder) -> tuple[int, str]:
    """Return the exit code of *command* and what it prints."""
    try:
        present = read(folder)
        if command == "dump":
            return 0, json.dumps(as_document(present), indent=2)
        found = examine_present(folder, present)
    finally:
        folder.close()
    if found:
        return EXIT_FINDINGS, "\n".join(finding.found for finding in found)
    entries = len(present.contents.tables[RESERVATIONS])
    noun = "reservation" if entries == 1 else "reservations"
    return 0, f"in order: generation {present.contents.generation}, {entries} {noun}"


def _put(text: str) -> int:
    """Print *text*; return 0, or the exit code if it can't be written: no fault of the ledger."""
    try:
        print(text, flush=True)
    except OSError as err:
        # What is left in the buffer must not fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(err, BrokenPipeError):  # as with `| head`
            return READER_GONE
        print(f"ledger: the output could not be written: {err.strerror}", file=sys.stderr)
        return EXIT_FINDINGS
    return 0


if __name__ == "__main__":
    sys.exit(main())
