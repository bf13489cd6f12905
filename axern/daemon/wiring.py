"""Wire the parts of a daemon together around its ledger."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from axern.daemon.capability_watch import CapabilityWatch
from axern.daemon.event_log import EventLog
from axern.daemon.lives import Lives
from axern.daemon.log_keeper import LogKeeper
from axern.daemon.observer import Observer, read_now
from axern.daemon.parts import Parts
from axern.daemon.run_index import RunIndex
from axern.daemon.runs import RunStore
from axern.daemon.watcher import FolderWatcher
from axern.runtime import node_doctor
from ledger.heartbeats import Heartbeats
from ledger.tables import BEATS, Beat

if TYPE_CHECKING:
    import contextlib

    from axern.daemon.condition import Condition
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.committer import Committer
    from ledger.store import Ledger


def wire(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    layout: Layout,
    ledger: Ledger,
    committer: Committer,
    condition: Condition,
    *,
    lives: Lives | None = None,
) -> Parts:
    """Return the parts, which *stack* closes; *lives* stands in where nothing may live on."""
    loop = asyncio.get_running_loop()
    watcher = FolderWatcher(loop)
    stack.callback(watcher.close)
    log_watcher = FolderWatcher(loop)
    stack.callback(log_watcher.close)
    keeper = LogKeeper(log_watcher, settings.log_max_bytes)
    stack.push_async_callback(keeper.close)
    events = EventLog(f"{settings.state_dir}/events.jsonl", ledger.generation)
    capabilities = CapabilityWatch(
        node_doctor.rows_of(settings, layout),
        layout,
        read_now,
        lambda what: events.record(what, read_now().wall_ms),
    )
    stack.push_async_callback(capabilities.close)
    runs = RunStore(layout.runs)
    beats = ledger.state.rows(BEATS)
    return Parts(
        settings=settings,
        layout=layout,
        ledger=ledger,
        committer=committer,
        runs=runs,
        run_index=RunIndex(runs),
        lives=lives or Lives(ledger, committer, layout, runs, settings, read_now, keeper),
        observer=Observer(settings, layout, capabilities.snapshot),
        capabilities=capabilities,
        heartbeats=Heartbeats(
            {key: row.monotonic_ms for key, row in beats if isinstance(row, Beat)}
        ),
        watcher=watcher,
        keeper=keeper,
        clock=read_now,
        node_id=ledger.node_id,
        events=events,
        condition=condition,
    )
