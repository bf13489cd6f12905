"""Who finds no place waits a moment, then hears `busy`; streams and waits are counted apart."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.api import connection, places
from axern.api.messages import Answer, Later, Peer, Request, Response, StreamResponse
from axern.api.places import Claim, Limits, Places
from axern.api.protocol import LimitedProtocol
from tests.unit.api.served import LIMIT_S, Served, read_all, read_answer, request, serving

ASK = request(connection="keep-alive")
STREAM = request("/stream", connection="keep-alive")


def asked(room: Places, *uids: int) -> list[Claim]:
    claims = [room.ask(uid, lambda: None) for uid in uids]
    assert all(claims)
    return [claim for claim in claims if claim is not None]


def test_each_uid_has_its_cap_and_root_none() -> None:
    room = Places(limit=10, limit_per_uid=3)
    users = asked(room, 1000, 1000, 1000, 1000, 1001)
    assert [claim.held for claim in users] == [True, True, True, False, True]
    roots = asked(room, *[0] * 7)
    assert [claim.held for claim in roots] == [True] * 6 + [False]
    for claim in (*users, *roots):
        claim.leave()
        claim.leave()
    assert room == Places(limit=10, limit_per_uid=3)


def test_the_first_who_may_have_a_place_gets_it() -> None:
    room = Places(limit=2, limit_per_uid=1)
    one, root = asked(room, 1000, 0)
    same, other = asked(room, 1000, 1001)
    root.leave()
    assert (same.held, other.held) == (False, True)
    one.leave()
    assert same.held


def test_who_comes_when_too_many_wait_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WAITING_LIMIT", 2)
    room = Places(limit=0, limit_per_uid=0)
    asked(room, 1, 2)
    assert room.ask(3, lambda: None) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=60))
def test_no_count_is_ever_passed_or_lost(steps: list[tuple[bool, int]]) -> None:
    room = Places(limit=5, limit_per_uid=2)
    claims: list[Claim] = []
    for comes, number in steps:
        if comes:
            claims += asked(room, number)
        elif claims:
            claims.pop(number % len(claims)).leave()
        held = [claim.uid for claim in claims if claim.held]
        assert room.taken == len(held) <= room.limit
        assert all(held.count(uid) <= 2 for uid in (1, 2, 3))
        assert list(room.waiting) == [claim for claim in claims if not claim.held]
        if len(held) < room.limit:
            assert all(held.count(c.uid) == 2 and c.uid for c in room.waiting)


class Few(LimitedProtocol):
    """Two connections and two streams of one uid."""

    limits = Limits(connections=10, connections_per_uid=2, streams=10, streams_per_uid=2)
    busy_after_s = 0.3


class Patient(Few):
    """A place comes before patience ends."""

    busy_after_s = LIMIT_S


async def answer(request: Request) -> Answer:
    """Stream or wait for ever, or answer at once."""
    if request.path == "/stream":
        return StreamResponse(endless())
    return Later(never()) if request.path == "/wait" else Response(200, b"{}")


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"part"
        await asyncio.sleep(LIMIT_S)


async def never() -> Response:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture(autouse=True)
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects is no root."""
    monkeypatch.setattr(connection, "_peer_of", lambda _: Peer(1, 1000, 1000))


def connect(found: Served, stack: ExitStack, wire: bytes = b"") -> socket.socket:
    connection = stack.enter_context(found.connected())
    connection.sendall(wire)
    return connection


def test_over_the_cap_is_busy_and_room_comes_back(short_root: Path) -> None:
    with serving(short_root / "s", protocol=Few) as found:
        with ExitStack() as stack:
            two = [connect(found, stack, ASK) for _ in range(2)]
            assert [read_answer(connection).status for connection in two] == [200, 200]
            (refused,) = found.send(ASK)
            assert refused.status == 503
            assert refused.problem()["code"] == "busy"
            assert refused.problem()["retryable"] is True
            assert len(found.requests) == 2
            two[0].sendall(request())
            assert read_answer(two[0]).status == 200
            assert read_all(two[0]) == b""
            assert found.still_answers()
        assert found.still_answers()


def test_who_waits_is_served_when_another_leaves(short_root: Path) -> None:
    with serving(short_root / "s", protocol=Patient) as found, ExitStack() as stack:
        two = [connect(found, stack, ASK) for _ in range(2)]
        assert [read_answer(connection).status for connection in two] == [200, 200]
        third = connect(found, stack, ASK)
        two[0].close()
        assert read_answer(third).status == 200


@pytest.mark.parametrize("path", ["/stream", "/wait"])
def test_streams_and_waits_are_counted_apart(short_root: Path, path: str) -> None:
    wire = request(path, connection="keep-alive")
    with serving(short_root / "s", answer, Few) as found, ExitStack() as stack:
        two = [connect(found, stack, STREAM) for _ in range(2)]
        assert all(connection.recv(64).startswith(b"HTTP/1.1 200") for connection in two)
        plain = [connect(found, stack, ASK) for _ in range(2)]
        assert [read_answer(connection).status for connection in plain] == [200, 200]
        plain[0].sendall(wire)
        refused = read_answer(plain[0])
        assert (refused.status, refused.problem()["code"]) == (503, "busy")
        plain[0].sendall(ASK)
        assert read_answer(plain[0]).status == 200
        two[0].close()
        plain[0].sendall(STREAM)
        assert plain[0].recv(64).startswith(b"HTTP/1.1 200")


def test_a_wait_ends_when_its_client_leaves(short_root: Path) -> None:
    ended = threading.Event()

    async def waits() -> Response:
        try:
            return await never()
        finally:
            ended.set()

    async def handler(_: Request) -> Answer:
        return Later(waits())

    with serving(short_root / "s", handler) as found:
        with found.connected() as connection:
            connection.sendall(ASK)
            assert not ended.wait(0.05)
        assert ended.wait(LIMIT_S)


def test_a_wait_has_no_deadline_and_gives_its_answer(short_root: Path) -> None:
    class Hurried(LimitedProtocol):
        answer_deadline_s = 0.05

    async def takes_its_time() -> Response:
        await asyncio.sleep(0.2)
        return Response(200, b"{}")

    async def handler(_: Request) -> Answer:
        return Later(takes_its_time())

    with serving(short_root / "s", handler, Hurried) as found:
        assert [answer.body for answer in found.send(ASK)] == [b"{}"]


def test_clients_leave_descriptors_to_the_daemon(
    short_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (6, 6))
    with serving(short_root / "s") as found, ExitStack() as stack:
        three = [connect(found, stack, ASK) for _ in range(3)]
        assert [read_answer(connection).status for connection in three] == [200] * 3
        assert [answer.status for answer in found.send(ASK)] == [503]


@pytest.mark.parametrize("fails", [False, True])
def test_what_takes_too_long_is_busy_and_still_carried_out(
    short_root: Path, *, fails: bool
) -> None:
    class Hurried(LimitedProtocol):
        answer_deadline_s = 0.1

    release, done = threading.Event(), threading.Event()

    async def stuck(_: Request) -> Answer:
        await asyncio.to_thread(release.wait, LIMIT_S)
        done.set()
        if fails:
            raise RuntimeError
        return Response(200, b"{}")

    with serving(short_root / "s", stuck, Hurried) as found:
        (late,) = found.send(request())
        assert (late.status, late.problem()["code"]) == (503, "busy")
        assert "0.1 s" in late.problem()["message"]
        assert not done.is_set()
        release.set()
        assert done.wait(LIMIT_S)


def test_too_many_stuck_requests_are_refused_at_once(
    short_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hurried(LimitedProtocol):
        answer_deadline_s = 0.0

    monkeypatch.setattr("axern.api.server.OVERDUE_LIMIT", 3)
    begun = itertools.count()
    release = threading.Event()

    async def stuck(_: Request) -> Answer:
        next(begun)
        await asyncio.to_thread(release.wait, LIMIT_S)
        return Response(200, b"{}")

    with serving(short_root / "s", stuck, Hurried) as found:
        refused = [found.send(request())[0].problem()["code"] for _ in range(6)]
        assert refused == ["busy"] * 6
        assert next(begun) == 3
        release.set()


def test_a_thousand_pipelined_requests_are_answered_in_order(short_root: Path) -> None:
    wire = b"".join(
        request(f"/{number}", connection="keep-alive") for number in range(1000)
    ) + request("/end")

    async def echo(request: Request) -> Answer:
        return Response(200, request.path.encode())

    with serving(short_root / "s", echo) as found:
        bodies = [answer.body for answer in found.send(wire)]
    assert bodies == [b"/%d" % number for number in range(1000)] + [b"/end"]


def test_what_is_pipelined_without_end_is_not_taken_in(short_root: Path) -> None:
    """The kernel's buffers and one read are all that such a client can fill."""
    with serving(short_root / "s", answer) as found, found.connected() as connection:
        connection.sendall(STREAM)
        assert connection.recv(64).startswith(b"HTTP/1.1 200")
        connection.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 64 * 1024**2:
                sent += connection.send(ASK * 1000)
        assert sent < 4 * 1024**2
        assert found.still_answers()
