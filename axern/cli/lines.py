"""Lines of a log for people: one each, or more where the terminal is too narrow."""

from __future__ import annotations

import os

from axern.cli.output import STDOUT, put, visible
from axern.cli.table import fold, width_of

_INDENT = "    "
_LEAST_WIDTH = 40


def put_line(head: str, rest: str) -> None:
    """Write *head* and *rest* on one line, or *rest* folded below *head*."""
    line = visible(f"{head} {rest}".rstrip())
    width = _width()
    if width is None or width_of(line) <= width:
        put(line)
        return
    width = max(_LEAST_WIDTH, width)
    begin = visible(head.rstrip())
    parts = [begin] if width_of(begin) <= width else fold(begin, width)
    put("\n".join(part.rstrip() for part in parts))
    for part in fold(visible(rest), width - len(_INDENT)) if rest else ():
        put(_INDENT + part)


def _width() -> int | None:
    if not os.isatty(STDOUT):
        return None
    import shutil

    return shutil.get_terminal_size().columns
