"""Our standard input handed to a run, in a thread beside the one that shows its output.

The daemon takes what the workload reads, so that a slow one slows us down. What was sent and not
answered is sent again under the same offset, and is taken once. Only the end of our own input ends
the run's: if we vanish, it waits.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from axern.api.client import ApiError
from axern.cli.actions.foreground import Patience
from axern.cli.actions.target import query
from axern.cli.output import say
from axern.errors import DaemonUnreachable
from ledger.errors import AxernError

if TYPE_CHECKING:
    from axern.cli.actions.where import Where

STDIN = 0
_PART_BYTES = 256 * 1024


def begin(where: Where, run_id: str) -> None:
    """Begin to hand on; the thread ends with the input, with the run, or with this process."""
    threading.Thread(target=_guarded, args=(where, run_id), daemon=True).start()


def _guarded(where: Where, run_id: str) -> None:
    try:
        _pump(where, run_id)
    except AxernError as error:
        say(f"axern: standard input is handed on no further: {error.message} [{error.code}]")


def _pump(where: Where, run_id: str) -> None:
    offset = 0
    while True:
        try:
            data = os.read(STDIN, _PART_BYTES)
        except OSError as error:
            say(f"axern: standard input can't be read: {error.strerror}")
            return  # and no end is told: what the run has is not the whole
        end = not data
        while data or end:
            taken, closed = _hand_over(where, run_id, data, offset, end=end)
            data, offset = data[taken - offset :], taken
            if closed:
                return


def _hand_over(
    where: Where, run_id: str, data: bytes, offset: int, *, end: bool
) -> tuple[int, bool]:
    """Return the offset up to which the daemon has taken the input, and if it takes no more."""
    target = query(f"/v2/runs/{run_id}/stdin", offset=offset, end="true" if end else None)
    patience = Patience(quiet=True)  # who follows the output tells of an absence
    while True:
        try:
            answer = where.client().request("POST", target, data)["stdin"]
        except DaemonUnreachable as error:
            patience.wait(error)
        except ApiError as error:
            if error.code != "busy":
                raise
            patience.wait(error)
        else:
            return int(answer["taken"]), bool(answer["closed"])
