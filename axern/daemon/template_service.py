"""The use cases of templates: list, import, remove."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING

import msgspec

from axern.daemon import importer
from axern.daemon.observer import storage_reserve_bytes
from axern.daemon.template_users import LOST, TemplateUsers
from axern.host import filestore
from axern.runtime import template, template_image
from axern.runtime.template_import import DIRECTORY, Job
from axern.runtime.template_meter import Limits
from axern.runtime.template_tree import shown
from ledger.errors import (
    AxernError,
    CommitFailed,
    InvalidArgument,
    NotFound,
    StateConflict,
)
from ledger.units import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from axern.api.schema import RunRequest, TemplateRequest
    from axern.daemon.parts import Json, Parts
    from axern.runtime.layout import Layout

IMPORTS_AT_ONCE = 2
_SHOWN_USERS = 3
_REMOVAL_PATIENCE_S = 5.0
"""A template is gone at once; what it was made of may take longer than a request may."""

_log = logging.getLogger(__name__)


class TemplateService:
    """What can be asked of templates; who may ask for which is told by their routes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._users = TemplateUsers(parts)
        self._importing: set[str] = set()
        self._removals: set[asyncio.Task[None]] = set()

    def admitting(self, body: RunRequest) -> contextlib.AbstractContextManager[None]:
        """Keep the template that *body* names from being removed until its run is in the ledger."""
        return self._users.admitting(body)

    async def list(self) -> list[Json]:
        """Return the root file systems that anybody may use."""
        templates = await asyncio.to_thread(template.list_all, self._parts.layout.templates)
        users = await self._users.by_name()
        return [
            _view(found, len(users.get(found.name, [])) + len(users.get(LOST, [])))
            for found in templates
        ]

    async def get(self, name: str) -> Json:
        """Return one template; raises NotFound."""
        found = self._find(name)
        return _view(found, len(await self._users.of(name)), whole=True)

    def add(self, body: TemplateRequest) -> AsyncIterator[bytes]:
        """Return the events of an import: `progress` as it goes, then `done` or `error`.

        Raises:
            StateConflict: The name is taken.
            InvalidArgument: There is no such source, or it and Axern's own folders overlap.
            CapabilityMissing: A program is missing that unpacks images.
            CommitFailed: Too many imports are under way.
        """
        self._require_free(body.name)
        self._require_source(body)
        return self._import(body)

    def _require_free(self, name: str) -> None:
        if os.path.lexists(f"{self._parts.layout.templates}/{name}"):
            raise template.exists(name)
        if name in self._importing:
            raise StateConflict(f"template {name} is being imported already")
        if len(self._importing) >= IMPORTS_AT_ONCE:
            raise CommitFailed(
                f"{IMPORTS_AT_ONCE} imports are under way, the most at the same time",
                hint="try again once one of them has ended",
            )

    def _require_source(self, body: TemplateRequest) -> None:
        source = body.source
        path = shown(source.path)
        if source.kind == DIRECTORY:
            if source.reference is not None:
                raise InvalidArgument("source.reference: a folder has no images to choose from")
            if os.path.isfile(f"{source.path}/oci-layout"):
                raise InvalidArgument(
                    f"source.path: {path} is an OCI layout and no root file system",
                    hint="give its kind: oci:PATH:TAG",
                )
            if not os.path.isdir(source.path):
                raise InvalidArgument(f"source.path: {path} is not a directory on this host")
            require_apart(self._parts, source.path, "source.path")
            return
        if ":" in source.path:
            raise InvalidArgument(
                "source.path: skopeo can't read a path with a ':'", hint="rename it, or link to it"
            )
        wanted, check = {
            "oci": ("an OCI layout, a directory with an index.json", _is_oci_layout),
            "docker-archive": ("a docker archive, which is a file", os.path.isfile),
        }[source.kind]
        if not check(source.path):
            raise InvalidArgument(f"source.path: {path} is not {wanted}, on this host")
        template_image.require_programs()

    async def _import(self, body: TemplateRequest) -> AsyncIterator[bytes]:
        try:
            self._require_free(body.name)
        except AxernError as error:
            yield _event("error", _problem(error))
            return
        templates = self._parts.layout.templates
        staging = template.make_staging(templates)
        self._importing.add(body.name)
        try:
            async with contextlib.aclosing(
                importer.follow(self._job(body, staging), self._parts.closing)
            ) as steps:
                async for progress in steps:
                    yield b": waiting\n\n" if progress is None else _event("progress", progress)
            made = await asyncio.to_thread(template.publish, staging, templates, body.name)
            yield _event("done", {"template": _view(made, 0, whole=True)})
        except AxernError as error:
            yield _event("error", _problem(error))
        finally:
            self._importing.discard(body.name)
            await asyncio.shield(asyncio.ensure_future(importer.discard(staging)))

    def _job(self, body: TemplateRequest, staging: str) -> Job:
        settings, layout = self._parts.settings, self._parts.layout
        disk = os.statvfs(layout.templates)
        return Job(
            staging=staging,
            hidden=layout.sandboxes,
            kind=body.source.kind,
            path=body.source.path,
            reference=body.source.reference or "",
            created_wall_ms=self._parts.clock().wall_ms,
            limits=Limits(
                max_bytes=settings.template_max_bytes,
                max_entries=settings.template_max_entries,
                reserve_bytes=storage_reserve_bytes(settings, disk.f_blocks * disk.f_frsize),
                timeout_s=settings.template_timeout_ms / 1000,
            ),
        )

    async def remove(self, name: str) -> Json:
        """Remove a template that no run uses, and return what it was.

        Raises:
            NotFound: There is none.
            StateConflict: A run uses it, or it would be missed: `busybox` and the default one.
        """
        found = self._find(name)
        self._require_expendable(name)
        with self._users.leaving(name):
            users = await self._users.of(name)
            if users:
                some = ", ".join(user[:12] for user in users[:_SHOWN_USERS])
                more = f" and {len(users) - _SHOWN_USERS} more" if users[_SHOWN_USERS:] else ""
                raise StateConflict(
                    f"template {name} is used by {_live(len(users))}: {some}{more}",
                    hint="end them first: axern run cancel ID",
                )
            templates = self._parts.layout.templates
            try:
                aside = await asyncio.to_thread(template.take_away, templates, name)
            except FileNotFoundError:
                raise _unknown(name) from None
        removal = asyncio.create_task(importer.discard(aside))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        await asyncio.wait((removal,), timeout=_REMOVAL_PATIENCE_S)
        return _view(found, 0, whole=True)

    def _require_expendable(self, name: str) -> None:
        if name == template.BUSYBOX:
            raise StateConflict(
                f"template {name} is built in: the daemon makes it whenever it starts"
            )
        if name == self._parts.settings.default_template:
            raise StateConflict(
                f"template {name} is the default_template, which runs use that name none",
                hint="configure another default_template first",
            )

    def _find(self, name: str) -> template.Template:
        found = template.find(self._parts.layout.templates, name)
        if found is None:
            raise _unknown(name)
        return found


def require_apart(parts: Parts, path: str, what: str) -> None:
    """Do nothing if *path* neither holds Axern's own folders nor lies in those of its sandboxes.

    Raises:
        InvalidArgument: It does; the message begins with *what*.
    """
    root = os.path.realpath(path)
    settings, layout = parts.settings, parts.layout
    around = [own for own in (settings.state_dir, settings.run_dir) if _is_below(own, root)]
    inside = [own for own in (layout.sandboxes, layout.filestore) if _is_below(root, own)]
    if around or inside:
        raise InvalidArgument(
            f"{what}: {shown(path)} and {(around + inside)[0]} lie in each other",
            hint="give a folder that was made to be a root file system",
        )


def sweep(layout: Layout) -> None:
    """Remove what imports and removals that were cut short have left, in a thread of its own."""
    left = template.leftovers(layout.templates)
    if left:
        threading.Thread(target=_remove_all, args=(left,), name="sweep", daemon=True).start()


def _remove_all(folders: tuple[str, ...]) -> None:
    for folder in folders:
        try:
            filestore.remove_tree(folder)
        except AxernError as error:
            _log.warning("template: %s", error)


def _live(count: int) -> str:
    return "1 live run" if count == 1 else f"{count} live runs"


def _is_oci_layout(path: str) -> bool:
    return os.path.isfile(f"{path}/index.json")


def _is_below(path: str, folder: str) -> bool:
    return os.path.commonpath((path, folder)) == folder


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no template {name[:64]!r}", hint="axern template list shows all")


def _view(found: template.Template, users: int, *, whole: bool = False) -> Json:
    record = found.record
    created_ms = record.get("created_wall_ms")
    view = {
        "name": found.name,
        "path": found.rootfs,
        "users": users,
        "bytes": record.get("bytes"),
        "entries": record.get("entries"),
        "source": record.get("source"),
        "digest": record.get("digest"),
        "created_at": format_rfc3339(created_ms) if created_ms else None,
    }
    if whole:
        view |= {
            "env": found.env,
            "left_out": record.get("left_out", {}),
            "image": record.get("image"),
        }
    return view


def _problem(error: AxernError) -> Json:
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def _event(name: str, data: Json) -> bytes:
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"
