"""What this node can do and what is wrong with it: one check a line, each with its remedy.

Capabilities are told as the daemon knows them, or proved here where none runs. Everything else is
read from the host either way.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from axern.host import inventory, programs
from axern.host.capabilities import (
    AVAILABLE,
    DEPENDENCY_UNAVAILABLE,
    DISABLED,
    EXPIRED,
    PENDING,
    PROBE_ERROR,
    PROBE_FAILED,
    Denied,
    Proved,
    Unclear,
    attempt,
)
from axern.host.standings import Standings
from axern.runtime import capability_table, kept_proofs, known_cves, offline, sandbox_proof
from axern.runtime.configured import layout_of, sole_user_of
from ledger import reader
from ledger.errors import AxernError, LedgerBusy, NotFound
from ledger.reservation import RUNTIMES
from ledger.resources import OptionalResources
from ledger.units import format_bytes, format_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from axern.host.capabilities import Capability, Row
    from axern.runtime.layout import Layout
    from axern.settings import Settings

HOLDER = "axern node doctor"
OK = "ok"
ABSENT = "absent"
WARNING = "warning"
ERROR = "error"
_UNSURE = frozenset({PENDING, PROBE_ERROR, EXPIRED})
_FIRST_WALL_S = 1_767_225_600
"""The beginning of 2026: a clock before that was never set."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `absent` is what the node lacks and was not asked to have."""

    check: str
    status: str
    code: str
    message: str
    remedy: str | None = None


def rows_of(settings: Settings, layout: Layout) -> tuple[Row, ...]:
    """Return the table of capabilities as the configuration wants it."""
    enforced = settings.cgroup_enforcement == "required"
    extensions = tuple(settings.extension_capabilities)
    return capability_table.table(layout, enforced=enforced, extensions=extensions)


def examine(settings: Settings) -> list[dict[str, object]]:
    """Return every check on a host where no daemon runs; for root, who alone may prove things.

    What takes a sandbox to prove is told as it was proved last.

    Raises:
        PermissionDenied: Not root.
    """
    offline.require_root("examine the node")
    layout = layout_of(settings)
    rows = rows_of(settings, layout)
    found = [_no_daemon(), *of_capabilities(prove(rows, layout), settings, rows)]
    return [asdict(check) for check in (*found, *of_host(settings, layout), _findings(settings))]


def prove(rows: tuple[Row, ...], layout: Layout) -> tuple[Capability, ...]:
    """Prove each row once that takes no sandbox, and return what is known."""
    standings = Standings(rows, kept_proofs.load(layout))
    for row in rows:
        standings.see(row.key, attempt(row.identity), 0)
    tried: set[str] = set()
    while due := [row for row in standings.due(0) if _may_try(row, tried)]:
        tried.add(due[0].key)
        identity = standings.identity(due[0].key) or ""
        standings.tell(due[0].key, identity, attempt(due[0].probe), 0)
    return standings.snapshot(0).capabilities


def _may_try(row: Row, tried: set[str]) -> bool:
    return row.key not in tried and not row.is_self_test


def probe(settings: Settings) -> list[dict[str, object]]:
    """Run a sandbox of each runtime, and the self-tests of what is enforced; return the checks.

    Beside a daemon too: the sandboxes are in no ledger, small, short and buried.

    Raises:
        PermissionDenied: Not root.
    """
    offline.require_root("run a sandbox apart from the ledger")
    layout = layout_of(settings)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(LedgerBusy):  # a daemon has them made
            stack.enter_context(sole_user_of(settings.run_dir, HOLDER))
            layout.prepare()
        found = [
            _tried(f"sandbox/{name}", partial(sandbox_proof.prove, name, layout))
            for name in RUNTIMES
        ]
        rows = rows_of(settings, layout)
        there = {item.key for item in prove(rows, layout) if item.present}
        found += [
            _tried(f"self-test/{row.key}", row.probe)
            for row in rows
            if row.is_self_test and row.disabled is None and there.issuperset(row.needs)
        ]
    return [asdict(check) for check in found]


def _tried(check: str, call: Callable[[], str]) -> Check:
    match attempt(call):
        case Proved(message):
            return Check(check, OK, AVAILABLE, message)
        case Denied(message, remedy):
            return Check(check, ERROR, PROBE_FAILED, message, remedy)
        case Unclear(message):
            return Check(check, ERROR, PROBE_ERROR, message, "look into the daemon's log")


def of_capabilities(
    items: tuple[Capability, ...], settings: Settings, rows: Iterable[Row]
) -> Iterator[Check]:
    """Yield one check for each capability: without what it must have, a node runs nothing."""
    table = {row.key: row for row in rows}
    essential = _essential(settings, table)
    present = {item.key for item in items if item.present}
    for item in items:
        if item.present:
            status = OK
        elif item.code == DISABLED or item.key not in essential:
            status = ABSENT
        else:
            status = WARNING if item.code in _UNSURE else ERROR
        said, remedy = item.message, item.remedy
        if item.code == DEPENDENCY_UNAVAILABLE:
            missing = next(need for need in table[item.key].needs if need not in present)
            said, remedy = f"needs {missing}", f"see {missing}"
        told = said if said.startswith(item.title) else f"{item.title}: {said}"
        yield Check(item.key, status, item.code, told, remedy)


def _essential(settings: Settings, rows: dict[str, Row]) -> frozenset[str]:
    """Return the keys that a run needs which asks for nothing, and all that those need."""
    enforced = settings.cgroup_enforcement == "required"
    usual = OptionalResources(ephemeral_storage_bytes=1 if enforced else None)
    open_keys = list(
        capability_table.required_by(settings.default_runtime, usual, enforced=enforced)
    )
    found: set[str] = set()
    while open_keys:
        key = open_keys.pop()
        found.add(key)
        open_keys.extend(rows[key].needs)
    return frozenset(found)


def of_host(settings: Settings, layout: Layout) -> Iterator[Check]:
    """Yield what is to be said of the host beside its capabilities."""
    yield _enforcement(settings)
    for name in RUNTIMES:
        yield from _program(name, getattr(layout, name))
    yield _room(layout)
    yield _clock()
    yield _ledger(settings)


def _enforcement(settings: Settings) -> Check:
    if settings.cgroup_enforcement == "required":
        words = "cgroup_enforcement is required: what can't be enforced is refused"
        return Check("enforcement", OK, AVAILABLE, words)
    return Check(
        "enforcement",
        WARNING,
        DISABLED,
        "cgroup_enforcement is disabled_dev: requests are charged, and no limit is enforced",
        'cgroup_enforcement = "required" in the configuration',
    )


def _program(name: str, path: str) -> Iterator[Check]:
    """Yield whether a runtime's program can be trusted, and which known holes its version has."""
    with contextlib.suppress(AxernError, OSError):
        version = programs.ask(path).version
        others = programs.who_may_change(path)
        yield (
            Check(f"program/{name}", ERROR, "changeable", others, f"chown root: {path}, chmod go-w")
            if others
            else Check(f"program/{name}", OK, AVAILABLE, f"only root may change {path}")
        )
        holes = known_cves.open_in(name, version)
        yield (
            Check(
                f"holes/{name}",
                WARNING,
                "known-holes",
                f"{name} {version} has upstream: "
                + "; ".join(f"{hole.name} ({hole.what})" for hole in holes),
                f"upgrade {name}, or see in its package's changelog that they are closed",
            )
            if holes
            else Check(f"holes/{name}", OK, AVAILABLE, f"none is known of {name} {version}")
        )


def _room(layout: Layout) -> Check:
    try:
        capacity = inventory.observe_capacity(layout.filestore)
        free = inventory.filestore_free_bytes(layout.filestore)
    except AxernError as error:
        hint = "axern node setup --filestore-size SIZE, or start axernd once"
        return Check("filestore/room", WARNING, PROBE_ERROR, error.message, hint)
    total = capacity.filestore_total_bytes
    words = (
        f"{format_short(free, format_bytes)} of {format_short(total, format_bytes)} "
        f"are left on the file system of {layout.filestore}"
    )
    if free * 20 < total:
        remedy = "axern run prune, axern template remove, or a larger disk"
        return Check("filestore/room", WARNING, "little-room", words, remedy)
    return Check("filestore/room", OK, AVAILABLE, words)


def _clock() -> Check:
    if time.time() < _FIRST_WALL_S:
        words = "the wall clock stands before 2026; only what is displayed suffers"
        return Check("clock", WARNING, "not-set", words, "timedatectl set-ntp true")
    return Check("clock", OK, AVAILABLE, "the wall clock is set; deadlines do not follow it")


def _ledger(settings: Settings) -> Check:
    try:
        snapshot = reader.read(settings.ledger_dir)
    except NotFound as error:
        return Check("ledger", ABSENT, error.code, error.message, "axernd makes one when it starts")
    except AxernError as error:
        remedy = error.hint or f"python -m ledger check {settings.ledger_dir}"
        return Check("ledger", ERROR, error.code, error.message, remedy)
    words = f"node {snapshot.node_id}, generation {snapshot.generation}, reads without damage"
    return Check("ledger", OK, AVAILABLE, words)


def of_daemon(degraded: tuple[str, ...]) -> Check:
    """Return the check of a daemon that answers; *degraded* is what it can't keep up any more."""
    if degraded:
        words = f"lost, and still asked for by what runs: {', '.join(degraded)}"
        return Check("daemon", WARNING, "degraded", words, "see their checks below")
    return Check("daemon", OK, AVAILABLE, "it answers")


def _no_daemon() -> Check:
    words = "no daemon answers, so that nothing is admitted and nobody is watched"
    return Check("daemon", WARNING, "daemon_unreachable", words, how_to_start())


def how_to_start() -> str:
    """Return how a daemon is started on this host: not every one has systemd (sd_booted(3))."""
    if os.path.isdir("/run/systemd/system"):
        return "systemctl start axernd.socket axernd.service"
    return "axernd --config PATH"


def _findings(settings: Settings) -> Check:
    if not os.path.isdir(settings.ledger_dir):
        return Check("reservations", ABSENT, "not_found", "there is no ledger to compare with")
    try:
        findings = offline.examine(settings)["findings"]
    except AxernError as error:
        return Check("reservations", WARNING, error.code, error.message, error.hint)
    return of_findings(findings if isinstance(findings, list) else [])


def of_findings(findings: list[dict[str, object]]) -> Check:
    """Return the check that stands for what the doctor of reservations has found."""
    if not findings:
        return Check("reservations", OK, AVAILABLE, "ledger and host agree")
    worst = ERROR if any(each["severity"] == "problem" for each in findings) else WARNING
    code = str(findings[0]["code"])
    words = f"{len(findings)} findings, the first: {code} {findings[0]['id']}"
    return Check("reservations", worst, code, words, "axern reservations doctor")
