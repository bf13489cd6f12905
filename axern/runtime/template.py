"""Templates: named root file systems to start sandboxes from; `busybox` is built in.

One folder a template, 0700: `rootfs` is only ever read, `template.json` tells where it came from.
A name that begins with a dot is a template that is being made or removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Any

from axern.config import TEMPLATE_NAME
from axern.errors import RootfsRefused
from axern.host import filestore, linux
from axern.runtime import command
from axern.runtime.record import sync_folder
from ledger.errors import StateConflict

BUSYBOX = "busybox"
RECORD = "template.json"
_NAME = re.compile(TEMPLATE_NAME.strip("^$"))
_BUILDING, _REMOVING = ".building-", ".removing-"
_BUSYBOX_BINARY = "/bin/busybox"
_FOLDERS = ("dev", "etc", "proc", "root", "sys", "tmp", "var")
_TEMPLATE_MODE = 0o700
"""No user of the host may reach in: what is there may be writable for all, or a stranger's."""
_STICKY_MODE = 0o1777
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
}


@dataclass(frozen=True, slots=True)
class Template:
    """A named root file system, an absolute path to a folder that is only ever read.

    `record` is what its import has written of it, empty for one that nobody imported.
    """

    name: str
    rootfs: str
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that a run from it has unless it sets them itself."""
        found: dict[str, str] = self.record.get("env", {})
        return found


def find(templates: str, name: str) -> Template | None:
    """Return the template *name* below the folder *templates*, or None; a hostile name is none."""
    if _NAME.fullmatch(name) is None:
        return None
    rootfs = os.path.join(templates, name, "rootfs")
    return Template(name, rootfs, _record(templates, name)) if os.path.isdir(rootfs) else None


def env_of(templates: str, name: str | None) -> dict[str, str]:
    """Return the variables that the template *name* gives a run; none if it is None or gone."""
    found = find(templates, name) if name is not None else None
    return found.env if found is not None else {}


def _record(templates: str, name: str) -> dict[str, Any]:
    try:
        with open(os.path.join(templates, name, RECORD), "rb") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}  # copied there by hand
    return found if isinstance(found, dict) and isinstance(found.get("env", {}), dict) else {}


def list_all(templates: str) -> tuple[Template, ...]:
    """Return all templates below the folder *templates*, by name."""
    try:
        names = sorted(os.listdir(templates))
    except FileNotFoundError:
        return ()
    found = (find(templates, name) for name in names)
    return tuple(template for template in found if template is not None)


def make_staging(templates: str) -> str:
    """Return a new folder to make a template in; a daemon that starts removes what is left."""
    return tempfile.mkdtemp(prefix=_BUILDING, dir=templates)


def publish(staging: str, templates: str, name: str) -> Template:
    """Let what was made in *staging* be the template *name*, durably.

    Its content must be on the disk already.

    Raises:
        StateConflict: There is something of that name.
    """
    target = os.path.join(templates, name)
    try:
        linux.rename_new(staging, target)
    except FileExistsError as err:
        raise exists(name) from err
    sync_folder(templates)
    return Template(name, os.path.join(target, "rootfs"), _record(templates, name))


def exists(name: str) -> StateConflict:
    """Return the error that says that *name* is taken."""
    return StateConflict(
        f"there is a template {name} already",
        hint=f"choose another name, or first: axern template remove {name}",
    )


def take_away(templates: str, name: str) -> str:
    """Let the template *name* be gone for every reader, durably; return what is left to remove.

    Raises:
        FileNotFoundError: It was gone before.
    """
    aside = tempfile.mkdtemp(prefix=_REMOVING, dir=templates)
    os.rename(os.path.join(templates, name), os.path.join(aside, name))
    sync_folder(templates)
    return aside


def leftovers(templates: str) -> tuple[str, ...]:
    """Return the folders that makings and removals which were cut short have left."""
    names = sorted(os.listdir(templates))
    return tuple(
        os.path.join(templates, name) for name in names if name.startswith((_BUILDING, _REMOVING))
    )


def make_busybox(templates: str) -> Template:
    """Make the template `busybox` from the host's static busybox, unless it is there already.

    It appears whole or not at all: built under another name, then renamed.

    Raises:
        RootfsRefused: The host has no busybox.
        CommandFailed: It does not know its own applets.
    """
    present = find(templates, BUSYBOX)
    if present is not None:
        os.chmod(os.path.dirname(present.rootfs), _TEMPLATE_MODE)
        return present
    if not os.access(_BUSYBOX_BINARY, os.X_OK):
        raise RootfsRefused(
            f"the host has no {_BUSYBOX_BINARY} to make a template from",
            hint="apt install busybox-static",
        )
    building = make_staging(templates)
    try:
        _fill(os.path.join(building, "rootfs"))
        os.rename(building, os.path.join(templates, BUSYBOX))
    except FileExistsError:
        filestore.remove_tree(building)
    except BaseException:
        filestore.remove_tree(building)
        raise
    return Template(BUSYBOX, os.path.join(templates, BUSYBOX, "rootfs"))


def _fill(rootfs: str) -> None:
    applets = command.run((_BUSYBOX_BINARY, "--list-full")).stdout.split()
    for folder in {*_FOLDERS, "bin", *(os.path.dirname(applet) for applet in applets)}:
        os.makedirs(os.path.join(rootfs, folder), exist_ok=True)
    os.chmod(os.path.join(rootfs, "tmp"), _STICKY_MODE)
    shutil.copy(_BUSYBOX_BINARY, os.path.join(rootfs, "bin/busybox"))
    for applet in applets:
        if applet != "bin/busybox":
            os.symlink("/bin/busybox", os.path.join(rootfs, applet))
    for name, text in _FILES.items():
        with open(os.path.join(rootfs, name), "x", encoding="utf-8") as file:
            file.write(text)
