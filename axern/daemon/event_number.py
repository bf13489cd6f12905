"""The number of an event: where it stands among all others, for good.

`4711.2` is the second thing that commit 4711 did, `4711~88` the 88th note, taken behind that
commit. `4711` alone stands for no event: it is the place right behind the commit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ledger.errors import InvalidArgument
from ledger.units import MAX_INTEGER

_SPELLED = re.compile(r"(0|[1-9][0-9]{0,15})(?:([.~])([1-9][0-9]{0,15}))?", re.ASCII)
_LAST = MAX_INTEGER + 1
"""Behind everything that a commit did."""


class Number(NamedTuple):
    """A place in the order of all events: what a commit did comes before the notes behind it."""

    generation: int
    is_note: bool
    place: int

    def __str__(self) -> str:
        """Return its spelling."""
        if self.place == _LAST:
            return str(self.generation)
        return f"{self.generation}{'~' if self.is_note else '.'}{self.place}"

    @property
    def after(self) -> int:
        """Return the last commit of which nothing comes behind this place."""
        return self.generation if self.is_note or self.place == _LAST else self.generation - 1


def behind(generation: int) -> Number:
    """Return the place behind all that the commit *generation* did."""
    return Number(generation, False, _LAST)  # noqa: FBT003 - a field of a tuple


def of_commit(generation: int, place: int) -> Number:
    """Return the number of what commit *generation* did in *place*."""
    return Number(generation, False, place)  # noqa: FBT003 - a field of a tuple


def of_note(generation: int, told: int) -> Number:
    """Return the number of the note *told*, taken behind commit *generation*."""
    return Number(generation, True, told)  # noqa: FBT003 - a field of a tuple


def parse(text: str, name: str) -> Number:
    """Return the number that *text* spells.

    Raises:
        InvalidArgument: It is none; *name* is named.
    """
    match = _SPELLED.fullmatch(text)
    if match is None:
        raise InvalidArgument(
            f"{name}: {text[:40]!r} is no number of an event",
            hint="for example 4711.2, 4711~88, or 4711 for all behind that commit",
        )
    generation, kind, place = match.groups()
    if kind is None:
        return behind(int(generation))
    return Number(int(generation), kind == "~", int(place))
