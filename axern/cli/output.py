"""What goes out: data on standard output, talk on standard error, written straight to them.

Everything passes `write`, so that nothing is buffered, bytes stay bytes, and a signal handler may
speak at any moment. Text that a user chose is shown, never obeyed: no markup, no control codes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from ledger.dimensions import BY_NAME
from ledger.errors import CODES, AxernError
from ledger.units import format_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ledger.dimensions import Dimension

STDOUT = 1
STDERR = 2
ABSENT = "-"
"""What a table shows for null."""
SHORT_ID = 12

_GAP = "  "
_REFUSALS = (3, 4)
"""Exit codes of a decision by admission, as opposed to a failure."""


class OutputClosed(Exception):
    """Nobody reads standard output any more, as after `| head`: no reason to say anything."""


class OutputFailed(AxernError):
    """Standard output could not be written, for example because a disk is full."""


def write(descriptor: int, data: bytes) -> None:
    """Write all of *data*; wait where the other end is slow.

    Raises:
        OutputClosed: The other end is closed.
        OutputFailed: The kernel says why not.
    """
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            # Another process made the shared terminal or pipe non-blocking.
            from select import select

            select([], [descriptor], [])
        except BrokenPipeError as error:
            raise OutputClosed from error
        except OSError as error:
            raise OutputFailed(f"the output could not be written: {error.strerror}") from error


def put(text: str) -> None:
    """Write *text* and a line end to standard output."""
    write(STDOUT, f"{text}\n".encode("utf-8", "backslashreplace"))


def say(text: str) -> None:
    """Tell a person *text*, on standard error; silence where nobody listens is no failure."""
    import contextlib

    with contextlib.suppress(OutputClosed, OutputFailed):
        write(STDERR, f"{visible(text)}\n".encode("utf-8", "backslashreplace"))


def visible(text: str) -> str:
    """Return *text* with whatever is not printable spelled out, as Python escapes it."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def put_json(value: object) -> None:
    """Write *value* as one JSON document; ASCII, so that no terminal can be driven by it."""
    import json

    put(json.dumps(value, indent=2))


def put_ndjson(rows: Iterable[object]) -> None:
    """Write one JSON document a line."""
    import json

    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    if lines:
        put("\n".join(lines))


def counted(count: int, one: str, many: str = "") -> str:
    """Return *count* and what is counted: `1 run`, `1,000 runs`."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def amount(dimension: Dimension, value: int | None) -> str:
    """Return *value* as a table shows it: exact where that is short, else rounded down."""
    return ABSENT if value is None else format_short(value, dimension.format)


def amounts(values: Mapping[str, int | None]) -> str:
    """Return the amounts of a JSON object on one line: `CPU 500m, memory 4GiB`."""
    shown = (
        f"{BY_NAME[name].label} {amount(BY_NAME[name], value)}"
        for name, value in values.items()
        if name in BY_NAME and value
    )
    return ", ".join(shown) or "none"


def owner(row: Mapping[str, Any]) -> str:
    """Return who owns *row*, on one line."""
    name = f" {row['name']}" if row["name"] else ""
    return f"{row['kind']}{name} (uid {row['uid']})"


def put_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Write one `name: value` line each, the values in one column."""
    pairs = [(name, cell(value)) for name, value in fields]
    width = max(len(name) for name, _ in pairs) + 1
    put("\n".join(f"{name + ':':<{width}} {value}" for name, value in pairs))


def cell(value: object) -> str:
    """Return what a table shows for the JSON value *value*."""
    if value is None or value == "":
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return visible(str(value))


def describe(error: AxernError) -> dict[str, Any]:
    """Return *error* as the structure that every answer of Axern uses for one."""
    known = getattr(error, "error", None)
    if isinstance(known, dict):
        return known
    row = CODES.get(error.code)
    return {
        "code": error.code,
        "retryable": row.retryable if row else False,
        "message": error.message,
        "hint": error.hint,
    }


def exit_code(error: AxernError) -> int:
    """Return what a command ends with because of *error*; a code we do not know yet is a 1."""
    row = CODES.get(error.code)
    return row.exit_code if row else 1


def complain(error: AxernError) -> None:
    """Tell a person about *error*: the rule with its numbers, the code, and what to do next."""
    known = getattr(error, "error", None)
    if isinstance(known, dict) and "would_fit_if" in known:
        from axern.cli import refusal

        if refusal.is_known(known):
            for line in refusal.lines(known):
                say(line)
            return
    refused = "refused: " if exit_code(error) in _REFUSALS else ""
    say(f"axern: {refused}{error.message} [{error.code}]")
    if error.hint:
        say(f"  hint: {error.hint}")


def report(error: AxernError, *, as_json: bool) -> None:
    """Tell about *error*: a person on standard error, and a program where its answer would be.

    Raises:
        OutputClosed: Nobody reads standard output; not raised where it can't be written.
    """
    complain(error)
    if not as_json or isinstance(error, OutputFailed):
        return
    try:
        put_json({"error": describe(error)})
    except OutputFailed as failed:
        complain(failed)
