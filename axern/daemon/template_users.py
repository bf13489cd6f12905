"""Who uses which template: runs in the ledger, and requests that are about to be there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from ledger.errors import StateConflict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from axern.api.schema import RunRequest
    from axern.daemon.parts import Parts

LOST = ""
"""Stands for every template: a run whose spec is lost may use any of them."""


class TemplateUsers:
    """Counts no fewer than there are: a template without users here has none in the kernel.

    A run uses a template from before it is admitted until it is released. In between, the ledger
    and the run's spec are the only record, so that a crash forgets nobody.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._names: dict[str, str | None] = {}
        self._admitting: Counter[str] = Counter()
        self._leaving: set[str] = set()

    @contextlib.contextmanager
    def admitting(self, body: RunRequest) -> Iterator[None]:
        """Hold the template that *body* names, until the ledger does.

        Raises:
            StateConflict: It is being removed.
        """
        name = body.template or self._parts.settings.default_template
        if body.rootfs is not None:
            name = self._template_of(body.rootfs) or ""
        if name in self._leaving:
            raise StateConflict(f"template {name} is being removed")
        self._admitting[name] += 1
        try:
            yield
        finally:
            self._admitting[name] -= 1

    @contextlib.contextmanager
    def leaving(self, name: str) -> Iterator[None]:
        """Keep new users away from the template *name*.

        Raises:
            StateConflict: It is being removed already, or a run from it is just being admitted.
        """
        if name in self._leaving:
            raise StateConflict(f"template {name} is being removed already")
        if self._admitting[name]:
            raise StateConflict(
                f"template {name} is used by what is being admitted: {self._admitting[name]}",
                hint="wait for them: axern run list",
            )
        self._leaving.add(name)
        try:
            yield
        finally:
            self._leaving.discard(name)

    async def by_name(self) -> dict[str, list[str]]:
        """Return the ids of the live runs of each template, oldest first; reads specs of new ones.

        Runs whose spec is lost stand under `LOST`.
        """
        live = [row.id for row in self._parts.ledger.state.reservations() if row.is_sandbox]
        unknown = [run_id for run_id in live if run_id not in self._names]
        if unknown:
            self._names.update(await asyncio.to_thread(self._look_up, unknown))
        self._names = {run_id: self._names[run_id] for run_id in live}
        found: defaultdict[str, list[str]] = defaultdict(list)
        for run_id, name in self._names.items():
            if name is not None:
                found[name].append(run_id)
        return found

    async def of(self, name: str) -> list[str]:
        """Return the ids of the live runs that use the template *name*, or may."""
        users = await self.by_name()
        return users.get(name, []) + users.get(LOST, [])

    def _look_up(self, run_ids: list[str]) -> dict[str, str | None]:
        specs = {run_id: self._parts.runs.spec(run_id) for run_id in run_ids}
        return {
            run_id: LOST if spec is None else self._template_of(spec.rootfs)
            for run_id, spec in specs.items()
        }

    def _template_of(self, rootfs: str) -> str | None:
        """Return the template in which *rootfs* lies, however it was named."""
        folder = os.path.realpath(self._parts.layout.templates)
        real = os.path.realpath(rootfs)
        if os.path.commonpath((folder, real)) != folder or real == folder:
            return None
        return os.path.relpath(real, folder).partition("/")[0]
