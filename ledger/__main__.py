"""Look at a ledger where nothing else works: `python -m ledger check DIR` and `dump DIR`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ledger import codec, invariants
from ledger.archive import ARCHIVE
from ledger.codec import Checkpoint, Commit, Malformed, Tables
from ledger.errors import CODES, AxernError, LedgerError
from ledger.files import Folder, translate
from ledger.journal import Scan, segments
from ledger.reader import stable
from ledger.recovery import NODE_ID

EXIT_FINDINGS = 1
EXIT_USAGE = 2
READER_GONE = 128 + 13
"""What a shell shows for a program that SIGPIPE ended."""


@dataclass(slots=True)
class Contents:
    """What the files say, put together without `state`: rows, and every posting since."""

    base: Checkpoint
    tables: Tables
    generation: int
    postings: list[tuple[str, str, int]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)

    def take(self, commit: Commit) -> None:
        """Add what *commit* did."""
        self.generation = commit.generation
        for change in commit.changes:
            sums: dict[str, int] = {}
            for account, pool, amount in change.postings:
                self.postings.append((account, pool, amount))
                sums[pool] = sums.get(pool, 0) + amount
            self.findings += [
                f"generation {commit.generation}: {change.operation} is off by {total} in {pool}"
                for pool, total in sums.items()
                if total
            ]
            for put in change.puts:
                if put.row is None:
                    self.tables[put.table].pop(put.key, None)
                else:
                    self.tables[put.table][put.key] = put.row


def read(folder: Folder) -> Contents:
    """Return what the files in *folder* say.

    Raises:
        LedgerError: They can't be trusted, or change too fast to be read.
        OSError: They can't be read.
    """
    return stable(folder, _replay)


def _replay(folder: Folder, base: Checkpoint) -> Contents:
    rows = {name: dict(table) for name, table in base.tables.items()}
    contents = Contents(base, rows, base.generation)
    scan = Scan(folder, base.position, base.generation)
    for commit in scan:
        contents.take(commit)
    if scan.torn:
        contents.findings.append(
            f"{scan.position.segment}, offset {scan.position.offset}: a torn line, which was never "
            "answered; the next start of axernd drops it"
        )
    return contents


def examine(folder: Folder, contents: Contents) -> list[str]:
    """Return everything that is wrong with *contents* or beside them."""
    closing, unbalanced = invariants.trial_balance(contents.base.balances, contents.postings)
    found = [*contents.findings]
    found += [f"trial balance: {violation.message}" for violation in unbalanced]
    found += [violation.message for violation in invariants.check(contents.tables, closing)]
    if not folder.exists(NODE_ID):
        found.append(f"the file {NODE_ID} is missing; the next start of axernd makes it again")
    elif folder.read(NODE_ID).decode(errors="replace").strip() != contents.base.node_id:
        found.append(f"the file {NODE_ID} names another node than {contents.base.node_id}")
    return [*found, *_examine_past(folder, contents.base)]


def _examine_past(folder: Folder, base: Checkpoint) -> Iterator[str]:
    """Yield what is wrong with the lines before the checkpoint; what came before them is gone."""
    folders = [folder]
    if folder.exists(ARCHIVE):
        folders.append(Folder(os.path.join(folder.path, ARCHIVE)))
    found = {first: (place, name) for place in folders for first, name in segments(place).items()}
    firsts = sorted(first for first in found if first <= base.generation)
    chain: str | None = None
    for first, following in pairwise([*firsts, base.generation + 1]):
        place, name = found[first]
        generation, data, offset = first - 1, place.read(name), 0
        while generation + 1 < following:
            end = data.find(b"\n", offset) + 1
            try:
                commit = codec.decode_commit(data[offset:end], chain)
                if commit.generation != generation + 1:
                    raise Malformed(f"generation {commit.generation} follows {generation}")
            except Malformed as err:
                yield f"{os.path.join(place.path, name)}, offset {offset}: {err}"
                chain = None
                break
            chain, generation, offset = commit.chain, commit.generation, end
    if chain not in (None, base.position.chain):
        yield f"the checkpoint does not stand on the chain of generation {base.generation}"
    for place in folders[1:]:
        place.close()


def as_document(contents: Contents) -> dict[str, Any]:
    """Return the present state as one JSON object."""
    closing, _ = invariants.trial_balance(contents.base.balances, contents.postings)
    accounts: dict[str, dict[str, int]] = {}
    for (account, pool), amount in sorted(closing.items()):
        accounts.setdefault(account, {})[pool] = amount
    rows = {
        name: {key: json.loads(codec.encode_row(row)) for key, row in table.items()}
        for name, table in contents.tables.items()
    }
    return {
        "schema": contents.base.schema,
        "node_id": contents.base.node_id,
        "generation": contents.generation,
        "balances": accounts,
        "tables": rows,
    }


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
        contents = read(folder)
        if command == "dump":
            return 0, json.dumps(as_document(contents), indent=2)
        found = examine(folder, contents)
    finally:
        folder.close()
    if found:
        return EXIT_FINDINGS, "\n".join(found)
    entries = len(contents.tables["reservations"])
    noun = "reservation" if entries == 1 else "reservations"
    return 0, f"in order: generation {contents.generation}, {entries} {noun}"


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
