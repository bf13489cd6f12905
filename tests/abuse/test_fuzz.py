"""Thousands of requests that nobody would send: each is refused or closed, and nothing else."""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from axern.api.messages import Answer, Request, Response
from axern.api.protocol import LimitedProtocol
from tests.abuse.attack import Attack, resident_bytes
from tests.conftest import LONG
from tests.host.daemon import daemon_lab
from tests.unit.api.served import serving

COUNT = 100_000 if LONG else 5_000
WARM_UP = 2_000
GROWTH_LIMIT_BYTES = 20 * 1024**2
LOG_LINE = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: [^\x00-\x1f\x7f]*")


@pytest.mark.host
@pytest.mark.timeout(1800)
def test_a_daemon_refuses_or_closes_whatever_comes() -> None:
    seed = random.randrange(2**32) if LONG else 1
    # No runtime is there, so no run is ever admitted; leases are, until there are fifty.
    with daemon_lab(runc="/none", runsc="/none", entry_cap=50, tick="5s") as lab:
        daemon = lab.start()
        attack = Attack(lab.socket)
        attack.send(seed, range(WARM_UP))
        before = resident_bytes(daemon.pid)
        report = attack.send(seed, range(WARM_UP, COUNT))
        growth = resident_bytes(daemon.pid) - before
        sys.stdout.write(f"seed {seed}: {report}, growth {growth / 1024**2:.1f} MiB\n")
        assert report.findings == []
        assert growth < GROWTH_LIMIT_BYTES
        assert {201, 400, 404, 422} <= set(report.statuses)
        assert sum(report.statuses.values()) > (COUNT - WARM_UP) * 3 // 4
        assert lab.request("GET", "/v2/health")
        lines = lab.log().splitlines()
        assert [line for line in lines if not LOG_LINE.fullmatch(line)] == []
        assert [line for line in lines if "Traceback" in line or "longer than" in line] == []
        for entry in lab.reservations():
            lab.request("DELETE", f"/v2/reservations/{entry['id']}")
        assert lab.stop(daemon) == 0
        checked = subprocess.run(
            [sys.executable, "-m", "ledger", "check", f"{lab.base}/state/ledger"],
            capture_output=True,
            check=False,
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


DOCUMENT = json.dumps({"paths": {"/v2/x": {"get": {}}}, "components": {"schemas": {}}}).encode()


async def bug(_: Request) -> Answer:
    raise RuntimeError


async def hang(_: Request) -> Answer:
    await asyncio.sleep(3600)
    raise AssertionError


async def shapeless(_: Request) -> Answer:
    return Response(418, b"short and stout")


@pytest.mark.parametrize(
    ("handler", "told"),
    [(bug, "answered 500"), (hang, "no end within"), (shapeless, "without the structure")],
)
def test_control_a_planted_bug_is_found(
    short_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    handler: Callable[[Request], Awaitable[Answer]],
    told: str,
) -> None:
    class Endless(LimitedProtocol):
        answer_deadline_s = 3600.0

    async def honest_once(request: Request) -> Answer:
        if request.path == "/v2/openapi.json":
            return Response(200, DOCUMENT)
        return await handler(request)

    monkeypatch.setattr("tests.abuse.attack.HANG_S", 0.5)
    with serving(short_root / "s", honest_once, Endless) as found:
        report = Attack(found.path).send(1, range(20))
    assert any(told in finding for finding in report.findings)


def test_the_same_seed_and_number_are_the_same_request(short_root: Path) -> None:
    async def document(_: Request) -> Answer:
        return Response(200, DOCUMENT)

    with serving(short_root / "s", document) as found:
        generator = Attack(found.path).generator
    drawn = [generator.draw(7, number) for number in range(100)]
    assert drawn == [generator.draw(7, number) for number in range(100)]
    assert len(set(drawn)) > 40
