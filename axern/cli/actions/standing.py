"""What `axern node drain`, `undrain` and `retire` do, with a daemon or on the ledger's files."""

from __future__ import annotations

import os
from collections.abc import Callable

from axern.cli.output import counted, put, put_json, say, visible
from axern.errors import DaemonUnreachable
from ledger import standing
from ledger.errors import InvalidArgument
from ledger.release import require_reason
from ledger.rights import by_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where
    from ledger.clock import Now
    from ledger.state import Change, State

    Json = dict[str, Any]

_HOLDER = "axern node"


def drain(where: Where, *, reason: str | None, output: str) -> None:
    """Let nothing new in; *reason* is told to whoever is refused."""
    why = _checked(reason)

    def operation(view: State, now: Now) -> Change:
        return standing.drain(view, standing.Wish(by_default(os.geteuid()), why), now)

    answer = _change(where, "POST", "/v2/node/drain", {"reason": why}, operation)
    left = f"{_left(answer)} left on it"
    _tell(answer, output, f"the node drains: {left}; to take new work again: axern node undrain")


def undrain(where: Where, *, output: str) -> None:
    """Take new work again."""

    def operation(view: State, _: Now) -> Change:
        return standing.undrain(view, by_default(os.geteuid()))

    answer = _change(where, "DELETE", "/v2/node/drain", None, operation)
    _tell(answer, output, f"the node takes new work: {_left(answer)} on it")


def retire(where: Where, *, reason: str | None, output: str) -> None:
    """Take no work ever again."""
    why = _checked(reason)

    def operation(view: State, now: Now) -> Change:
        return standing.retire(view, standing.Wish(by_default(os.geteuid()), why), now)

    answer = _change(where, "POST", "/v2/node/retire", {"reason": why}, operation)
    _tell(
        answer,
        output,
        "the node is retired: no daemon serves on its ledger again. Stop this one for good: "
        "systemctl disable --now axernd.socket axernd.service",
    )


def _checked(reason: str | None) -> str:
    if reason is None:
        raise InvalidArgument(
            "--reason TEXT is needed, of 1 to 256 characters",
            hint="it is kept in the journal and told to whoever is refused",
        )
    try:
        require_reason(reason)
    except InvalidArgument as error:
        error.message = f"--{error.message}"
        raise
    return reason


def _change(
    where: Where,
    method: str,
    path: str,
    body: Json | None,
    operation: Callable[[State, Now], Change],
) -> Json:
    """Ask the daemon, or do it on the ledger's files under the locks that a daemon would hold."""
    try:
        with where.reach() as client:
            return client.request(method, path, body)
    except DaemonUnreachable as error:
        if os.geteuid() != 0:
            raise DaemonUnreachable(
                f"{error.message}; only root may do this without a daemon", hint=error.hint
            ) from None
    from axern.api.views import standing_view
    from axern.config import load
    from axern.runtime import offline

    with offline.desk(load(where.config), _HOLDER) as desk:
        say("no daemon answers: working on the ledger's files, under its lock")
        desk.stand(operation)
        return standing_view(desk.ledger.state, desk.ledger.node_id)


def _left(answer: Json) -> str:
    count = answer["entries"]
    return f"{counted(count, 'reservation')} {'is' if count == 1 else 'are'}"


def _tell(answer: Json, output: str, words: str) -> None:
    if output == "json":
        put_json(answer)
    else:
        put(visible(words))
