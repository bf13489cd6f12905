"""The end of all sandboxes when their host goes down: each in order, before the host ends them.

A daemon that stops leaves them alone, but of a host that stops nothing outlives. Left to systemd,
whoever ignores TERM, as most first processes do, would hold up the shutdown until it is killed, and
no record would tell why. Source: docs/decisions/0030-a-host-that-goes-down.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from axern.runtime.outcome import HOST_DOWN

if TYPE_CHECKING:
    from axern.daemon.parts import Parts

LIMIT_S = 50.0
"""Of the unit's TimeoutStopSec=90: the rest is for what the daemon does at each end."""
_MOST_GRACE_MS = 30_000
_LOOK_AGAIN_S = 0.2
_log = logging.getLogger(__name__)


async def end_all(parts: Parts) -> None:
    """Stop every sandbox, with its grace, and those too that are admitted meanwhile.

    Returns once all are buried, or after `LIMIT_S`: what is left then ends with the host, and the
    daemon of the next boot clears it.
    """
    lives = parts.lives
    grace_ms = min(parts.settings.stop_grace_ms, _MOST_GRACE_MS)
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + LIMIT_S
    while (left := lives.all()) and loop.time() < deadline_s:
        for life in left:
            lives.stop(life.reservation_id, HOST_DOWN, "daemon", grace_ms)
        await asyncio.sleep(_LOOK_AGAIN_S)
    if left:
        _log.warning("%s sandboxes are left to the host's own end", len(left))
