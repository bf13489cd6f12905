"""The use cases that only read: reservations, the node, health."""

from __future__ import annotations

from typing import TYPE_CHECKING

import axern
from axern.api.views import node_view
from axern.daemon import capability_loss
from axern.daemon.parts import Json, Parts
from axern.host import programs

if TYPE_CHECKING:
    from axern.host.capabilities import Capability


class Service:
    """What can be looked at."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def reservations(self, namespace: str | None, phase: str | None) -> list[Json]:
        """Return every reservation, oldest first, of one namespace or phase if named."""
        return [
            self._parts.view(reservation)
            for reservation in self._parts.ledger.state.reservations()
            if namespace in (None, reservation.namespace) and phase in (None, reservation.phase)
        ]

    def node(self) -> Json:
        """Return capacity, holders, capabilities and runtimes."""
        snapshot = self._parts.capabilities.snapshot()
        return {
            "node_id": self._parts.node_id,
            "version": axern.__version__,
            "ledger": self._parts.condition.view(),
            "cgroup_enforcement": self._parts.settings.cgroup_enforcement,
            **node_view(self._parts.ledger.state, self._parts.settings.max_exposure),
            "capabilities": [_capability_view(item) for item in snapshot.capabilities],
            "capabilities_generation": snapshot.generation,
            "runtimes": self._runtimes(),
            "degraded": list(capability_loss.degraded(self._parts)),
        }

    def _runtimes(self) -> list[Json]:
        layout = self._parts.layout
        known = (programs.known(path) for path in (layout.runc, layout.runsc, layout.conmon))
        return [
            {"name": program.name, "path": program.path, "version": program.version}
            for program in known
            if program is not None
        ]

    def health(self) -> Json:
        """Return that the daemon answers, at which generation, and how its ledger is."""
        ledger = self._parts.condition.view()
        return {"status": ledger["state"], "generation": self.generation, "ledger": ledger}

    @property
    def generation(self) -> int:
        """Return the generation of the state that answers are read from."""
        return self._parts.ledger.state.generation


def _capability_view(item: Capability) -> Json:
    """Return what is known of one capability."""
    return {
        "key": item.key,
        "title": item.title,
        "status": "present" if item.present else "absent",
        "code": item.code,
        "message": item.message,
        "remedy": item.remedy,
        "loss_policy": item.loss,
    }
