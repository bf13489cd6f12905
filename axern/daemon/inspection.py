"""The use cases that look closely: one entry with its evidence and history, and the doctor.

They read the host and the journal, so they run in threads; what they compare is one state of the
ledger, taken before.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

from axern.api.views import ended_view, history_view
from axern.daemon import capability_loss
from axern.daemon.parts import Json, Parts
from axern.runtime import (
    doctor,
    evidence,
    held_limits,
    networking,
    node_doctor,
    quota_audit,
    traces,
)
from ledger import history
from ledger.errors import NotFound
from ledger.reservation import liveness

if TYPE_CHECKING:
    from ledger.findings import Finding
    from ledger.reservation import Reservation


class Inspection:
    """What can be looked at closely."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def reservation(self, word: str, *, with_evidence: bool, with_history: bool) -> Json:
        """Return one entry, with what is asked for of its evidence and its history.

        With its history, one that is gone is shown as well.

        Raises:
            NotFound: There is none, and none is remembered.
        """
        row = self._find(word)
        if row is None and not with_history:
            self._parts.ledger.state.reservation(self._parts.resolve_id(word))
        past = await self._history(row.id if row else word) if with_history else None
        if row is None:
            if past is None:
                raise NotFound(
                    f"no reservation has an id that begins with {word}, and none is remembered",
                    hint="list them with: axern reservations",
                )
            clock = self._parts.clock()
            last = ended_view(past.last, clock) if past.last else None
            answer: Json = {"reservation": last, "evidence": None}
        else:
            answer = {"reservation": self._parts.view(row)}
            if with_evidence:
                answer["evidence"] = await self._evidence(row)
        if with_history:
            name = row.id if row else past.reservation_id if past else word
            answer["history"] = history_view(past)
            folder = f"{self._parts.layout.runs}/{name}"
            answer["exit"] = await asyncio.to_thread(evidence.exit_of, folder)
        return answer

    def _find(self, word: str) -> Reservation | None:
        with contextlib.suppress(NotFound):
            return self._parts.ledger.state.find_reservation(self._parts.resolve_id(word))
        return None

    async def _history(self, word: str) -> history.History | None:
        ledger = self._parts.ledger
        where = self._parts.settings.ledger_dir
        return await self._parts.search(history.find, where, word, ledger.generation)

    async def _evidence(self, row: Reservation) -> Json:
        parts = self._parts
        beat = parts.heartbeats.beats.get(row.id)
        return await parts.search(evidence.collect, row, parts.layout, parts.clock(), beat)

    async def examine(self) -> Json:
        """Return what is wrong between ledger and host, seen twice so that no moment counts."""
        findings = await self._look()
        if findings:
            await asyncio.sleep(doctor.SECOND_LOOK_S)
            findings = doctor.confirmed(findings, await self._look())
        return {
            "findings": [asdict(finding) for finding in findings],
            "generation": self._parts.ledger.generation,
            "source": "daemon",
        }

    async def node(self) -> Json:
        """Return every check of this node: its capabilities, the host, the ledger beside it."""
        parts = self._parts
        items = parts.capabilities.snapshot().capabilities
        rows = node_doctor.rows_of(parts.settings, parts.layout)
        found = [
            node_doctor.of_daemon(capability_loss.degraded(parts)),
            *node_doctor.of_capabilities(items, parts.settings, rows),
            *await parts.search(lambda: [*node_doctor.of_host(parts.settings, parts.layout)]),
            node_doctor.of_findings((await self.examine())["findings"]),
        ]
        return {
            "checks": [asdict(check) for check in found],
            "generation": parts.ledger.generation,
            "source": "daemon",
        }

    async def _look(self) -> tuple[Finding, ...]:
        """Compare ledger and host; entries that change meanwhile are not judged."""
        before = self._rows()
        entries, host = await self._parts.search(self._observe, before)
        records = await self._parts.search(quota_audit.look, self._parts.layout.filestore)
        limits = await self._parts.search(held_limits.examine, before.values(), self._parts.layout)
        after = self._rows()
        moved = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        still = [entry for entry in entries if entry.row.id not in moved]
        seen = {key: value for key, value in host.items() if key not in moved}
        lanes = {row.lane for row in (*before.values(), *after.values()) if row.lane is not None}
        return (
            *doctor.examine(still, seen, self._parts.settings.ledger_dir),
            *quota_audit.examine([entry.row for entry in still], lanes, records),
            *(finding for finding in limits if finding.id not in moved),
        )

    def _rows(self) -> dict[str, Reservation]:
        return {row.id: row for row in self._parts.ledger.state.reservations()}

    def _observe(
        self, rows: dict[str, Reservation]
    ) -> tuple[list[doctor.Entry], dict[str, traces.Traces]]:
        parts = self._parts
        host = traces.Host(parts.layout).all_traces(rows)
        clock, beats = parts.clock(), dict(parts.heartbeats.beats)
        entries = [
            doctor.Entry(
                row,
                liveness(row, beats.get(row.id), clock, parts.liveness_policy),
                evidence.is_alive(row.owner_process),
                evidence.is_alive(row.monitor),
                networking.is_on_bridge(parts.ledger.state, row.id),
            )
            for row in rows.values()
        ]
        return entries, host
