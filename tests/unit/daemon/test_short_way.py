"""The short way answers what the long way answers, and goes only where nothing is unusual."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from axern.api.messages import Peer, Request, Response
from axern.daemon.handlers import Handlers, error_response
from ledger import rights, transitions
from ledger.errors import AxernError
from ledger.testing import small_node
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, answered, play

Json = dict[str, Any]
POST = "/v2/reservations"
CPU = {"cpu_milli": 1000, "memory_bytes": 16 * 1024**2}
_RANDOM = re.compile(r'[0-9a-f]{32}|(?<="token":")[^"]+')


async def ready(rig: Rig) -> None:
    rig.observer.observe()
    await rig.commit(partial(transitions.observe_node, node=small_node(4000)))


def asked(method: str, path: str, body: object = None, peer: Peer = USER) -> Request:
    data = b"" if body is None else json.dumps(body).encode()
    return Request("request", method, path, {}, {}, data, peer)


async def the_long_way(rig: Rig, request: Request) -> Response:
    try:
        response = await Handlers(rig.parts)(request)
    except AxernError as error:
        response = error_response(error, request.id)
    assert isinstance(response, Response)
    return response


async def the_short_way(rig: Rig, request: Request) -> Response:
    return await answered(Handlers(rig.parts), request)


async def taken(rig: Rig, request: Request) -> bool:
    """Tell whether the short way takes *request*, and let it end."""
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if not Handlers(rig.parts).short_way.take(request, reply.set_result):
        return False
    answer = await reply
    if not isinstance(answer, Response):
        await answer
    return True


def told(response: Response) -> tuple[int, str, object]:
    """Return *response* without what is made by chance, and counted up by each commit."""
    text = _RANDOM.sub("*", response.body.decode())
    return response.status, response.content_type, re.sub(r'"generation":\d+', "", text)


BODIES: list[Json] = [
    {"requests": CPU},
    {"requests": CPU, "name": "é", "ttl_ms": 5000, "max_lifetime_ms": 60_000},
    {"requests": {"cpu_milli": 10**9}},
    {"requests": {"cpu_milli": 0}},
    {"requests": CPU, "max_lifetime_ms": 10**12},
    {"requests": CPU, "namespace": "nobody-made-it"},
    {"requests": CPU, "limits": CPU},
    {"requests": CPU, "unknown": 1},
]


@pytest.mark.parametrize("body", BODIES)
def test_a_reserve_and_its_release_are_answered_alike(tmp_path: Path, body: Json) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        answers = []
        for way in (the_long_way, the_short_way):
            first = await way(rig, asked("POST", POST, body))
            answers.append([told(first)])
            found = json.loads(first.body).get("reservation")
            if found is None:
                continue
            path = f"{POST}/{found['id']}"
            refused = await way(rig, asked("DELETE", path, peer=OTHER))
            over = await way(rig, asked("DELETE", path))
            again = await way(rig, asked("DELETE", path))
            assert [each.status for each in (refused, over, again)] == [403, 200, 200]
            answers[-1] += [told(each) for each in (refused, over, again)]
        assert answers[0] == answers[1]

    play(tmp_path, scenario)


def test_a_retry_gets_the_same_lease_with_a_new_token(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        request = asked("POST", POST, {"requests": CPU, "request_id": "build-42"})
        assert await taken(rig, request)
        (row,) = rig.ledger.state.reservations()
        answers = [
            json.loads((await way(rig, request)).body) for way in (the_short_way, the_long_way)
        ]
        assert {each["reservation"]["id"] for each in answers} == {row.id}
        tokens = {each["token"] for each in answers}
        assert len(tokens) == 2
        other = asked("POST", POST, {"requests": CPU, "request_id": "build-42", "name": "x"})
        assert told(await answered(Handlers(rig.parts), other))[0] == 409
        assert rig.ledger.state.entry_count() == 1

    play(tmp_path, scenario)


def test_it_goes_where_nothing_is_unusual(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        assert await taken(rig, asked("POST", POST, {"requests": CPU}))
        (row,) = rig.ledger.state.reservations()
        sandbox = await rig.charge_run(7)
        long = [
            asked("POST", POST, {"requests": CPU, "owner_process": {"pid": 1}}),
            asked("POST", POST, {"requests": {"cpu_milli": 0}}),
            asked("POST", f"{POST}/", {"requests": CPU}),
            asked("GET", POST),
            asked("DELETE", f"{POST}/{row.id}", {"token": "x"}),
            replace(asked("DELETE", f"{POST}/{row.id}"), query={"force": "true"}),
            asked("DELETE", f"{POST}/{row.id[:8]}"),
            asked("DELETE", f"{POST}/{row.id.upper()}"),
            asked("DELETE", f"{POST}/{'0' * 32}"),
            asked("DELETE", f"{POST}/{sandbox}"),
        ]
        for request in long:
            assert not await taken(rig, request), request
        assert rig.ledger.state.entry_count() == 2
        assert await taken(rig, asked("DELETE", f"{POST}/{row.id}"))
        assert rig.ledger.state.find_reservation(row.id) is None

    play(tmp_path, scenario)


def test_who_has_no_right_is_left_to_the_long_way(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)
        request = asked("POST", POST, {"requests": CPU})
        assert rights.HOLD.right == rights.RESERVE
        assert not await taken(rig, request)
        status, problem = await rig.ask("POST", POST, {"requests": CPU}, USER)
        assert (status, problem["error"]["code"]) == (403, "permission_denied")
        assert await taken(rig, replace(request, peer=ROOT))

    play(tmp_path, scenario, may_reserve=[])


def test_a_ledger_that_is_only_read_is_left_to_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)

        def refuse() -> None:
            raise AxernError("it is only read")

        monkeypatch.setattr(rig.parts.condition, "require_writable", refuse)
        for request in (
            asked("POST", POST, {"requests": CPU}),
            asked("DELETE", f"{POST}/{'0' * 32}"),
        ):
            assert not await taken(rig, request)
        assert rig.ledger.state.entry_count() == 0

    play(tmp_path, scenario)


def test_what_fails_in_telling_is_answered_and_the_lease_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rig: Rig) -> None:
        await ready(rig)

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(rig.parts.heartbeats, "beat", fail)
        with pytest.raises(ZeroDivisionError):
            await answered(Handlers(rig.parts), asked("POST", POST, {"requests": CPU}))
        assert rig.ledger.state.entry_count() == 1

    play(tmp_path, scenario)
