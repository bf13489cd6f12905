"""A seeded fault: one small change of one place in the ledger, and what it breaks."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """Replace `old`, which stands in `file` once, by `new`; `breaks` says what is wrong then."""

    file: str
    old: str
    new: str
    breaks: str

    def planted(self, text: str) -> str:
        """Return *text*, the content of `file`, with the fault in it.

        Raises:
            ValueError: The place is not there, or there are several.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)
