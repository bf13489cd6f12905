"""What a route is: a method and a path, and the action that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from axern.api import schema
from axern.api.protocol import Response
from axern.api.server import Request, StreamResponse

Parameters = dict[str, str]
Answer = Response | StreamResponse
Action = Callable[[Request, Parameters], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path; a part in braces is a parameter."""

    method: str
    path: str
    summary: str
    action: Action
    body: type[schema.Body] | None = None

    def match(self, method: str, path: str) -> Parameters | None:
        """Return the parameters if this route answers *method* and *path*, else None."""
        mine, theirs = self.path.split("/"), path.split("/")
        if method != self.method or len(mine) != len(theirs):
            return None
        pairs = list(zip(mine, theirs, strict=True))
        if any(part != given for part, given in pairs if not part.startswith("{")):
            return None
        return {part[1:-1]: given for part, given in pairs if part.startswith("{")}


def answer_json(status: int, value: dict[str, Any]) -> Response:
    """Return the answer whose body is *value*."""
    return Response(status, msgspec.json.encode(value))
