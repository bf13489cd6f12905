"""What a route is: a method and a path, the verb it stands for, and the action that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from axern.api import schema
from axern.api.messages import Later, Request, Response, StreamResponse
from ledger.rights import Verb

Parameters = dict[str, str]
Answer = Response | StreamResponse | Later
Action = Callable[[Request, Parameters], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method and path; a part in braces is a parameter.

    Whoever has not the right of `verb` is refused before the action; whose the thing must be, the
    action has to ask.
    """

    method: str
    path: str
    verb: Verb
    summary: str
    action: Action
    body: type[schema.Body] | None = None

    def match(self, path: str) -> Parameters | None:
        """Return the parameters if *path* is one of this route's, else None."""
        mine, theirs = self.path.split("/"), path.split("/")
        if len(mine) != len(theirs):
            return None
        pairs = list(zip(mine, theirs, strict=True))
        if any(part != given for part, given in pairs if not part.startswith("{")):
            return None
        return {part[1:-1]: given for part, given in pairs if part.startswith("{")}


class Routes:
    """All routes, found by their first parts: there are dozens, and each request looks for one."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.all = tuple(routes)
        self._beginning: dict[tuple[str, str], list[Route]] = {}
        for route in self.all:
            key = (route.method, _beginning(route.path))
            self._beginning.setdefault(key, []).append(route)

    def find(self, method: str, path: str) -> tuple[Route, Parameters] | None:
        """Return the route that answers *method* and *path*, with its parameters, or None."""
        for route in self._beginning.get((method, _beginning(path)), ()):
            parameters = route.match(path)
            if parameters is not None:
                return route, parameters
        return None

    def methods(self, path: str) -> list[str]:
        """Return the methods that *path* takes."""
        return [route.method for route in self.all if route.match(path) is not None]


def _beginning(path: str) -> str:
    """Return `/v2/NAME` of *path*; no route has a parameter before that."""
    return "/".join(path.split("/", 3)[:3])


def answer_json(status: int, value: dict[str, Any]) -> Response:
    """Return the answer whose body is *value*."""
    return Response(status, msgspec.json.encode(value))
