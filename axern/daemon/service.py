"""The use cases that only read: reservations, the node, health."""

from __future__ import annotations

import axern
from axern.api.views import node_view
from axern.daemon.parts import Json, Parts


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
        observer = self._parts.observer
        return {
            "node_id": self._parts.node_id,
            "version": axern.__version__,
            "cgroup_enforcement": self._parts.settings.cgroup_enforcement,
            **node_view(self._parts.ledger.state),
            "capabilities": [
                {
                    "key": item.key,
                    "status": "present" if item.present else "absent",
                    "message": item.message,
                }
                for item in observer.capabilities
            ],
            "runtimes": [
                {"name": program.name, "path": program.path, "version": program.version}
                for program in observer.programs
            ],
        }

    def health(self) -> Json:
        """Return that the daemon answers, and at which generation."""
        return {"status": "ok", "generation": self.generation}

    @property
    def generation(self) -> int:
        """Return the generation of the state that answers are read from."""
        return self._parts.ledger.state.generation
