"""Remembers which projects came up against their storage limit, while their sandboxes live."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from axern.errors import CapabilityMissing
from axern.host.quota_events import QuotaEvents

_REST_S = 0.2
"""Between two readings: a workload that fails to write all day must cost the daemon little."""

_log = logging.getLogger(__name__)


class LimitHits:
    """What the kernel has told of limits on the file system of one folder."""

    def __init__(self, filestore: str) -> None:
        self._filestore = filestore
        self._events: QuotaEvents | None = None
        self._hit: set[int] = set()
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

    def take(self, project: int | None) -> bool:
        """Tell whether *project* has hit its limit since the last call for it."""
        self._drain()
        hit = project in self._hit
        self._hit.discard(project or 0)
        return hit

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
        if self._events is not None:
            with contextlib.suppress(OSError):
                self._hit |= self._events.hits(self._filestore)
