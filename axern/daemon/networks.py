"""The network of all sandboxes: kept as the ledger has them, and repaired when others change it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from axern.errors import NetworkError
from axern.host import nftables
from axern.runtime import networking
from axern.runtime.connection import Connection
from axern.runtime.networking import Keeper
from ledger.errors import AxernError
from ledger.tables import BRIDGE

if TYPE_CHECKING:
    from axern.host.netlink import Socket
    from axern.host.network import Bridge
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.reservation import Reservation
    from ledger.store import Ledger

_log = logging.getLogger(__name__)


class Networks:
    """The way to bridge, firewall and names; whoever comes meanwhile shares the next turn."""

    def __init__(self, ledger: Ledger, layout: Layout, settings: Settings) -> None:
        self._ledger = ledger
        self._layout = layout
        self._settings = settings
        self._keeper = Keeper.of(settings, layout)
        self._turn = asyncio.Lock()
        self._asked = self._done = 0
        self._bridge: Bridge | None = None
        self._listener: Socket | None = None
        self._repairs: set[asyncio.Task[None]] = set()

    async def connection(self, row: Reservation) -> Connection | None:
        """Return what the sandbox of *row* has of a network, once bridge and firewall know it.

        Raises:
            NetworkError: The kernel refused.
            CapabilityMissing: No range is free for the bridge.
        """
        has = networking.network_of(self._ledger.state, row.id)
        if has is None:
            return None
        if has.mode != BRIDGE:
            return Connection()
        bridge = await self.settle()
        nameservers = tuple(self._settings.nameservers)
        return Connection(bridge, self._layout.names_of(row.namespace), nameservers)

    async def settle(self) -> Bridge | None:
        """Let the host be as the ledger has it now; return the bridge, None where nobody needs it.

        Raises:
            NetworkError: The kernel refused.
            CapabilityMissing: No range is free for the bridge.
        """
        self._asked += 1
        mine = self._asked
        async with self._turn:
            if self._done < mine:
                done = self._asked
                wanted = networking.members(self._ledger.state)
                self._listen() if wanted else self._unlisten()
                self._bridge = await asyncio.to_thread(self._keeper.apply, wanted)
                self._done = done
        return self._bridge

    async def leave(self, row: Reservation) -> None:
        """Take the sandbox of *row*, which retires, out of the firewall; raises as `settle`."""
        if networking.is_on_bridge(self._ledger.state, row.id):
            await self.settle()

    async def look(self) -> None:
        """Repair what somebody else has changed; what can't be is told, and tried again."""
        try:
            async with self._turn:
                intact = await asyncio.to_thread(self._keeper.is_intact)
            if not intact:
                _log.info("the firewall or the bridge was changed by others: it is written again")
                await self.settle()
        except (AxernError, OSError) as error:
            _log.warning("the network of sandboxes can't be looked after: %s", error)

    async def loop(self, closing: asyncio.Event) -> None:
        """Take over what an earlier daemon has left, then look now and again, until *closing*."""
        try:
            await self.settle()
        except (AxernError, OSError) as error:
            _log.warning("the network of sandboxes can't be taken over: %s", error)
        while not closing.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing.wait(), self._settings.tick_ms / 1000)
            await self.look()

    async def close(self) -> None:
        """Listen no more; bridge and firewall stay with the sandboxes."""
        self._unlisten()
        for task in self._repairs:
            task.cancel()
        async with self._turn:
            self._keeper.close()

    def _listen(self) -> None:
        """Hear of every change of a table, our own among them."""
        if self._listener is None:
            with contextlib.suppress(NetworkError, OSError):  # the ticks are left
                self._listener = nftables.open_socket((nftables.NFNLGRP_NFTABLES,))
                loop = asyncio.get_running_loop()
                loop.add_reader(self._listener.fileno(), self._heard)

    def _unlisten(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def _heard(self) -> None:
        if self._listener is not None and self._listener.drain() and not self._repairs:
            task = asyncio.create_task(self.look(), name="network repair")
            self._repairs.add(task)
            task.add_done_callback(self._repairs.discard)
