"""Bridge, firewall and files of names, as the sandboxes need them that the ledger has.

All of it is a function of the ledger's rows: whoever changes them calls `Keeper.apply` again.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from axern.errors import NetworkError
from axern.host import network, resolver
from axern.host.firewall import Firewall, Guest
from axern.host.netlink import interface_index
from ledger.reservation import RUNNING, STARTING, STOPPING
from ledger.tables import BRIDGE, NETWORKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.host.network import Bridge
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.reservation import Reservation
    from ledger.state import State
    from ledger.tables import Network, Port

CONNECTED = (STARTING, RUNNING, STOPPING)
"""The phases in which a sandbox may have an interface; one that retires is cut off first."""
_SHORT_ID = 12
_FOLDER_MODE = 0o711


@dataclass(frozen=True, slots=True)
class Member:
    """A sandbox that is on the bridge, as the ledger has it."""

    id: str
    lane: int
    namespace: str
    names: tuple[str, ...]
    ports: tuple[Port, ...]


def network_of(view: State, reservation_id: str) -> Network | None:
    """Return what a sandbox has of a network, None for nothing."""
    return cast("Network | None", view.row(NETWORKS, reservation_id))


def is_on_bridge(view: State, reservation_id: str) -> bool:
    """Tell whether the ledger has a sandbox on the bridge."""
    has = network_of(view, reservation_id)
    return has is not None and has.mode == BRIDGE


def members(view: State) -> tuple[Member, ...]:
    """Return every sandbox that may be on the bridge now."""
    rows = ((view.find_reservation(key), cast("Network", row)) for key, row in view.rows(NETWORKS))
    return tuple(
        _member(row, has.ports)
        for row, has in rows
        if row is not None and has.mode == BRIDGE and row.phase in CONNECTED
    )


def _member(row: Reservation, ports: tuple[Port, ...]) -> Member:
    names = (row.id[:_SHORT_ID], row.owner.name) if row.owner.name else (row.id[:_SHORT_ID],)
    return Member(row.id, row.lane or 0, row.namespace, names, ports)


class Keeper:
    """Keeps the host as the members need it; one call at a time."""

    def __init__(self, layout: Layout, wanted_range: str = "") -> None:
        self._layout = layout
        self._wanted = wanted_range
        self._firewall = Firewall(layout.bridge)
        self._bridge: Bridge | None = None
        self._generation: int | None = None

    @classmethod
    def of(cls, settings: Settings, layout: Layout) -> Keeper:
        """Return one for the configured bridge."""
        return cls(layout, settings.network_range)

    def close(self) -> None:
        """Let go of what it holds open; the host stays as it is."""
        self._firewall.close()

    def apply(self, listed: Iterable[Member]) -> Bridge | None:
        """Make bridge, table and files what *listed* need, whatever is there now.

        Without members nothing of it stays, and None is returned.

        Raises:
            NetworkError: The kernel refused, or the bridge's name is somebody else's.
            CapabilityMissing: No range is free.
        """
        wanted = tuple(listed)
        if not wanted:
            self._take_away()
            return None
        bridge = self._bridge
        if bridge is None or not network.is_erected(bridge):
            bridge = network.erect(self._layout.bridge, self._layout.run_dir, self._wanted)
            self._bridge = bridge
        self._generation = None
        guests = [
            Guest(bridge.address_of(each.lane), each.namespace, each.ports) for each in wanted
        ]
        self._generation = self._firewall.replace(bridge.addresses, guests)
        self._write_names(bridge, wanted)
        return bridge

    def is_intact(self) -> bool:
        """Tell whether nobody has changed any table or removed the bridge since `apply`; cheap.

        Raises:
            NetworkError: It can't be told.
        """
        if self._bridge is None:
            return True
        return network.is_erected(self._bridge) and self._firewall.generation() == self._generation

    def _take_away(self) -> None:
        """Remove everything; what is somebody else's stays."""
        if self._bridge is None and interface_index(self._layout.bridge) is None:
            return
        if self._bridge is None:
            with contextlib.suppress(NetworkError):  # it is somebody else's
                self._bridge = network.erect(self._layout.bridge, self._layout.run_dir)
        if self._bridge is not None:
            self._firewall.remove()
            network.dismantle(self._bridge.name)
        self._bridge = self._generation = None
        self._write_names(None, ())

    def _write_names(self, bridge: Bridge | None, wanted: tuple[Member, ...]) -> None:
        """Write a file of names for each namespace, and remove those of the others."""
        by_namespace: dict[str, list[Member]] = {}
        for each in wanted:
            by_namespace.setdefault(each.namespace, []).append(each)
        folder = self._layout.names
        os.makedirs(folder, mode=_FOLDER_MODE, exist_ok=True)
        for namespace, some in by_namespace.items():
            text = _names(bridge, some) if bridge else ""
            resolver.rewrite(self._layout.names_of(namespace), text)
        for name in set(os.listdir(folder)) - by_namespace.keys():
            os.unlink(f"{folder}/{name}")


def _names(bridge: Bridge, some: Iterable[Member]) -> str:
    return resolver.hosts((str(bridge.address_of(each.lane)), each.names) for each in some)


def apply_once(settings: Settings, layout: Layout, view: State) -> None:
    """Do what `Keeper.apply` does for the members of *view*, where no daemon does."""
    with contextlib.closing(Keeper.of(settings, layout)) as keeper:
        keeper.apply(members(view))
