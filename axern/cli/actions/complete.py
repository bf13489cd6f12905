"""Shell completion: the scripts, and the hidden command behind them that finds the words.

It answers in lines of a word, a tab and what the word means; `:files` and `:folders` stand for
what the shell itself knows best. It is silent about every trouble, and quick: a person waits.
"""

from __future__ import annotations

import os
import signal

from axern.cli.completion import Candidate, place
from axern.cli.output import SHORT_ID, put, visible
from ledger.errors import AxernError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

LIMIT_S = 1.0
"""However the daemon stands, the shell has its prompt back by then."""
_OF_THE_SHELL = ("files", "folders")
_LONGEST_HELP = 60
_HERE = os.path.dirname(os.path.dirname(__file__))


def script(_where: Where, *, shell: str) -> None:
    """Write the completion script of *shell*."""
    with open(f"{_HERE}/completions/{shell}", encoding="utf-8") as file:
        put(file.read().rstrip("\n"))


def words(where: Where, *, words: tuple[str, ...]) -> None:
    """Write what may stand for the last of *words*, those behind `axern` so far."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    found = place(list(words))
    lines = [_line(candidate) for candidate in found.candidates]
    if found.source in _OF_THE_SHELL:
        lines.append(f":{found.source}")
    elif found.source is not None:
        where.config = found.options.get("config", where.config)
        where.socket = found.options.get("socket", where.socket)
        last = words[-1] if words else ""
        lines += [
            _line((f"{found.prefix}{word}", help_text))
            for word, help_text in _known(where, found.source, last.removeprefix(found.prefix))
        ]
    if lines:
        put("\n".join(lines))


def _line(candidate: Candidate) -> str:
    word, help_text = candidate
    short = visible(help_text)[:_LONGEST_HELP]
    return f"{visible(word)}\t{short}" if short else visible(word)


def _known(where: Where, source: str, last: str) -> list[Candidate]:
    """Return what the daemon knows of *source* that begins with *last*; nothing if it is away."""
    target, read = _SOURCES[source]
    try:
        with where.client() as client:
            answer = client.request("GET", target)
        return [pair for pair in read(answer, last) if pair[0].startswith(last)]
    except (AxernError, KeyError, TypeError):
        return []


def _shown_id(row: Json, last: str) -> str:
    """Return as much of an id as tables show, or all where more than that was typed."""
    return str(row["id"])[: SHORT_ID if len(last) <= SHORT_ID else None]


def _runs(answer: Json, last: str) -> list[Candidate]:
    return [
        (_shown_id(row, last), f"{row['status']} {' '.join(row['command'] or ())}")
        for row in answer["runs"]
    ]


def _reservations(answer: Json, last: str) -> list[Candidate]:
    return [
        (_shown_id(row, last), f"{row['phase']} in {row['namespace']}")
        for row in answer["reservations"]
    ]


def _templates(answer: Json, _last: str) -> list[Candidate]:
    return [(str(row["name"]), "") for row in answer["templates"]]


def _namespaces(answer: Json, _last: str) -> list[Candidate]:
    return [(str(row["name"]), "") for row in answer["namespaces"]]


def _claims(answer: Json, last: str) -> list[Candidate]:
    return [(_shown_id(row, last), f"of {row['namespace']}") for row in answer["claims"]]


_SOURCES: dict[str, tuple[str, Callable[[Json, str], list[Candidate]]]] = {
    "runs": ("/v2/runs", _runs),
    "reservations": ("/v2/reservations", _reservations),
    "templates": ("/v2/templates", _templates),
    "namespaces": ("/v2/namespaces", _namespaces),
    "claims": ("/v2/claims", _claims),
}
