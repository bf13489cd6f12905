"""A refusal for people: at most twelve lines of eighty columns, made from the JSON structure."""

from __future__ import annotations

from axern.cli.output import SHORT_ID, amount, visible
from axern.cli.when import ahead, span
from ledger.dimensions import BY_NAME
from ledger.units import format_short

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

LINES = 12
COLUMNS = 80
_SHORTFALLS = 3
_IDS = 3
_NAME_COLUMNS = 16
_INDENT = "  "


def is_known(error: object) -> bool:
    """Tell whether *error* is the structure of a refusal with numbers, as this version has it."""
    return isinstance(error, dict) and "would_fit_if" in error and bool(error["shortfalls"])


def lines(error: Json, begin: str = "axern: refused: ") -> list[str]:
    """Return *error* in lines; the first begins with *begin*."""
    code = f"[{error['code']}]"
    head = [f"{begin}{error['admission_summary']} {code}"]
    if len(head[0]) > COLUMNS:
        head = [f"{begin}{error['admission_summary']}", _INDENT + code]
    head += _shortfalls(error["shortfalls"])
    tail = [f"it fits {_way(way)}" for way in error["would_fit_if"]]
    when = _when(error)
    tail += [when] if when else []
    tail += [f"hint: {error['hint']}"] if error["hint"] else []
    room = max(1, LINES - len(head) - len(tail))
    body = [_holder(holder) for holder in _foremost(error["holders"], room)]
    texts = head + [_INDENT + text for text in (*body, *tail)]
    return [_cut(visible(text)) for text in texts]


def _shortfalls(shortfalls: list[Json]) -> list[str]:
    texts = [_INDENT + _shortfall(each) for each in shortfalls]
    if len(texts) <= _SHORTFALLS:
        return texts
    kept = _SHORTFALLS - 1
    others = ", ".join(f"{each['gate']} {_label(each)}" for each in shortfalls[kept:])
    return [*texts[:kept], f"{_INDENT}and short in {others}"]


def _shortfall(short: Json) -> str:
    return (
        f"{short['gate']} {_label(short)}: {_up(short, 'requested')} asked for, "
        f"{_down(short, 'available')} left of {_down(short, 'limit')}, "
        f"{_up(short, 'short_by')} short"
    )


def _label(entry: Json) -> str:
    dimension = BY_NAME.get(entry["dimension"])
    return dimension.label if dimension else str(entry["dimension"])


def _down(entry: Json, name: str) -> str:
    dimension = BY_NAME.get(entry["dimension"])
    return amount(dimension, entry[name]) if dimension else str(entry[name])


def _up(entry: Json, name: str) -> str:
    dimension = BY_NAME.get(entry["dimension"])
    return format_short(entry[name], dimension.format, up=True) if dimension else str(entry[name])


def _foremost(holders: list[Json], room: int) -> list[Json]:
    """Return *room* of the holders: the first at each gate, then the second, in their order."""
    ranks: dict[tuple[str, str], int] = {}
    ranked = []
    for place, holder in enumerate(holders):
        key = (holder["gate"], holder["dimension"])
        ranks[key] = ranks.get(key, 0) + 1
        ranked.append((ranks[key], place))
    return [holders[place] for place in sorted(place for _, place in sorted(ranked)[:room])]


def _holder(holder: Json) -> str:
    kind = holder["kind"]
    if kind == "reservation":
        who = f"by {holder['id'][:SHORT_ID]}"
    elif kind == "claim":
        who = "for a claim"
    elif kind == "queue":
        who = "for the queue's head"
    else:
        who = f"by {holder['count']} others"
    words = [f"{_down(holder, 'amount')} {_label(holder)} held {who}"]
    if holder["namespace"]:
        words.append(_short_name(holder["namespace"]))
    if holder["owner"]:
        words.append(f"uid {holder['owner']['uid']}")
    if holder["phase"]:
        words.append(holder["phase"])
    if holder["expires_at"]:
        words.append(f"ends {ahead(holder['expires_at'])}")
    return ", ".join(words)


def _short_name(name: str) -> str:
    return name if len(name) <= _NAME_COLUMNS else f"{name[: _NAME_COLUMNS - 1]}…"


def _way(way: Json) -> str:
    if "request" in way:
        flags = (
            f"--request-{BY_NAME[name].flag} {_exact(name, value)}"
            for name, value in way["request"].items()
        )
        return f"with {' '.join(flags)}"
    ids = [key[:SHORT_ID] for key in way["release"]]
    shown = [*ids] if len(ids) <= _IDS else [*ids[: _IDS - 1], f"{len(ids) - _IDS + 1} more"]
    if way["release_others"]:
        shown.append(f"{way['release_others']} of others")
    verb = "has" if len(ids) + way["release_others"] == 1 else "have"
    return f"once {', '.join(shown)} {verb} ended"


def _exact(name: str, value: int) -> str:
    """Return an amount as a flag takes it, rounded down to what can be read."""
    dimension = BY_NAME[name]
    if dimension.flag in {"cpu", "sandbox-slots"}:
        return dimension.format(value)
    mebibytes = value // 1024**2
    return dimension.format(mebibytes * 1024**2) if mebibytes else dimension.format(value)


def _when(error: Json) -> str | None:
    """Return when it fits by itself, and when to try again."""
    parts = []
    if error["earliest_fit_at"]:
        parts.append(f"it fits {ahead(error['earliest_fit_at'])}, unless leases are renewed")
    if error["retry_after_s"]:
        parts.append(f"try again in {span(error['retry_after_s'])}")
    return "; ".join(parts) or None


def _cut(text: str) -> str:
    return text if len(text) <= COLUMNS else f"{text[: COLUMNS - 1]}…"
