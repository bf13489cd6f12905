"""A process that was added to a run, seen from here: how it ends, and signals on their way to it.

A thread asks the daemon how it is, over and over, so that a restart of the daemon is nothing but a
pause: the streams do not pass through it.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from axern.api.client import HEALTH_TIMEOUT_S, STREAM_TIMEOUT_S, ApiError
from axern.cli.actions.foreground import Patience
from axern.cli.grammar import OWN_FAILURE
from axern.errors import DaemonUnreachable, ProtocolError
from ledger.errors import AxernError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from axern.cli.actions.where import Where

    Json = dict[str, Any]


class NotStarted(AxernError):
    """It was not started; `exit_code` says whose fault that is."""

    code = "runtime_start_error"

    def __init__(self, view: Json) -> None:
        super().__init__(view["message"] or "it could not be started")
        self.exit_code = int(view["cli_exit_code"] or OWN_FAILURE)


class Added:
    """One added process; closed, our ends of its streams are too.

    `ends` are our ends by name, `over` is a descriptor that hangs up once it has ended.
    """

    def __init__(self, where: Where, run_id: str, view: Json, ends: Mapping[str, int]) -> None:
        self.ends = dict(ends)
        self.over, self._told = os.pipe()
        self._where = where
        self._target = f"/v2/runs/{run_id}/execs/{view['id']}"
        self._view: Json | None = None
        self._error: AxernError | None = None

    @classmethod
    def begin(cls, where: Where, run_id: str, body: Json) -> Self:
        """Add a process to *run_id*.

        Raises:
            NotStarted: It could not be started.
            AxernError: The daemon refuses, or is not there.
        """
        with where.reach() as client:
            answer, files = client.request_files(f"/v2/runs/{run_id}/execs", body)
        view = answer["exec"]
        if view["status"] == "failed":
            raise NotStarted(view)
        if len(files) != len(view["descriptors"]):
            raise ProtocolError("the daemon gave other descriptors than it said")
        return cls(where, run_id, view, dict(zip(view["descriptors"], files, strict=True)))

    def __enter__(self) -> Self:
        threading.Thread(target=self._ask, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for name in tuple(self.ends):
            self.close(name)

    def close(self, name: str) -> None:
        """Close our end of the stream *name*; one that is closed is fine."""
        descriptor = self.ends.pop(name, None)
        if descriptor is not None:
            os.close(descriptor)

    def exit_code(self) -> int:
        """Return what it ended with, once `over` has hung up.

        Raises:
            AxernError: Nobody can tell.
        """
        if self._view is None:
            raise self._error or ProtocolError("nobody asked how it ended")
        if self._view["message"]:
            raise NotStarted(self._view)
        return int(self._view["cli_exit_code"])

    def send(self, signal_name: str) -> None:
        """Send it a signal, by the name without SIG."""
        with self._where.client() as client:
            body = {"signal": signal_name}
            client.request("POST", f"{self._target}/signal", body, timeout_s=HEALTH_TIMEOUT_S)

    def revoke(self) -> None:
        """Kill it."""
        with self._where.client() as client:
            client.request("DELETE", self._target, timeout_s=HEALTH_TIMEOUT_S)

    def _ask(self) -> None:
        try:
            self._view = self._ended()
        except AxernError as error:
            self._error = error
        finally:
            os.close(self._told)

    def _ended(self) -> Json:
        patience = Patience()
        while True:
            try:
                with self._where.client() as client:
                    answer = client.request("GET", self._target, timeout_s=STREAM_TIMEOUT_S)
            except DaemonUnreachable as error:
                patience.wait(error)
            except ApiError as error:
                if error.code != "busy":
                    raise
                patience.wait(error)
            else:
                patience.succeed()
                view: Json = answer["exec"]
                if view["status"] != "running":
                    return view
