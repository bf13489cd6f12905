"""What `axern ledger repair` does: a copy, a plan, and the exchange where that was asked for."""

from __future__ import annotations

from axern.cli.output import counted, put, put_fields, put_json, visible
from ledger.errors import InvalidArgument
from ledger.release import require_reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from axern.runtime.ledger_repair import Repair

    Json = dict[str, Any]

_WAITS = 1
_MOST_SHOWN = 10


def repair(where: Where, *, apply: bool, reason: str | None, output: str) -> int:
    """Print what is kept and where it is; return 0, or 1 where a plan waits to be applied."""
    _check(apply=apply, reason=reason)
    from axern.config import load
    from axern.runtime import ledger_repair

    done = ledger_repair.repair(load(where.config), reason, apply=apply)
    if output == "json":
        put_json(_view(done))
    elif done is None:
        put("nothing to repair: the ledger opens; to look closer: axern ledger check")
    else:
        _put(done, apply=apply)
    return 0 if done is None or apply else _WAITS


def _check(*, apply: bool, reason: str | None) -> None:
    if apply and reason is None:
        raise InvalidArgument(
            "--apply needs --reason TEXT, of 1 to 256 characters",
            hint="it stands in the journal behind the repair",
        )
    if reason is not None:
        try:
            require_reason(reason)
        except InvalidArgument as error:
            error.message = f"--{error.message}"
            raise


def _view(done: Repair | None) -> Json:
    from dataclasses import asdict

    if done is None:
        return {"plan": None, "copy": None, "damaged": None, "applied": False}
    plan = asdict(done.plan)
    return {
        "plan": plan,
        "copy": done.copy,
        "damaged": done.damaged,
        "applied": done.damaged is not None,
    }


def _put(done: Repair, *, apply: bool) -> None:
    plan = done.plan
    lost = plan.claimed - plan.kept
    put_fields(
        [
            ("damage", plan.why),
            ("begins with", plan.start),
            ("kept", f"{_commits(plan.kept)}, {counted(plan.entries, 'reservation')}"),
            ("given up", _given_up(plan.kept, plan.claimed) if lost else "nothing"),
            ("goes on at", f"generation {plan.claimed + 1}"),
        ]
    )
    if plan.recounted:
        put("the accounts contradicted the entries, and are computed anew from them")
    for each in plan.dropped[:_MOST_SHOWN]:
        words = f"given up, though whole by itself: generation {each.generation}, "
        put(visible(words + f"{', '.join(each.operations)} {' '.join(each.ids)}".rstrip()))
    if len(plan.dropped) > _MOST_SHOWN:
        put(f"and {len(plan.dropped) - _MOST_SHOWN} more: --output json has all")
    put("")
    if apply:
        put_fields(
            [
                ("repaired", done.copy),
                ("damaged files", f"{done.damaged}"),
                ("next", "axern ledger check, then start axernd"),
            ]
        )
    else:
        put_fields(
            [
                ("copy", done.copy),
                ("look at it", f"python -m ledger check {done.copy}"),
                ("apply", "axern ledger repair --apply --reason TEXT"),
            ]
        )


def _commits(generation: int) -> str:
    return f"generation {generation}"


def _given_up(kept: int, claimed: int) -> str:
    first = kept + 1
    return f"generation {first}" if first == claimed else f"generations {first} to {claimed}"
