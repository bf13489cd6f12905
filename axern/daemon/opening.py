"""Open the ledger for a daemon, or say why nothing may be decided on what is there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from axern.daemon import instance
from axern.daemon.observer import read_now
from axern.host import filestore
from axern.runtime import retirement
from ledger.errors import CommitFailed, LedgerCorrupt, LedgerTooNew
from ledger.files import DIRECTORY_MODE
from ledger.store import Ledger

if TYPE_CHECKING:
    from axern.runtime.layout import Layout
    from axern.settings import Settings

REFUSALS = (LedgerCorrupt, LedgerTooNew, CommitFailed)
"""What a daemon outlives: it serves reads until somebody has repaired the ledger or its disk."""


def open_ledger(settings: Settings, layout: Layout, *, bury_unknown: bool) -> Ledger:
    """Return the node's ledger, open for commits; the caller holds `run_dir`.

    Raises:
        LedgerCorrupt: It is damaged, gone, or older than what this host has seen.
        LedgerTooNew: A newer program wrote it.
        CommitFailed: Its disk refuses.
        LedgerBusy: Another process holds it.
        NodeRetired: It is over.
        FileSystemRefused: It lies where no ledger may.
    """
    instance.require_ledger_for_what_is_there(settings.ledger_dir, layout)
    node_id = settings.node_id or instance.remembered_node(layout)
    if node_id is not None:
        retirement.require_not_noted(settings.state_dir, node_id)
    if os.path.isdir(settings.ledger_dir):  # where there is none yet, its birth sets the mode
        filestore.secure_folder(settings.ledger_dir, DIRECTORY_MODE)
    ledger = Ledger.open(
        settings.ledger_dir,
        read_now(),
        node_id=node_id,
        holder="axernd",
        remember_in=settings.run_dir,
    )
    try:
        retirement.require_in_service(settings.state_dir, ledger)
        if not bury_unknown:
            instance.require_known_sandboxes(ledger.state, layout)
        instance.remember_node(layout, ledger.node_id)
    except BaseException:
        ledger.close(checkpoint=False)
        raise
    return ledger
