"""What is answered without a task: in order, once, and in the same words where it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from axern.api.messages import Answer, Request, Response
from axern.api.protocol import LimitedProtocol
from ledger.errors import NotFound
from tests.unit.api.served import Served, request, serving

Reply = Callable[["Response | Awaitable[Answer]"], None]


class Impatient(LimitedProtocol):
    """Gives up soon."""

    answer_deadline_s = 0.2


async def _not_found() -> Answer:
    raise NotFound("there is none")


async def _bug() -> Answer:
    raise ZeroDivisionError


def shortly(request: Request, reply: Reply) -> bool:
    """Answer by the path: at the next turn of the loop, late, with what is left to do, or not."""
    loop = asyncio.get_running_loop()
    answers: dict[str, Callable[[], Response | Awaitable[Answer]]] = {
        "/short": lambda: Response(200, b"short " + request.body),
        "/left": _not_found,
        "/left-bug": _bug,
    }
    if request.path == "/bug":
        raise ZeroDivisionError
    if request.path == "/late":
        loop.call_later(0.5, lambda: reply(Response(200, b"late")))
        return True
    if request.path not in answers:
        return False
    loop.call_soon(lambda: reply(answers[request.path]()))
    return True


@pytest.fixture
def served(short_root: Path) -> Iterator[Served]:
    with serving(short_root / "s", protocol=Impatient, shortly=shortly) as found:
        yield found


def test_pipelined_requests_are_answered_in_order_whichever_way(served: Served) -> None:
    parts = [request("/short", b"%d" % n, connection="keep-alive") for n in range(50)]
    parts[7] = request("/long", b"12345", connection="keep-alive")
    found = served.send(b"".join(parts), request("/short", b"end"))
    bodies = [each.body for each in found]
    assert bodies[7] == b'{"bytes": 5}'
    expected = [b"short %d" % n for n in range(50)]
    assert bodies == [*expected[:7], b'{"bytes": 5}', *expected[8:], b"short end"]
    assert len({each.headers["x-request-id"] for each in found}) == 51


def test_what_is_left_to_do_ends_as_on_the_long_way(served: Served) -> None:
    assert served.send(request("/left"))[0].problem()["code"] == "not_found"
    assert served.send(request("/left-bug"))[0].status == 500
    assert served.send(request("/bug"))[0].status == 500
    assert served.still_answers()


def test_who_waits_for_too_long_is_told_busy_and_nothing_after_that(served: Served) -> None:
    (answer,) = served.send(request("/late"))
    assert answer.problem()["code"] == "busy"
    late = request("/late", connection="keep-alive")
    first, second = served.send(late, request("/short"))
    assert (first.problem()["code"], second.body) == ("busy", b"short ")
    assert served.still_answers()
