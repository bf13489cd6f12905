"""Templates: named root file systems to start sandboxes from; `busybox` is built in."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass

from axern.errors import RootfsRefused
from axern.host import filestore
from axern.runtime import command

TEMPLATE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
BUSYBOX = "busybox"
_BUSYBOX_BINARY = "/bin/busybox"
_FOLDERS = ("dev", "etc", "proc", "root", "sys", "tmp", "var")
_FOLDER_MODE = 0o755
_STICKY_MODE = 0o1777
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
}


@dataclass(frozen=True, slots=True)
class Template:
    """A named root file system, an absolute path to a folder that is only ever read."""

    name: str
    rootfs: str


def find(templates: str, name: str) -> Template | None:
    """Return the template *name* below the folder *templates*, or None; a hostile name is none."""
    if TEMPLATE_NAME.fullmatch(name) is None:
        return None
    rootfs = os.path.join(templates, name, "rootfs")
    return Template(name, rootfs) if os.path.isdir(rootfs) else None


def list_all(templates: str) -> tuple[Template, ...]:
    """Return all templates below the folder *templates*, by name."""
    try:
        names = sorted(os.listdir(templates))
    except FileNotFoundError:
        return ()
    found = (find(templates, name) for name in names)
    return tuple(template for template in found if template is not None)


def make_busybox(templates: str) -> Template:
    """Make the template `busybox` from the host's static busybox, unless it is there already.

    It appears whole or not at all: built under another name, then renamed.

    Raises:
        RootfsRefused: The host has no busybox.
        CommandFailed: It does not know its own applets.
    """
    present = find(templates, BUSYBOX)
    if present is not None:
        return present
    if not os.access(_BUSYBOX_BINARY, os.X_OK):
        raise RootfsRefused(
            f"the host has no {_BUSYBOX_BINARY} to make a template from",
            hint="apt install busybox-static",
        )
    building = tempfile.mkdtemp(prefix=".building-", dir=templates)
    try:
        os.chmod(building, _FOLDER_MODE)
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
