"""The short way of an ordinary reserve or release: no task, no coroutine, one callback.

It goes where nothing about a request is unusual, and decides nothing that the long way, through
`handlers`, would decide otherwise: whatever it does not know it leaves to that, before anything is
done, or, where the ledger says no, with what the ledger said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from axern.api import chance, short_schema
from axern.daemon.routes import Answer, answer_json
from ledger import release, rights
from ledger.errors import AdmissionRefused, AxernError, NotFound
from ledger.release import Asked
from ledger.reservation import Reservation
from ledger.transitions import Proposal

if TYPE_CHECKING:
    from axern.api.messages import Request, Response
    from axern.daemon.lease_service import LeaseService
    from axern.daemon.parts import Parts
    from axern.daemon.release_service import ReleaseService
    from ledger.rights import Caller

Reply = Callable[["Response | Awaitable[Answer]"], None]
"""Takes the answer, or what is left to do for one."""

RESERVE = "/v2/reservations"
_ONE = f"{RESERVE}/"
_ONE_LENGTH = len(_ONE) + 32
_DIGITS = "0123456789abcdef"


class ShortWay:
    """Answers what is ordinary; the services say how, as on the long way."""

    def __init__(self, parts: Parts, leases: LeaseService, releases: ReleaseService) -> None:
        self._parts = parts
        self._leases = leases
        self._releases = releases

    def take(self, request: Request, reply: Reply) -> bool:
        """Begin to answer *request* and return True; False leaves it to the long way.

        *reply* is called once, later. An AxernError is for the long way to meet again.
        """
        path = request.path
        try:
            if request.method == "POST" and path == RESERVE:
                return self._reserve(request, reply)
            if request.method == "DELETE" and len(path) == _ONE_LENGTH and path.startswith(_ONE):
                return self._release(request, reply)
        except AxernError:
            return False
        return False

    def _reserve(self, request: Request, reply: Reply) -> bool:
        parts = self._parts
        body = short_schema.reserve(request.body)
        caller = parts.grants.caller(request.peer)
        if body is None or not rights.has_right(rights.HOLD, caller):
            return False
        parts.condition.require_writable()
        token = chance.token()
        proposal = self._leases.proposal(body, request.peer, token, body.request_id)
        told = partial(self._reserved, proposal, token, caller)
        parts.committer.enqueue(parts.charging(proposal), partial(_hear, told, reply))
        return True

    def _reserved(
        self, proposal: Proposal, token: str, caller: Caller, outcome: object
    ) -> Response | Awaitable[Answer]:
        if isinstance(outcome, Reservation) and outcome.id == proposal.id:
            self._parts.note_admission(outcome)
            return answer_json(201, self._leases.begun(outcome, token, self._parts.clock()))
        return self._reserved_otherwise(proposal, token, caller, outcome)

    async def _reserved_otherwise(
        self, proposal: Proposal, token: str, caller: Caller, outcome: object
    ) -> Response:
        """Answer what was refused, or granted before."""
        if isinstance(outcome, AdmissionRefused):
            row = await self._parts.reserve_again(proposal, outcome, caller)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            row = cast("Reservation", outcome)
        return answer_json(201, await self._leases.granted(row, proposal, token))

    def _release(self, request: Request, reply: Reply) -> bool:
        parts, key = self._parts, request.path[len(_ONE) :]
        caller = parts.grants.caller(request.peer)
        if request.body or request.query or key.strip(_DIGITS):
            return False
        if not rights.has_right(rights.RELEASE, caller):
            return False
        parts.condition.require_writable()
        row = parts.ledger.state.find_reservation(key)
        if row is None or row.is_sandbox:
            return False
        asked = Asked(caller)
        operation = partial(release.begin, reservation_id=key, asked=asked)
        told = partial(self._released, key, asked)
        parts.committer.enqueue(operation, partial(_hear, told, reply))
        return True

    def _released(self, key: str, asked: Asked, outcome: object) -> Response | Awaitable[Answer]:
        if isinstance(outcome, Reservation):
            return answer_json(200, self._releases.uncharged(outcome, asked, self._parts.clock()))
        return self._not_released(key, asked, outcome)

    async def _not_released(self, key: str, asked: Asked, outcome: object) -> Response:
        """Answer what was gone by then, or may not be released."""
        if isinstance(outcome, NotFound):
            return answer_json(200, await self._releases.over_before(key, asked))
        raise cast("BaseException", outcome)


def _hear(
    told: Callable[[object], Response | Awaitable[Answer]], reply: Reply, outcome: object
) -> None:
    """Let *reply* have what is *told* of *outcome*, or what failed in telling it."""
    try:
        answer = told(outcome)
    except Exception as error:  # noqa: BLE001 - it is answered as on the long way
        answer = _fail(error)
    reply(answer)


async def _fail(error: Exception) -> Answer:
    raise error
