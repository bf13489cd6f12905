"""Variables for a run: `--env` words, and files of them in the form that container engines read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from ledger.errors import InvalidArgument

FILE_LIMIT_BYTES = 1024**2
STANDARD_INPUT = "-"


def environment(words: Sequence[str], files: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables of *files* and of `KEY=VALUE` *words*; what comes later wins.

    `KEY` alone is taken from this process.

    Raises:
        InvalidArgument: No name, a variable that is not set here, a file that can't be read.
    """
    variables: dict[str, str] = {}
    for path in files:
        variables |= dict(_file(path))
    return variables | dict(_variable(word, "--env") for word in words)


def _variable(word: str, place: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name:
        raise InvalidArgument(
            f"{place}: there is no name before the '='", hint="for example LANG=C"
        )
    if not equals:
        if name not in os.environ:
            raise InvalidArgument(
                f"{place}: {name} is not set here, so it can't be passed on",
                hint=f"give it a value: {name}=VALUE",
            )
        value = os.environ[name]
    return name, value


def _file(path: str) -> Iterator[tuple[str, str]]:
    r"""Yield the variables of the file *path*: `KEY=VALUE` or `KEY` a line, `#` for comments.

    The value is everything up to the end of the line, quotes and spaces as they are.
    """
    for number, line in enumerate(read_text(path, "--env-file").split("\n"), start=1):
        text = line.removesuffix("\r").lstrip()
        if not text or text.startswith("#"):
            continue
        place = f"--env-file: {path}, line {number}"
        name, equals, _ = text.partition("=")
        # Without a '=' it may be the rest of a value, and a secret.
        what = repr(name[:64]) if equals else "the line has no '=' and"
        if any(character.isspace() for character in name):
            raise InvalidArgument(
                f"{place}: {what} has a space in it, which no variable's name may have",
                hint="one KEY=VALUE a line, without 'export' or spaces around the '='",
            )
        yield _variable(text, place)


def read_text(path: str, flag: str) -> str:
    """Return the text of the file *path* that *flag* names, `-` for standard input, without a BOM.

    Raises:
        InvalidArgument: It can't be read, is too large, or is not UTF-8.
    """
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(FILE_LIMIT_BYTES + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            raise InvalidArgument(f"{flag}: {path} is larger than 1MiB")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidArgument(f"{flag}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(f"{flag}: {path}, line {line}: it is not UTF-8 text") from error
