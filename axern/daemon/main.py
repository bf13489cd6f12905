"""`axernd`: wire the parts together, take over what is there, serve, and leave in good order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

import axern
from axern import config
from axern.api import server
from axern.daemon import (
    door,
    going_down,
    happenings,
    instance,
    log_lines,
    opening,
    placement,
    read_only,
)
from axern.daemon.capability_loss import CapabilityLoss
from axern.daemon.condition import Condition, of_writer
from axern.daemon.handlers import Handlers, error_response
from axern.daemon.observer import read_now
from axern.daemon.reconcile import Reconciler
from axern.daemon.supervision import Supervision
from axern.daemon.template_service import sweep
from axern.daemon.wiring import wire
from axern.errors import HostError
from axern.host import cgroup_tree, linux, systemd
from axern.runtime import template
from axern.runtime.configured import layout_of, sole_user_of
from ledger.committer import Committer
from ledger.errors import (
    AxernError,
    FileSystemRefused,
    InvalidArgument,
    LedgerBusy,
    LedgerError,
    NodeRetired,
)

if TYPE_CHECKING:
    from axern.daemon.parts import Parts
    from axern.host.systemd import Handover
    from axern.runtime.layout import Layout
    from axern.settings import Settings
    from ledger.store import Ledger

EXIT_FAILED = 1
EXIT_RETIRED = 69
EXIT_BUSY = 75
EXIT_CONFIG = 78
"""69, 75 and 78 are sysexits.h's EX_UNAVAILABLE, EX_TEMPFAIL and EX_CONFIG. A restart would meet
the same, but for 75: an offline release holds the locks for seconds (docs/decisions/0016)."""

_REST_TIMEOUT_S = 30.0
_log = logging.getLogger("axernd")

_OBJECTS_A_COLLECTION = 10_000
"""New objects until a search for cycles: requests make none, and die by themselves."""
_LARGE_BUFFER_BYTES = 1024**2
"""A search of the journal reads whole segments; what it took must not stay with the daemon."""


def main() -> None:
    """Run the daemon until SIGTERM or SIGINT; sandboxes stay."""
    parser = argparse.ArgumentParser(
        prog="axernd",
        description="the Axern daemon: admits, launches, watches and buries sandboxes",
        epilog="Example: axernd --config /etc/axern/axern.toml",
    )
    parser.add_argument("--config", metavar="PATH", help=f"default {config.DEFAULT_PATH}")
    parser.add_argument("--verbose", action="store_true", help="log every tick")
    parser.add_argument(
        "--bury-unknown",
        action="store_true",
        help="first kill and remove every sandbox that the ledger does not know",
    )
    parser.add_argument("--version", action="version", version=f"axernd {axern.__version__}")
    arguments = parser.parse_args()
    in_journal = systemd.writes_to_journal(os.environ, sys.stderr.fileno())
    log_lines.set_up(sys.stderr, verbose=arguments.verbose, in_journal=in_journal)
    _raise_file_limit()
    linux.give_back_from(_LARGE_BUFFER_BYTES)
    os.umask(0o022)  # whatever it was: no file's rights may depend on who started us
    sys.exit(_guarded(arguments.config, bury_unknown=arguments.bury_unknown))


def _raise_file_limit() -> None:
    """Take as many descriptors as we may: clients alone may hold 1,024, and the loop needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _guarded(config_path: str | None, *, bury_unknown: bool) -> int:
    notifier = systemd.Notifier(None)
    try:
        handover = systemd.take(os.environ, os.getpid())  # before anything is started
        notifier = systemd.Notifier(handover.notify_socket)
        settings = config.load(config_path)
        return asyncio.run(_serve(settings, handover, bury_unknown=bury_unknown))
    except AxernError as error:
        notifier.tell(f"STATUS={error}")
        _log.error("%s%s", error, f" ({error.hint})" if error.hint else "")
        if isinstance(error, (InvalidArgument, FileSystemRefused)):
            return EXIT_CONFIG
        if isinstance(error, LedgerBusy):
            return EXIT_BUSY
        return EXIT_RETIRED if isinstance(error, NodeRetired) else EXIT_FAILED
    except OSError as error:  # of the host's disks and tables, which may come to themselves
        words = f"{error.filename or 'the host'}: {error.strerror or error}"
        notifier.tell(f"STATUS={words}")
        _log.error("%s", words)
        _log.info("it was met here", exc_info=error)
        return EXIT_FAILED


async def _serve(settings: Settings, handover: Handover, *, bury_unknown: bool) -> int:
    """Serve on the ledger, and as long as it can't be opened, serve reads of what is left."""
    asyncio.get_running_loop().set_exception_handler(log_lines.tell_of_loop)
    os.makedirs(settings.state_dir, mode=0o755, exist_ok=True)
    while True:
        begun = False
        try:
            async with contextlib.AsyncExitStack() as stack:
                parts, reconciler = await _begin(stack, settings, bury_unknown=bury_unknown)
                begun = True
                return await _until_stopped(parts, reconciler, handover)
        except opening.REFUSALS as error:
            if begun:
                raise
            refused: LedgerError = error
        if await read_only.serve(settings, handover, refused, bury_unknown=bury_unknown):
            return 0


async def _begin(
    stack: contextlib.AsyncExitStack, settings: Settings, *, bury_unknown: bool
) -> tuple[Parts, Reconciler]:
    """Take over what is there, under the locks that *stack* holds from now on."""
    stack.enter_context(sole_user_of(settings.run_dir))
    placement.settle(settings)
    layout = layout_of(settings)
    ledger = opening.open_ledger(settings, layout, bury_unknown=bury_unknown)
    stack.callback(ledger.close)
    layout.prepare()
    with contextlib.suppress(HostError):  # the capabilities tell what is missing
        cgroup_tree.prepare(layout.root)  # before them: their proofs stand on what is there
    await _clear_away(ledger, layout)
    committer = Committer(ledger, read_now)
    stack.push_async_callback(committer.close)
    trouble = partial(of_writer, ledger, committer, settings.ledger_dir)
    condition = Condition(trouble, read_now)
    parts = wire(stack, settings, layout, ledger, committer, condition)
    parts.serve_queue()
    await parts.capabilities.sweep()
    stack.callback(parts.watcher.watch(layout.exits, parts.lives.wake))
    reconciler = Reconciler(parts)
    await reconciler.tick()
    parts.note(happenings.daemon("started", f"axernd {axern.__version__} has started"))
    adopted = reconciler.adopt()
    gc.set_threshold(_OBJECTS_A_COLLECTION)
    gc.freeze()  # the ledger's rows live long: no collection need look at them
    _log.info(
        "node %s at generation %s, %s sandboxes taken over, %s",
        ledger.node_id,
        ledger.generation,
        adopted,
        settings.cgroup_enforcement,
    )
    return parts, reconciler


async def _clear_away(ledger: Ledger, layout: Layout) -> None:
    """Bury what a crash has left of sandboxes without an entry, and of imports and self-tests."""
    buried = await asyncio.to_thread(instance.bury_unknown, ledger.state, layout)
    if buried:
        _log.warning("buried what was left of %s sandboxes without an entry", buried)
    if probes := await asyncio.to_thread(instance.bury_probes, layout):
        _log.warning("buried what was left of %s self-tests", probes)
    if cleared := instance.clear_quotas(ledger.state, layout):
        _log.warning("cleared the storage limits of %s lanes that nobody holds", cleared)
    sweep(layout)
    with contextlib.suppress(HostError):
        await asyncio.to_thread(_make_template, layout)


def _make_template(layout: Layout) -> None:
    try:
        template.make_busybox(layout.templates)
    except AxernError as error:
        _log.warning("template busybox: %s%s", error, f" ({error.hint})" if error.hint else "")


async def _until_stopped(parts: Parts, reconciler: Reconciler, handover: Handover) -> int:
    loop = asyncio.get_running_loop()
    closing, settings, asked = parts.closing, parts.settings, asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    listening = door.listening(settings, handover)
    notifier = systemd.Notifier(handover.notify_socket)
    supervision = Supervision(notifier, handover.watchdog_s, parts, reconciler)
    handlers = Handlers(parts)
    serving = server.build(handlers, error_response, shortly=handlers.short_way.take)
    tasks = {
        asyncio.create_task(serving.serve(sockets=[listening]), name="server"),
        asyncio.create_task(reconciler.loop(), name="loop"),
        asyncio.create_task(CapabilityLoss(parts).loop(), name="capabilities"),
        asyncio.create_task(parts.lives.networks.loop(closing), name="network"),
        asyncio.create_task(parts.lives.failed.wait(), name="bug in a life"),
    }
    _log.info("serving on %s", settings.socket_path)
    stop = asyncio.create_task(asked.wait(), name="signal")
    async with supervision.serving():
        done, _ = await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
        if handover.notify_socket is not None and await asyncio.to_thread(
            systemd.is_host_going_down
        ):
            supervision.stop("the host goes down, and sandboxes end")
            await going_down.end_all(parts)
        else:
            supervision.stop("sandboxes go on")
        parts.note(happenings.daemon("stopped", "axernd was asked to stop"))
        closing.set()
        serving.stop()
        door.shut(settings, handover)
        await parts.lives.close(_REST_TIMEOUT_S)
        for task in tasks:
            if task.get_name() == "bug in a life":
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [result for result in results if isinstance(result, Exception)]
    for failure in failures:
        _log.error("stopped by a failure", exc_info=failure)
    return EXIT_FAILED if failures or stop not in done else 0
