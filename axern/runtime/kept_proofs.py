"""Proofs that cost a sandbox, kept while the host is up: a daemon that starts anew repeats none.

They are of one boot and one version of Axern, wherever `run_dir` is: another kernel proves anew.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING

import axern
from axern.host.process import boot_id
from axern.host.standings import Proof

if TYPE_CHECKING:
    from collections.abc import Mapping

    from axern.runtime.layout import Layout

_MOST_BYTES = 1024**2


def load(layout: Layout) -> dict[str, Proof]:
    """Return the proofs that were kept in this boot; none where they can't be read.

    Each counts only for the very identity that it names, so that an old one does no harm.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        descriptor = os.open(_path(layout), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            is_ours = os.fstat(descriptor).st_uid == os.geteuid()
            kept = json.loads(file.read(_MOST_BYTES)) if is_ours else {}
        if (kept["boot_id"], kept["version"]) == (boot_id(), axern.__version__):
            return {
                str(key): Proof(str(proof["identity"]), str(proof["message"]))
                for key, proof in kept["proofs"].items()
            }
    return {}


def save(layout: Layout, proofs: Mapping[str, Proof]) -> None:
    """Keep *proofs* until the next boot; raise OSError where there is no room."""
    whole = {
        "boot_id": boot_id(),
        "version": axern.__version__,
        "proofs": {
            key: {"identity": proof.identity, "message": proof.message}
            for key, proof in proofs.items()
        },
    }
    path = _path(layout)
    new = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(whole, file)
    os.rename(new, path)


def _path(layout: Layout) -> str:
    return f"{layout.run_dir}/capability-proofs.json"
