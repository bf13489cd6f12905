"""A node that was retired never comes back, not even by an older copy of its ledger.

Its ledger says so, and from then on the file `retired-<node id>` in `state_dir` as well, which no
copy of a ledger takes away. Source: docs/decisions/0016-service.md.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

from axern.runtime import record
from ledger import standing
from ledger.errors import NodeRetired

if TYPE_CHECKING:
    from ledger.store import Ledger

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 128
_MOST_BYTES = 4096


def require_in_service(state_dir: str, ledger: Ledger) -> None:
    """Do nothing if a daemon may serve on *ledger*, which is below *state_dir*.

    Raises:
        NodeRetired: It says that its node was retired, or a newer one has said so.
    """
    remember(state_dir, ledger)
    standing.require_in_service(ledger.state, ledger.node_id)
    require_not_noted(state_dir, ledger.node_id)


def require_not_noted(state_dir: str, node_id: str) -> None:
    """Raise NodeRetired if *state_dir* remembers that, whatever the ledger of *node_id* says."""
    path = _path(state_dir, node_id)
    if os.path.lexists(path):
        raise NodeRetired(
            f"{_told(path)}; a ledger that says nothing of it is an older copy",
            hint="it never comes back; a new node begins with a state_dir of its own",
        )


def remember(state_dir: str, ledger: Ledger) -> None:
    """Keep what *ledger* says of a retirement beside it as well, durably; else do nothing.

    Where there is no room for it the ledger alone says so, and the next daemon tries again.
    """
    try:
        standing.require_in_service(ledger.state, ledger.node_id)
    except NodeRetired as error:
        path = _path(state_dir, ledger.node_id)
        if not os.path.lexists(path):
            with contextlib.suppress(OSError):
                record.write_durably(path, f"{error.message}\n".encode())


def _path(state_dir: str, node_id: str) -> str:
    return f"{state_dir}/retired-{_UNSAFE.sub('_', node_id)[:_LONGEST_NAME]}"


def _told(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace").strip()
    return f"{path} says that this node was retired"
