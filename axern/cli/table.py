"""Tables for people: columns that fit the terminal, measured as a terminal measures them.

A pipe gets every column in full. On a terminal that is too narrow, text that may be long is cut or
folded first, then the least important columns are left out, and at last each row becomes a block of
its own. Programs read JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from axern.cli.output import STDOUT, cell, put, put_fields, put_json, put_ndjson, say
from ledger.frozen import frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal


_GAP = "  "
_ELLIPSIS = "…"
_RESET = "\x1b[0m"
_BOLD = "\x1b[1m"
_GOOD, _WARNING, _BAD = "\x1b[32m", "\x1b[33m", "\x1b[31m"
_COLOURS = {
    **dict.fromkeys(("running", "active", "succeeded", "present", "ok"), _GOOD),
    **dict.fromkeys(
        ("starting", "stopping", "retiring", "stale", "cancelled", "unobserved", "warning"),
        _WARNING,
    ),
    **dict.fromkeys(("failed", "expired", "absent", "problem", "error"), _BAD),
}
"""What a status looks like; words that are not here keep the terminal's own colour."""


@frozen
class Column:
    """One column of a table.

    Attributes:
        heading: Its first line.
        long: What may happen to its text where a terminal is narrow: `keep` it, `cut` its end, or
            `fold` it onto more lines.
        least: A cut or folded column is never narrower than this.
        rank: Columns of the highest rank are left out first where nothing else helps; 0 never is.
        right: Numbers stand at the right.
        status: Its words are shown in colour where the terminal has any.
    """

    heading: str
    long: Literal["keep", "cut", "fold"] = "keep"
    least: int = 16
    rank: int = 0
    right: bool = False
    status: bool = False


Header = Sequence[Column | str]
"""A heading alone is a column that is kept as it is."""


def put_table(header: Header, rows: Sequence[Sequence[object]]) -> None:
    """Write a table of JSON values; what no terminal could show is spelled out."""
    columns = [Column(entry) if isinstance(entry, str) else entry for entry in header]
    texts = [[cell(value) for value in row] for row in rows]
    kept = _fitting(columns, texts, _terminal_width())
    if kept is None:
        _put_blocks(columns, texts)
        return
    paint = _painter() if _has_colour() else _plain
    picked = [columns[number] for number, _ in kept]
    widths = [width for _, width in kept]
    lines = [_line([column.heading for column in picked], picked, widths, lambda _, text: text)]
    for row in texts:
        lines += _folded([row[number] for number, _ in kept], picked, widths, paint)
    lines[0] = paint(None, lines[0])
    put("\n".join(lines))
    hidden = [column.heading for column in columns if column not in picked]
    if hidden:
        say(f"(not shown for lack of width: {', '.join(hidden)})")


def put_list(
    answer: Mapping[str, Any],
    name: str,
    form: str,
    header: Header,
    line: Callable[[Any], Sequence[object]],
) -> None:
    """Write the list *name* of *answer* in the *form* text, table, json or ndjson.

    Args:
        answer: What json shows whole.
        name: The key of the list, whose rows the other forms show.
        form: One of those.
        header: The table's columns.
        line: Returns the table's cells of one row.
    """
    if form == "json":
        put_json(answer)
    elif form == "ndjson":
        put_ndjson(answer[name])
    else:
        put_table(header, [line(row) for row in answer[name]])


def width_of(text: str) -> int:
    """Return how many cells of a terminal *text*, printable, takes. Source: UAX #11, UAX #44."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0
        if unicodedata.category(char) in {"Mn", "Me"}
        else 2
        if unicodedata.east_asian_width(char) in "WF"
        else 1
        for char in text
    )


def cut(text: str, width: int) -> str:
    """Return *text* in at most *width* cells, its lost end shown as one character."""
    if width_of(text) <= width:
        return text
    return _beginning(text, width - 1) + _ELLIPSIS


def fold(text: str, width: int) -> list[str]:
    """Return *text* in lines of at most *width* cells, broken at spaces where there are some."""
    lines = [""]
    for word in text.split(" "):
        glued = f"{lines[-1]} {word}" if lines[-1] else word
        if width_of(glued) <= width:
            lines[-1] = glued
            continue
        if lines[-1]:
            lines.append("")
        rest = word
        while width_of(rest) > width:
            part = _beginning(rest, width)
            lines[-1:] = [part, ""]
            rest = rest[len(part) :]
        lines[-1] = rest
    return lines


def _beginning(text: str, width: int) -> str:
    """Return as much of *text* as fits into *width* cells, at least one character."""
    end, taken = 0, 0
    for char in text:
        taken += width_of(char)
        if taken > width and end:
            break
        end += 1
    return text[:end]


def _fitting(
    columns: list[Column], texts: list[list[str]], limit: int | None
) -> list[tuple[int, int]] | None:
    """Return number and width of each column that fits into *limit* cells; None if none does.

    A table without rows is its header, whatever the width.
    """
    natural = [
        max([width_of(column.heading), *(width_of(row[number]) for row in texts)])
        for number, column in enumerate(columns)
    ]
    numbers = list(range(len(columns)))
    while True:
        widths = [natural[number] for number in numbers]
        excess = 0 if limit is None else sum(widths) + len(_GAP) * (len(widths) - 1) - limit
        if excess <= 0 or not texts:
            return list(zip(numbers, widths, strict=True))
        flexible = [number for number in numbers if columns[number].long != "keep"]
        room = {
            number: max(0, natural[number] - max(columns[number].least, _heading(columns[number])))
            for number in flexible
        }
        if sum(room.values()) >= excess:
            for number in sorted(flexible, key=lambda number: -room[number]):
                taken = min(excess, room[number])
                widths[numbers.index(number)] -= taken
                excess -= taken
            return list(zip(numbers, widths, strict=True))
        highest = max(columns[number].rank for number in numbers)
        if not highest:
            return None
        numbers.remove(next(n for n in reversed(numbers) if columns[n].rank == highest))


def _heading(column: Column) -> int:
    return width_of(column.heading)


Paint = Callable[[Column | None, str], str]
"""Gives a cell of a column its colours; None is the header."""


def _folded(row: list[str], columns: list[Column], widths: list[int], paint: Paint) -> list[str]:
    """Return the lines of one row."""
    cells = [
        fold(text, width) if column.long == "fold" else [cut(text, width)]
        for text, column, width in zip(row, columns, widths, strict=True)
    ]
    height = max(map(len, cells), default=1)
    return [
        _line([part[level] if level < len(part) else "" for part in cells], columns, widths, paint)
        for level in range(height)
    ]


def _line(cells: list[str], columns: list[Column], widths: list[int], paint: Paint) -> str:
    parts = []
    for text, column, width in zip(cells, columns, widths, strict=True):
        blank = " " * (width - width_of(text))
        shown = paint(column, text)
        parts.append(blank + shown if column.right else shown + blank)
    return _GAP.join(parts).rstrip()


def _put_blocks(columns: list[Column], texts: list[list[str]]) -> None:
    names = [column.heading.lower() for column in columns]
    for number, row in enumerate(texts):
        if number:
            put("")
        put_fields(zip(names, row, strict=True))


def _terminal_width() -> int | None:
    """Return how wide the terminal is, or None where standard output is none."""
    if not os.isatty(STDOUT):
        return None
    import shutil

    return shutil.get_terminal_size().columns


def _has_colour() -> bool:
    """Tell whether the terminal shall show colours. Source: no-color.org; TERM=dumb has none."""
    return (
        os.isatty(STDOUT)
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "dumb") != "dumb"
    )


def _painter() -> Paint:
    def paint(column: Column | None, text: str) -> str:
        if column is None:
            return f"{_BOLD}{text}{_RESET}"
        colour = _COLOURS.get(text) if column.status else None
        return f"{colour}{text}{_RESET}" if colour else text

    return paint


def _plain(_column: Column | None, text: str) -> str:
    return text
