"""Remembers which projects came up against their storage limit, while their sandboxes live."""

from __future__ import annotations

import asyncio
import logging

from axern.errors import CapabilityMissing
from axern.host.quota_events import Heard, QuotaEvents

_REST_S = 0.2
"""Between two readings: a workload that fails to write all day must cost the daemon little."""

_log = logging.getLogger(__name__)


class LimitHits:
    """What the kernel has told of limits on the file system of one folder.

    `_followed` are the projects of which everything was heard since their sandboxes were launched.
    """

    def __init__(self, filestore: str) -> None:
        self._filestore = filestore
        self._events: QuotaEvents | None = None
        self._hit: set[int] = set()
        self._followed: set[int] = set()
        self._asked = False
        self._rest: asyncio.TimerHandle | None = None

    def listen(self) -> None:
        """Begin to hear; safe to repeat. A kernel that tells nobody is logged once."""
        if self._asked:
            return
        self._asked = True
        try:
            self._events = QuotaEvents()
        except CapabilityMissing as error:
            _log.warning("%s: only what is in use at the end tells of them", error)
            return
        self._resume()

    def follow(self, project: int | None) -> None:
        """Begin with a new sandbox in *project*; what an earlier one did there is forgotten."""
        self._drain()
        if project is not None and self._events is not None:
            self._hit.discard(project)
            self._followed.add(project)

    def end(self, project: int | None) -> bool | None:
        """Tell whether the sandbox in *project* has hit its limit; None where nobody knows.

        Such as of one that an earlier daemon launched, or where the kernel told too much at once.
        """
        self._drain()
        if project is None:
            return None
        knows = project in self._hit or project in self._followed
        hit = project in self._hit
        self._hit.discard(project)
        self._followed.discard(project)
        return hit if knows else None

    def close(self) -> None:
        """Hear nothing any more."""
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
        if self._rest is not None:
            self._rest.cancel()

    def _resume(self) -> None:
        if self._events is not None:
            asyncio.get_running_loop().add_reader(self._events.fileno(), self._heard)

    def _heard(self) -> None:
        self._drain()
        if self._events is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._events.fileno())
            self._rest = loop.call_later(_REST_S, self._resume)

    def _drain(self) -> None:
        if self._events is None:
            return
        try:
            heard = self._events.hear(self._filestore)
        except OSError:
            heard = Heard(frozenset(), lost=True)
        self._hit |= heard.projects
        if heard.lost:
            self._followed.clear()
