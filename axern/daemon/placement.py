"""Settle below which control group everything lives, before anything is made or looked for."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from axern.host import cgroup, systemd
from axern.runtime import configured
from axern.runtime.layout import SANDBOX_ID
from ledger.errors import InvalidArgument

if TYPE_CHECKING:
    from axern.settings import Settings

_log = logging.getLogger(__name__)


def settle(settings: Settings) -> None:
    """Let this daemon, and whoever works here without one, use one and the same control group.

    It is the configured one, else what systemd has delegated to this process, else `axern`. Call it
    with `run_dir` held.

    Raises:
        InvalidArgument: Another one was used before, and there are sandboxes in it: they would
            be taken for gone.
        CapabilityMissing: This host has no cgroup version 2.
    """
    hierarchies = cgroup.find_hierarchies()
    configured_root = configured.cgroup_root_from(settings, hierarchies)
    wanted = (
        configured_root
        or systemd.delegated_root(hierarchies.unified)
        or configured.USUAL_CGROUP_ROOT
    )
    used = configured.remembered_cgroup_root(settings.run_dir)
    if used == wanted:
        return
    if used is not None:
        left = _sandboxes(cgroup.Cgroup(hierarchies, used))
        if left:
            raise InvalidArgument(
                f"cgroup_root: {wanted} is not where the {len(left)} sandboxes of this node are, "
                f"such as {left[0]}: they are below {used}",
                hint=f'configure cgroup_root = "{used}" until they have ended',
            )
    configured.remember_cgroup_root(settings.run_dir, wanted)
    _log.info("control groups below %s/%s", hierarchies.unified, wanted)


def _sandboxes(root: cgroup.Cgroup) -> list[str]:
    folders = (root.child("sandboxes").folder, root.child("monitors").folder)
    names = {name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)}
    return sorted(name for name in names if SANDBOX_ID.fullmatch(name))
