"""The use cases that change how the node stands: drain, undrain, retire."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from axern.api.views import standing_view
from axern.daemon.parts import Json, Parts
from axern.runtime import retirement
from ledger import standing
from ledger.standing import Wish

if TYPE_CHECKING:
    from axern.api.messages import Peer
    from ledger.staging import Operation

_log = logging.getLogger(__name__)


class NodeService:
    """What can be asked of the node as a whole."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def drain(self, reason: str, peer: Peer) -> Json:
        """Admit nothing new from now on; what runs goes on.

        Raises:
            PermissionDenied: Not an admin.
            StateConflict: The node is retired.
        """
        wish = Wish(self._parts.grants.caller(peer), reason)
        return await self._stand(partial(standing.drain, wish=wish, now=self._parts.clock()))

    async def undrain(self, peer: Peer) -> Json:
        """Take new work again; raises as `drain` does."""
        return await self._stand(partial(standing.undrain, caller=self._parts.grants.caller(peer)))

    async def retire(self, reason: str, peer: Peer) -> Json:
        """Take no work ever again, and serve no more once this daemon has ended.

        Raises:
            PermissionDenied: Not an admin.
            StateConflict: Something is left on the node.
        """
        wish = Wish(self._parts.grants.caller(peer), reason)
        answer = await self._stand(partial(standing.retire, wish=wish, now=self._parts.clock()))
        parts = self._parts
        await asyncio.to_thread(retirement.remember, parts.settings.state_dir, parts.ledger)
        return answer

    async def _stand(self, operation: Operation) -> Json:
        await self._parts.committer.submit(operation)
        answer = standing_view(self._parts.ledger.state, self._parts.node_id)
        state, reason = answer["standing"]["state"], answer["standing"]["reason"]
        _log.info("the node is %s%s", state, f": {reason}" if reason else "")
        return answer
