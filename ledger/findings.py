"""One thing that is wrong, as every tool tells it: a code, how bad it is, where, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

WARNING = "warning"
PROBLEM = "problem"
DAMAGE = "damage"
"""`DAMAGE` is a problem for which nobody opens the ledger until it is repaired."""

SEVERITIES = (WARNING, PROBLEM, DAMAGE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: `found` says what was seen, `remedy` what to type.

    `id` names what it is about: an entry, a file with an offset, an account.
    """

    code: str
    severity: str
    id: str
    found: str
    remedy: str
