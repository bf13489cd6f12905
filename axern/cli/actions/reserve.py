"""What `axern reserve` does: hold a lease for a command, or print it for somebody else to hold."""

from __future__ import annotations

import os
import sys

from axern.api.term import Term, boottime_s
from axern.cli.actions.asking import path
from axern.cli.actions.foreground import insist
from axern.cli.actions.request import amounts
from axern.cli.actions.target import checked_id
from axern.cli.actions.wording import in_flags
from axern.cli.grammar import OWN_FAILURE
from axern.cli.interrupt import INTERRUPTED
from axern.cli.output import amounts as shown
from axern.cli.output import put_fields, put_json, report, say
from axern.cli.unexpected import explained
from axern.errors import ProgramError
from ledger.errors import AxernError, InvalidArgument
from ledger.units import parse_duration_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from axern.cli.actions.where import Where

    Json = dict[str, Any]

TOKEN_VARIABLE = "AXERN_LEASE_TOKEN"  # noqa: S105 - the name of a variable
_RENEWED_FOR_MS = 600_000
_LONGEST_TOKEN_BYTES = 128
_STANDARD_INPUT = "-"


def hold(
    where: Where,
    *,
    command: tuple[str, ...],
    namespace: str | None,
    parent: str | None,
    name: str | None,
    ttl: str | None,
    max_lifetime: str | None,
    request_id: str | None,
    output: str,
    **resources: str | None,
) -> int:
    """Reserve, and hold it while *command* runs; without one, print the lease and its token.

    Returns:
        The command's code, or 125 to 127 and 130 for ours.
    """
    written = {
        "namespace": namespace,
        "parent": None if parent is None else checked_id(parent),
        "name": name,
        "ttl_ms": _duration(ttl, "--ttl"),
        "max_lifetime_ms": _duration(max_lifetime, "--max-lifetime"),
    }
    body = {
        "request_id": request_id or os.urandom(16).hex(),
        "requests": amounts(resources, "requests"),
        **{field: value for field, value in written.items() if value is not None},
    }
    if not command:
        _show(insist(where, "/v2/reservations", body), as_json=output == "json")
        return 0
    try:
        return _while_it_runs(where, body, command)
    except KeyboardInterrupt:
        return INTERRUPTED
    except AxernError as error:
        report(in_flags(error), as_json=output == "json")
        return error.exit_code if isinstance(error, ProgramError) else OWN_FAILURE
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # An answer that is not what was promised, and no exit code of the command's.
        report(explained(error), as_json=output == "json")
        return OWN_FAILURE


def _duration(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_duration_ms(text, flag)


def _while_it_runs(where: Where, body: Json, command: tuple[str, ...]) -> int:
    from axern.cli.actions.held import Held

    # The daemon knows our process by the socket: when it is gone the lease is, however it went.
    sent_s = boottime_s()
    answer = insist(where, "/v2/reservations", {**body, "owner_process": {"pid": None}})
    term = Term(sent_s, answer["expires_in_ms"])
    say(f"Lease: {answer['reservation']['id']}")
    with Held(where, answer["reservation"]["id"], answer["token"], term) as held:
        return held.run(command)


def renew(
    where: Where, *, reservation_id: str, token: str | None, ttl: str | None, output: str
) -> None:
    """Move the deadline of a lease, and show when it ends now."""
    body = {
        "token": _token(token),
        "ttl_ms": _RENEWED_FOR_MS if ttl is None else parse_duration_ms(ttl, "--ttl"),
    }
    with where.reach() as client:
        target = path("/v2/reservations", checked_id(reservation_id), "heartbeat")
        answer = client.request("POST", target, body)
    _show(answer, as_json=output == "json")


def _token(text: str | None) -> str:
    """Return the token that was given, on the command line or where nobody else sees it.

    Raises:
        InvalidArgument: There is none.
    """
    if text == _STANDARD_INPUT:
        text = sys.stdin.buffer.read(_LONGEST_TOKEN_BYTES + 1).decode("utf-8", "replace").strip()
    text = text or os.environ.get(TOKEN_VARIABLE)
    if not text:
        raise InvalidArgument(
            "--token is missing: a lease is renewed by whoever has its token",
            hint=f"set {TOKEN_VARIABLE}, or give --token",
        )
    return text


def _show(answer: Json, *, as_json: bool) -> None:
    if as_json:
        put_json(answer)
        return
    row = answer["reservation"]
    fields = [
        ("lease", row["id"]),
        ("namespace", row["namespace"]),
        ("holds", shown(row["requests"])),
        ("expires", row["expires_at"]),
        ("renewable until", row["latest_expiry_at"]),
    ]
    if "token" in answer:
        fields.append(("token", answer["token"]))
    put_fields(fields)
