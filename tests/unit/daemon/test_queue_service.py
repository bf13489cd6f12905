"""Waiting through the API: tickets, their stream, who may do what, and who goes away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from axern.api.messages import Peer, Request, StreamResponse
from axern.daemon.handlers import Handlers
from axern.daemon.reconcile import Reconciler
from axern.daemon.waiting_room import RECONNECT_MS
from tests.unit.daemon.rig import OTHER, ROOT, USER, Rig, play

Json = dict[str, Any]
GIB = 1024**3


def lease(memory_gib: int, **more: object) -> Json:
    """Return the body of a lease."""
    return {"requests": {"cpu_milli": 100, "memory_bytes": memory_gib * GIB}, **more}


def waiting(memory_gib: int, **more: object) -> Json:
    """Return the body of a lease that waits for a minute."""
    return lease(memory_gib, wait_for_capacity_ms=60_000, **more)


async def ask(
    rig: Rig, method: str, target: str, body: Json | None = None, peer: Peer = USER
) -> tuple[int, Json]:
    """Send one request as an ordinary user."""
    return await rig.ask(method, target, body, peer)


async def filled(rig: Rig) -> str:
    """Observe the host, fill its memory, let the queue be served; return who has it."""
    rig.parts.serve_queue()
    await rig.parts.observe()
    node = rig.ledger.state.node()
    assert node is not None
    body = lease(1)
    body["requests"]["memory_bytes"] = node.effective_allocatable.memory_bytes
    status, answer = await ask(rig, "POST", "/v2/reservations", body)
    assert status == 201
    return str(answer["reservation"]["id"])


class Listener:
    """One caller that follows its ticket."""

    def __init__(self, rig: Rig, ticket_id: str, peer: Peer = USER) -> None:
        self.events: list[tuple[str, Json]] = []
        self._request = Request(
            "request", "GET", f"/v2/queue/{ticket_id}/stream", {}, {}, b"", peer
        )
        self._task = asyncio.create_task(self._follow(rig))

    async def _follow(self, rig: Rig) -> None:
        answer = cast("StreamResponse", await Handlers(rig.parts)(self._request))
        async for part in answer.parts:
            lines = cast("bytes", part).decode().splitlines()
            name = lines[1].removeprefix("event: ")
            self.events.append((name, json.loads(lines[2].removeprefix("data: "))))

    async def hear(self, name: str) -> Json:
        """Return what came with the event *name*, once it comes."""
        async with asyncio.timeout(10):
            while name not in [each for each, _ in self.events]:
                assert not self._task.done() or not self._task.exception()
                await asyncio.sleep(0.01)
        return next(data for each, data in self.events if each == name)

    async def leave(self) -> None:
        """Go away without a word."""
        self._task.cancel()
        await asyncio.wait((self._task,))


def test_who_waits_is_granted_by_the_release_that_makes_room(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        big = await filled(rig)
        status, refused = await ask(rig, "POST", "/v2/reservations", lease(1))
        assert (status, refused["error"]["code"]) == (507, "node_memory_capacity_exhausted")
        status, answer = await ask(rig, "POST", "/v2/reservations", waiting(1))
        assert status == 202
        ticket, token = answer["ticket"], answer["token"]
        assert (ticket["position"], ticket["code"]) == (1, "node_memory_capacity_exhausted")
        listener = Listener(rig, ticket["id"])
        told = await listener.hear("waiting")
        assert told["ticket"]["waits_for"][0]["dimension"] == "memory_bytes"
        generation = rig.ledger.generation
        assert (await ask(rig, "DELETE", f"/v2/reservations/{big}"))[0] == 200
        assert rig.ledger.generation == generation + 1
        granted = await listener.hear("granted")
        assert granted["reservation"]["id"] == ticket["id"]
        beat = {"token": token}
        path = f"/v2/reservations/{ticket['id']}/heartbeat"
        assert (await ask(rig, "POST", path, beat))[0] == 200
        assert (await ask(rig, "GET", "/v2/queue"))[1]["tickets"] == []

    play(tmp_path, scenario)


def test_a_caller_that_goes_away_gives_its_ticket_up(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        await filled(rig)
        _, answer = await ask(rig, "POST", "/v2/reservations", waiting(1, request_id="r"))
        listener = Listener(rig, answer["ticket"]["id"])
        await listener.hear("waiting")
        await listener.leave()
        async with asyncio.timeout(10):
            while rig.ledger.state.waiting:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        assert (await ask(rig, "POST", "/v2/reservations", waiting(1, request_id="r")))[0] == 202

    play(tmp_path, scenario)


def test_a_daemon_that_ends_gives_nobody_up_and_the_next_one_waits_for_callers(
    tmp_path: Path,
) -> None:
    async def ended(rig: Rig) -> None:
        await filled(rig)
        _, answer = await ask(rig, "POST", "/v2/reservations", waiting(1, request_id="r"))
        listener = Listener(rig, answer["ticket"]["id"])
        await listener.hear("waiting")
        rig.parts.closing.set()
        await asyncio.sleep(0.05)
        await listener.leave()
        assert rig.ledger.state.waiting == 1

    async def begun(rig: Rig) -> None:
        rig.parts.serve_queue()
        reconciler = Reconciler(rig.parts)
        await reconciler.tick()
        status, answer = await ask(rig, "POST", "/v2/reservations", waiting(1, request_id="r"))
        assert (status, rig.ledger.state.waiting) == (202, 1)
        rig.clock.advance(RECONNECT_MS - 1)
        await reconciler.tick()
        assert rig.ledger.state.waiting == 1
        listener = Listener(rig, answer["ticket"]["id"])
        await listener.hear("waiting")
        rig.clock.advance(5_000)
        await reconciler.tick()
        assert rig.ledger.state.waiting == 1
        rig.parts.closing.set()
        await listener.leave()
        await reconciler.tick()
        rig.clock.advance(RECONNECT_MS)
        await reconciler.tick()
        assert not rig.ledger.state.waiting

    play(tmp_path, ended)
    play(tmp_path, begun)


def test_rights_bounds_and_the_pause(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        big = await filled(rig)
        urgent = waiting(1, priority=9)
        assert (await ask(rig, "POST", "/v2/reservations", urgent))[0] == 403
        assert (await ask(rig, "POST", "/v2/reservations", urgent, ROOT))[0] == 202
        assert (await ask(rig, "POST", "/v2/reservations", lease(1, priority=1)))[0] == 400
        status, answer = await ask(rig, "POST", "/v2/reservations", waiting(1))
        assert (status, answer["ticket"]["position"]) == (202, 2)
        ticket_id = answer["ticket"]["id"]
        assert (await ask(rig, "POST", "/v2/reservations", waiting(1)))[0] == 503
        path = f"/v2/queue/{ticket_id}"
        assert (await ask(rig, "GET", path, peer=OTHER))[0] == 200
        assert (await ask(rig, "DELETE", path, peer=OTHER))[0] == 403
        assert (await ask(rig, "POST", "/v2/queue/pause"))[0] == 403
        assert (await ask(rig, "POST", "/v2/queue/pause", peer=ROOT))[0] == 200
        assert (await ask(rig, "DELETE", f"/v2/reservations/{big}"))[0] == 200
        status, listed = await ask(rig, "GET", "/v2/queue")
        assert len(listed["tickets"]) == 2
        assert listed["paused"]["by"] == "uid:0"
        assert (await ask(rig, "DELETE", path))[0] == 200
        assert (await ask(rig, "GET", path))[0] == 404
        assert (await ask(rig, "DELETE", "/v2/queue/pause", peer=ROOT))[0] == 200
        assert not rig.ledger.state.waiting
        batch = {"mode": "all", "operations": [{"reserve": waiting(1)}]}
        assert (await ask(rig, "POST", "/v2/batch", batch))[0] == 400

    play(tmp_path, scenario, queue_depth=2)
