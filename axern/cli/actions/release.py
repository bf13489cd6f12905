"""What `axern reservations release` does: through the daemon, or under its locks without one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from axern.cli.actions.target import checked_id, query
from axern.cli.actions.wording import in_flags
from axern.cli.output import complain, describe, exit_code, put, put_json, say, visible
from axern.errors import DaemonUnreachable
from ledger.errors import AxernError, InvalidArgument
from ledger.release import Asked
from ledger.rights import by_default
from ledger.units import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.api.client import Client
    from axern.cli.actions.where import Where

    Json = dict[str, Any]
    Release = Callable[[str], Json]


PATIENCE_S = 30.0
"""How long a burial may take, the grace apart, before the command says that it goes on."""
_DEFAULT_GRACE_S = 10.0
_PAUSE_S = 0.1


class StillCharged(AxernError):
    """The release is under way and not proved yet; it goes on without us."""

    code = "busy"


def release(
    where: Where,
    *,
    reservation_ids: tuple[str, ...],
    force: bool,
    reason: str | None,
    grace: str | None,
    output: str,
) -> int:
    """Release each of *reservation_ids*; return the exit code of the worst."""
    words = list(dict.fromkeys(checked_id(word) for word in reservation_ids))
    asked = _asked(force=force, reason=reason)
    grace_ms = None if grace is None else parse_duration_ms(grace, "--grace")
    as_json = output == "json"
    try:
        client = where.reach()
    except DaemonUnreachable as error:
        return _offline(where, words, asked, grace_ms, error, as_json=as_json)
    with client:
        return _each(words, lambda word: _online(client, word, asked, grace_ms), as_json=as_json)


def _asked(*, force: bool, reason: str | None) -> Asked:
    if force and reason is None:
        raise InvalidArgument(
            "--force needs --reason TEXT, of 1 to 256 characters",
            hint="it is kept in the journal and shown to the owner of what is stopped",
        )
    try:
        return Asked(by_default(os.geteuid()), force, reason)
    except InvalidArgument as error:
        error.message = f"--{error.message}"
        raise


def _each(words: list[str], one: Release, *, as_json: bool) -> int:
    """Release one after another and tell of each; an error of one keeps no other from it."""
    results: list[Json] = []
    worst = 0
    for word in words:
        try:
            answer = one(word)
        except KeyboardInterrupt:
            say(
                "axern: interrupted; a release that has begun goes on, or is taken up when repeated"
            )
            say(f"  hint: axern reservations inspect {word}")
            raise
        except AxernError as error:
            worst = max(worst, exit_code(error))
            error = in_flags(error)
            complain(error)
            failed = {"id": word, "reservation": None, "released": None}
            results.append({**failed, "error": describe(error)})
            continue
        results.append({"id": answer["released"]["id"], **answer, "error": None})
        if not as_json:
            put(visible(_line(answer["released"])))
    if as_json:
        put_json({"results": results})
    return worst


def _line(released: Json) -> str:
    again = f"already released at {released['at']}: " if released["already"] else ""
    return f"{released['id']}: {again}{released['evidence']}"


def _online(client: Client, word: str, asked: Asked, grace_ms: int | None) -> Json:
    """Ask until it is proved gone, as long as a burial may take; asking again changes nothing."""
    grace_s = _DEFAULT_GRACE_S if grace_ms is None else grace_ms / 1000
    deadline_s = time.monotonic() + PATIENCE_S + grace_s
    target = query(
        f"/v2/reservations/{word}",
        force="true" if asked.force else None,
        reason=asked.reason,
        grace_ms=grace_ms,
    )
    while True:
        try:
            answer = client.request("DELETE", target)
        except DaemonUnreachable as error:
            error.hint = f"what was begun goes on; ask again: axern reservations release {word}"
            raise
        if answer["released"] is not None:
            return answer
        row = answer["reservation"]
        if time.monotonic() >= deadline_s:
            raise StillCharged(
                f"reservation {row['id']} is {row['phase']} and still charged: that nothing of it "
                f"is left could not be proved within {PATIENCE_S + grace_s:g} s",
                hint=f"the daemon goes on; look: axern reservations inspect {row['id']}",
            )
        time.sleep(_PAUSE_S)


def _offline(
    where: Where,
    words: list[str],
    asked: Asked,
    grace_ms: int | None,
    reason: DaemonUnreachable,
    *,
    as_json: bool,
) -> int:
    """Release under the locks that a daemon would hold, by the same rules."""
    from axern.api.views import released_view
    from axern.config import load
    from axern.runtime import offline

    if asked.uid != 0:
        raise DaemonUnreachable(
            f"{reason.message}; only root may release without a daemon", hint=reason.hint
        )
    grace_s = None if grace_ms is None else grace_ms / 1000
    with offline.desk(load(where.config)) as desk:
        say("no daemon answers: working on the ledger's files, under its lock")

        def one(word: str) -> Json:
            return released_view(desk.release(word, asked, grace_s), offline.now())

        return _each(words, one, as_json=as_json)
