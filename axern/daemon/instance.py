"""What a start finds: no empty or older ledger beside what a lost one left, and a crash's rests."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import TYPE_CHECKING

from axern.daemon.runs import RUN_ID
from axern.errors import CapabilityMissing, HostError
from axern.host import filestore, project_quota
from axern.host.cgroup import Cgroup
from axern.runtime import monitor, record, storage, teardown
from ledger.checkpoint import CHECKPOINT
from ledger.errors import LedgerCorrupt
from ledger.reservation import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from axern.runtime.layout import Layout
    from ledger.state import State

_LONGEST_NODE_ID = 1024
_PROBE = re.compile(r"probe-[a-z0-9-]{2,58}")
"""How the sandboxes of self-tests are called."""
_log = logging.getLogger(__name__)


def require_ledger_for_what_is_there(ledger_dir: str, layout: Layout) -> None:
    """Do nothing if a new ledger may be born: there is one, or nothing speaks of an earlier one.

    Raises:
        LedgerCorrupt: Runs or sandboxes are there and their ledger is not; an empty one would
            charge nobody for what still runs, and forget every run.
    """
    if os.path.lexists(f"{ledger_dir}/{CHECKPOINT}"):
        return
    left = [path for path in (_node_path(layout),) if os.path.lexists(path)]
    left += [f"{layout.runs}/{name}" for name in _ids_in(layout.runs)]
    left += [f"{group}/{name}" for group in _groups(layout) for name in _ids_in(group)]
    if left:
        raise LedgerCorrupt(
            f"there is no ledger in {ledger_dir}, but {len(left)} things that one speaks of, "
            f"such as {left[0]}",
            hint=f"put the ledger back, or end what runs and move {layout.state_dir} away to begin "
            "anew",
        )


def remembered_node(layout: Layout) -> str | None:
    """Return the id of the node that this host has been, None where there was none yet."""
    try:
        with open(_node_path(layout), encoding="utf-8") as file:
            return file.read(_LONGEST_NODE_ID).strip() or None
    except FileNotFoundError:
        return None


def remember_node(layout: Layout, node_id: str) -> None:
    """Keep the node's id beside its ledger, so that one that is gone is missed after a boot, too.

    Where that can't be done now, the next daemon does it.
    """
    if remembered_node(layout) is None:
        with contextlib.suppress(OSError):
            record.write_durably(_node_path(layout), f"{node_id}\n".encode())


def _node_path(layout: Layout) -> str:
    return f"{layout.state_dir}/node-id"


def require_known_sandboxes(state: State, layout: Layout) -> None:
    """Do nothing if every sandbox that has a control group has an entry.

    Raises:
        LedgerCorrupt: One has not. An entry comes before the control group and goes after it, so
            that this ledger is an older one, and who runs there would be charged to nobody.
    """
    unknown = _unknown(state, _groups(layout))
    if unknown:
        raise LedgerCorrupt(
            f"the ledger, at generation {state.generation}, knows nothing of {len(unknown)} "
            f"sandboxes that are there, such as {unknown[0]}: it is an older one",
            hint="put the newest ledger back, or end them: axernd --bury-unknown",
        )


def bury_unknown(state: State, layout: Layout) -> int:
    """Bury whatever is there of a sandbox that has no entry in *state*; return how many there were.

    After a power failure that may be folders of one that was released: that they were removed need
    not have reached the disk.

    Raises:
        NotProvedGone: One resists.
    """
    unknown = _unknown(state, (*_groups(layout), layout.sandboxes, layout.filestore))
    for name in unknown:
        for runtime in RUNTIMES:
            teardown.bury(runtime, layout, name)
    return len(unknown)


def bury_probes(layout: Layout) -> int:
    """Bury the sandboxes of self-tests that a crash has left, which have no entry; return how many.

    One that resists is told and keeps nobody from serving: it is small, and the next self-test of
    its kind finds it in its way.
    """
    places = (*_groups(layout), layout.sandboxes, layout.filestore, layout.runs, layout.exits)
    buried = 0
    for name in sorted({name for folder in places for name in _names(folder, _PROBE)}):
        paths = layout.sandbox(name)
        try:
            for runtime in RUNTIMES:
                teardown.bury(runtime, layout, name)
            monitor.discard_exit(paths)
            filestore.remove_tree(paths.run_folder)
            buried += 1
        except (HostError, OSError) as error:
            _log.warning("a self-test can't be buried: %s", error)
    return buried


def clear_quotas(state: State, layout: Layout) -> int:
    """Clear the limits that a crash has left on lanes that nobody holds; return how many.

    Nothing may be launched meanwhile. Where the filestore can't tell they stay, which is told: a
    launch in such a lane sets its own.
    """
    held = (row.lane for row in state.reservations() if row.lane is not None)
    try:
        project_quota.require_enforced(layout.filestore)
        return storage.clear_unheld(layout.filestore, held)
    except CapabilityMissing:
        return 0
    except HostError as error:
        _log.warning("limits that a crash may have left are not cleared: %s", error)
        return 0


def _groups(layout: Layout) -> tuple[str, ...]:
    root = Cgroup(layout.hierarchies, layout.cgroup_root)
    return root.child("sandboxes").folder, root.child("monitors").folder


def _unknown(state: State, folders: Iterable[str]) -> list[str]:
    there = {name for folder in folders for name in _ids_in(folder)}
    return sorted(name for name in there if state.find_reservation(name) is None)


def _ids_in(folder: str) -> list[str]:
    return _names(folder, RUN_ID)


def _names(folder: str, pattern: re.Pattern[str]) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if pattern.fullmatch(name)]
    except FileNotFoundError:
        return []
