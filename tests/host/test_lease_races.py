"""Heartbeats, double releases and retries of a request id, all at once: one effect of each."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from axern.api.client import ApiError, Client
from tests.conftest import LONG
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host

Json = dict[str, Any]
Answer = tuple[int, Json]
SIZE: Json = {"requests": {"cpu_milli": 1, "memory_bytes": 1024**2}, "ttl_ms": 3_600_000}
LEASES = 67 if LONG else 4
"""Of each of the three kinds: 10,050 requests in the long form, 600 else."""
AGAIN = 50
"""How often each is asked for at once."""
BEATEN, RELEASED, RETRIED = "beaten", "released", "retried"


@dataclass(frozen=True)
class Wish:
    """One request: of which lease (by kind and number), and what."""

    kind: str
    number: int
    method: str
    path: str
    body: Json | None


@dataclass
class Races:
    """Some leases of each kind; `wishes` are all requests, in an order drawn from *seed*."""

    seed: int
    granted: dict[tuple[str, int], Json] = field(default_factory=dict)

    def begin(self, ask: Callable[[Wish], Answer]) -> None:
        """Hold what is beaten and released; what is retried begins with the race."""
        for kind in (BEATEN, RELEASED):
            for number in range(LEASES):
                wish = self._reserve(kind, number)
                status, self.granted[kind, number] = ask(wish)
                assert status == 201

    def wishes(self) -> list[Wish]:
        """Return every request, each `AGAIN` times."""
        found = [self._wish(kind, number) for kind in (BEATEN, RELEASED, RETRIED)
                 for number in range(LEASES)] * AGAIN  # fmt: skip
        random.Random(self.seed).shuffle(found)
        return found

    def _wish(self, kind: str, number: int) -> Wish:
        if kind == RETRIED:
            return self._reserve(kind, number)
        lease = self.granted[kind, number]
        path = f"/v2/reservations/{lease['reservation']['id']}"
        if kind == RELEASED:
            return Wish(kind, number, "DELETE", path, None)
        beat = {"token": lease["token"], "ttl_ms": 7_200_000}
        return Wish(kind, number, "POST", f"{path}/heartbeat", beat)

    def _reserve(self, kind: str, number: int) -> Wish:
        body = SIZE | {"request_id": f"{kind}-{number}", "name": kind}
        return Wish(kind, number, "POST", "/v2/reservations", body)


def judge(answers: list[tuple[Wish, Answer]], ask: Callable[[Wish], Answer]) -> None:
    """Assert that of each kind of request exactly one had an effect, by answers and by history."""
    by_lease: dict[tuple[str, int], list[Answer]] = defaultdict(list)
    for wish, answer in answers:
        by_lease[wish.kind, wish.number].append(answer)
    assert len(by_lease) == 3 * LEASES
    for (kind, _), found in by_lease.items():
        assert len(found) == AGAIN
        wanted = 201 if kind == RETRIED else 200
        assert Counter(status for status, _ in found) == {wanted: AGAIN}
        ids = {answer["reservation"]["id"] for _, answer in found}
        assert len(ids) == 1  # also of what is retried: nobody holds twice
        steps = _history(ask, ids.pop())
        assert steps["reserve"] == 1
        if kind == RELEASED:
            fresh = [answer for _, answer in found if not answer["released"]["already"]]
            assert (len(fresh), steps["release"]) == (1, 1)
        if kind == BEATEN:
            assert steps["release"] == 0
        if kind == RETRIED:
            tokens = [answer["token"] for _, answer in found]
            beats = [_beat(ask, found[0][1]["reservation"]["id"], token) for token in tokens]
            # The last one to ask is the holder; whoever asked before is late.
            assert Counter(beats) == {200: 1, 403: AGAIN - 1}


def _history(ask: Callable[[Wish], Answer], reservation_id: str) -> Counter[str]:
    wish = Wish("", 0, "GET", f"/v2/reservations/{reservation_id}?history=true", None)
    status, answer = ask(wish)
    assert status == 200, answer
    return Counter(step["operation"] for step in answer["history"]["steps"])


def _beat(ask: Callable[[Wish], Answer], reservation_id: str, token: str) -> int:
    path = f"/v2/reservations/{reservation_id}/heartbeat"
    return ask(Wish("", 0, "POST", path, {"token": token}))[0]


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(namespace_entry_cap=100_000, max_sandboxes=4000) as made:
        made.start()
        yield made


def test_of_many_requests_at_once_one_has_an_effect(lab: DaemonLab) -> None:
    def ask(wish: Wish) -> Answer:
        with Client(lab.socket) as client:
            try:
                answer = client.request(wish.method, wish.path, wish.body)
            except ApiError as error:
                return error.status, error.error
        return (201 if wish.path == "/v2/reservations" else 200), answer

    races = Races(seed=random.randrange(2**32) if LONG else 7)
    races.begin(ask)
    wishes = races.wishes()
    assert len(wishes) == 3 * LEASES * AGAIN
    with ThreadPoolExecutor(32) as crowd:
        answers = list(zip(wishes, crowd.map(ask, wishes), strict=True))
    judge(answers, ask)
    held = {row["id"] for row in lab.reservations()}
    assert len(held) == 2 * LEASES
