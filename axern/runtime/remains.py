"""What remains of an entry that is gone: what the journal tells of it, and what leaked of it.

A release asks here once the ledger has no such entry, so that releasing twice answers the same,
and so that whatever an entry left behind is buried by the same command.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from axern.host.process import boot_id
from axern.runtime import doctor, monitor, record, teardown, traces
from ledger import history
from ledger.errors import InvalidArgument, NotFound, StateConflict
from ledger.release import Asked, Released, require_right
from ledger.reservation import RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from axern.runtime.layout import Layout
    from axern.runtime.traces import Traces
    from ledger.history import History

_ID_LENGTH = 32


def release(
    layout: Layout,
    ledger_dir: str,
    word: str,
    asked: Asked,
    generation: int,
    is_live: Callable[[str], bool],
) -> Released:
    """Answer for an id that the ledger has no entry of, after burying what is left of it.

    Args:
        layout: Where everything is.
        ledger_dir: The ledger's folder.
        word: An id, or a unique beginning of it.
        asked: Who wants it.
        generation: The last commit that counts.
        is_live: Tells whether the ledger has an entry by now. Asked after the host was looked at:
            an entry comes before the first trace and goes after the last.
    Raises:
        NotFound: Nothing remembers it.
        StateConflict: Something of it runs, and *asked* has no force.
        PermissionDenied: It is somebody else's, or has to be buried and *asked* is no admin's.
        NotProvedGone: Something of it resists.
    """
    past = history.find(ledger_dir, word, generation)
    name = past.reservation_id if past else _trace_id(layout, word)
    seen = traces.of(layout, name)
    if is_live(name):
        raise StateConflict(f"reservation {name} was admitted just now", hint="try again")
    told = _of_history(past, asked) if past else _of_record(seen, asked)
    buried = _bury(layout, seen, asked) if asked.caller.is_admin else None
    if buried is not None:
        row = told.row if told else None
        return Released(name, row, _wall_ms(), asked.by, buried)
    if told is None:
        raise not_found(word)
    return told


def not_found(word: str) -> NotFound:
    """Return the error for an id that nothing remembers."""
    return NotFound(
        f"no reservation has an id that begins with {word}, and none is remembered",
        hint="list them with: axern reservations",
    )


def _trace_id(layout: Layout, word: str) -> str:
    """Return the one id that begins with *word* and has left something on the host."""
    if len(word) == _ID_LENGTH:
        return word
    found = sorted(name for name in traces.Host(layout).ids() if name.startswith(word))
    if not found:
        raise not_found(word)
    if len(found) > 1:
        raise InvalidArgument(
            f"{len(found)} ids that have left something begin with {word}",
            hint="give more of the id",
        )
    return found[0]


def _of_history(past: History, asked: Asked) -> Released:
    if past.last is None:
        require_right(asked, past.reservation_id)
    else:
        require_right(asked, past.reservation_id, past.last.owner.uid, past.last.namespace)
    end = past.steps[-1]
    # The ledger has no entry; where its journal has no end of it, the lines in between are lost.
    evidence = end.note if past.released else "the ledger has no entry; its last steps are lost"
    return Released(past.reservation_id, past.last, end.wall_ms, end.by, evidence, already=True)


def _of_record(seen: Traces, asked: Asked) -> Released | None:
    """Answer from the record of a run that the journal's archive no longer reaches back to."""
    if seen.run_folder is None:
        return None
    ended = record.decode(record.exit_path(seen.run_folder), record.RunExit)
    if ended is None:
        return None
    require_right(asked, seen.sandbox_id, *record.owner(seen.run_folder))
    evidence = "the run's record; the journal no longer has it"
    return Released(
        seen.sandbox_id, None, ended.finished_wall_ms, "unknown", evidence, already=True
    )


def _bury(layout: Layout, seen: Traces, asked: Asked) -> str | None:
    """Bury whatever has leaked and return what was proved, or None if there was nothing."""
    name = seen.sandbox_id
    orphaned = doctor.is_orphaned_run(seen)
    if not (seen.kernel or seen.files or orphaned):
        return None
    if seen.runs and not asked.force:
        raise StateConflict(
            f"{name} has no entry, but processes of it run ({seen.workload.processes}) in "
            f"{seen.workload.path}",
            hint=f"to end them: axern reservations release {name} --force --reason TEXT",
        )
    there = len(seen.kernel) + len(seen.files)
    for runtime in RUNTIMES:
        teardown.bury(runtime, layout, name)
    monitor.discard_exit(layout.sandbox(name))
    if orphaned:
        shutil.rmtree(seen.run_folder or "", ignore_errors=True)
    return f"{asked.note}; boot {boot_id()}: it had no entry; traces removed: {there}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
