"""What `axern ledger replay` does: every decision again, and where the first one differs."""

from __future__ import annotations

from axern.cli.output import counted, put, put_fields, put_json
from axern.cli.when import moment_ms
from ledger.units import format_rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.decisions import Outcome
    from ledger.difference import Difference

    Json = dict[str, Any]

_LONGEST_GENERATION = 16
_CAPPED, _DIFFERS = 1, 3


def replay(where: Where, *, to: str | None, output: str) -> int:
    """Print what came of it; return 0, 1 where only caps differ, 3 at a difference."""
    from axern.config import load
    from ledger import decisions
    from ledger.admission import AdmissionPolicy

    settings = load(where.config)
    policy = AdmissionPolicy(
        settings.entry_cap, settings.namespace_entry_cap, settings.facts_stale_after_ms
    )
    generation, until_ms = _bound(to)
    outcome = decisions.replay(
        where.ledger_dir, policy, to_generation=generation, to_wall_ms=until_ms
    )
    if output == "json":
        put_json(_view(outcome))
    else:
        _put(outcome)
    if outcome.difference is not None:
        return _DIFFERS
    return _CAPPED if outcome.capped else 0


def _bound(to: str | None) -> tuple[int | None, int | None]:
    """Return (generation, None), (None, time in milliseconds), or neither."""
    if to is None:
        return None, None
    if to.isascii() and to.isdecimal() and len(to) <= _LONGEST_GENERATION:
        return int(to), None
    return None, moment_ms(to, "--to")


def _view(outcome: Outcome) -> Json:
    from dataclasses import asdict

    accounts: dict[str, dict[str, int]] = {}
    for (account, pool), amount in sorted(outcome.state.balances().items()):
        accounts.setdefault(account, {})[pool] = amount
    return {
        "since_generation": outcome.since,
        "generation": outcome.state.generation,
        "at": _at(outcome),
        "operations": outcome.operations,
        "decisions": outcome.decisions,
        "reservations": outcome.state.entry_count(),
        "balances": accounts,
        "capped": [asdict(each) for each in outcome.capped],
        "difference": asdict(outcome.difference) if outcome.difference else None,
    }


def _at(outcome: Outcome) -> str | None:
    wall_ms = outcome.state.clock.wall_ms
    return format_rfc3339(wall_ms) if wall_ms else None


def _put(outcome: Outcome) -> None:
    came = counted(outcome.operations, "operation")
    decided = counted(outcome.decisions, "grant")
    begun = "the first commit" if outcome.since == 0 else f"the rows of generation {outcome.since}"
    there = counted(outcome.state.entry_count(), "reservation")
    put_fields(
        [
            ("begun with", begun),
            ("reached", f"generation {outcome.state.generation}, {_at(outcome)}, {there}"),
            ("decided again", f"{came}, {decided} among them"),
        ]
    )
    for each in outcome.capped:
        put("\nonly the caps of today's configuration would refuse this:")
        _put_difference(each)
    if outcome.difference is not None:
        put("\nthis comes out otherwise, and nothing behind it was decided again:")
        _put_difference(outcome.difference)
    elif not outcome.capped:
        put("everything comes out as it was journaled")


def _put_difference(each: Difference) -> None:
    put_fields(
        [
            (each.kind, f"generation {each.generation}, {each.operation} {each.id}"),
            ("journaled", each.journaled),
            ("recomputed", each.recomputed),
            ("place", each.place),
        ]
    )
