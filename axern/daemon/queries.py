"""What the query of a request says: each parameter to a value, or a refusal that names it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from axern.api import frames, schema
from axern.daemon import streams
from axern.daemon.log_service import Begin
from axern.daemon.run_lists import Wanted
from axern.runtime.outcome import CANCELLED, FAILED, SUCCEEDED
from ledger.errors import InvalidArgument
from ledger.reservation import PHASES
from ledger.units import MAX_INTEGER

if TYPE_CHECKING:
    from axern.api.messages import Request

LONGEST_GRACE_MS = 86_400_000
USUAL_PAGE = 100
LARGEST_PAGE = 1_000
STATUSES = (*PHASES, SUCCEEDED, FAILED, CANCELLED)
"""A run has the phase of its reservation until it has ended."""
LABEL_KEY = re.compile(schema.LABEL_KEY[1:-1])


def known(request: Request, *names: str) -> dict[str, str]:
    """Return the query of *request*, which may have the parameters *names*."""
    for name in request.query:
        if name not in names:
            raise InvalidArgument(
                f"unknown query parameter {name[:64]!r}; known are {', '.join(names) or 'none'}"
            )
    return dict(request.query)


def flag(query: dict[str, str], name: str, default: str = "false") -> bool:
    """Return whether *name* says `true`."""
    text = query.get(name, default)
    if text not in ("true", "false"):
        raise InvalidArgument(f"{name}: {text[:20]!r} is neither true nor false")
    return text == "true"


def grace_ms(query: dict[str, str]) -> int | None:
    """Return the time from TERM to KILL, None where it is not given."""
    grace_ms = integer(query, "grace_ms")
    if grace_ms is not None and grace_ms > LONGEST_GRACE_MS:
        raise InvalidArgument(f"grace_ms: at most {LONGEST_GRACE_MS} ms (a day) can be waited for")
    return grace_ms


def require_one_of(query: dict[str, str], name: str, known: tuple[str, ...]) -> None:
    """Refuse the words, parted by commas, that can match nothing."""
    for word in query.get(name, known[0]).split(","):
        if word not in known:
            raise InvalidArgument(f"{name}: {word[:64]!r} is none; known are {', '.join(known)}")


def wanted(query: dict[str, str]) -> Wanted:
    """Return the filter of a list of runs.

    Statuses and labels are parted by commas; one within a label's value is written as `%2C`.
    """
    require_one_of(query, "status", STATUSES)
    statuses = frozenset(query["status"].split(",")) if "status" in query else frozenset[str]()
    labels: dict[str, str | None] = {}
    for part in query["label"].split(",") if "label" in query else ():
        key, equals, value = part.partition("=")
        if not LABEL_KEY.fullmatch(key):
            raise InvalidArgument(
                f"label: {key[:64]!r} is no label's key",
                hint="for example label=team=search, or label=team for any value",
            )
        labels[key] = unquote(value) if equals else None
    return Wanted(
        namespace=query.get("namespace"),
        statuses=statuses,
        labels=labels,
        uid=integer(query, "owner"),
        from_ms=integer(query, "created_from_ms"),
        before_ms=integer(query, "created_before_ms"),
    )


def form(request: Request, *, timestamps: bool) -> streams.Form:
    """Return the form that the client asks for; in frames it finds the times itself."""
    if request.headers.get("accept", "") != frames.CONTENT_TYPE:
        return streams.ServerSentEvents(timestamps=timestamps)
    if timestamps:
        raise InvalidArgument(f"timestamps: {frames.CONTENT_TYPE} has them in each record")
    return streams.Frames()


def begin(request: Request, query: dict[str, str]) -> Begin:
    """Return where the reader of a log wants to begin."""
    offset = integer(query, "from")
    tail_lines, since_ms = integer(query, "tail"), integer(query, "since_ms")
    if offset is not None and (tail_lines, since_ms) != (None, None):
        raise InvalidArgument(
            "from: an offset says where to begin, so do tail and since_ms: give one of them"
        )
    # Who reconnects goes on where it was, and wants no tail again.
    last = {"from": request.headers.get("last-event-id", "")}
    if offset is None and last["from"]:
        return Begin(integer(last, "from") or 0)
    return Begin(offset or 0, tail_lines, since_ms)


def limit(query: dict[str, str]) -> int:
    """Return how many things one page has."""
    found = integer(query, "limit")
    if found is not None and not 1 <= found <= LARGEST_PAGE:
        raise InvalidArgument(f"limit: it must be 1 to {LARGEST_PAGE}")
    return found or USUAL_PAGE


def integer(query: dict[str, str], name: str) -> int | None:
    """Return the whole number *name*, None where it is not given."""
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text[:17]) > MAX_INTEGER or len(text) > 16:  # noqa: PLR2004 - digits of 2**53
        raise InvalidArgument(f"{name}: {text[:20]!r} is not a whole number of at most 2^53 - 1")
    return int(text)
