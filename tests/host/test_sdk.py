"""The SDK with a real daemon: the example scripts, leases that are kept, lost and left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import axern
from tests.host.conftest import wait_until
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
EXAMPLES = Path(__file__).parents[2] / "docs/examples"
SMALL: dict[str, Any] = {"cpu": "10m", "memory": "16MiB"}
PRINTED = {
    "hold.py": "held for at least 300 s\nworking\ngiven back: True\n",
    "runs.py": "one more would fit: True\nrequest_exceeds_node ['memory_bytes']\n"
    "stdout: good day\nstderr: careful\nended with 3 b'good day\\n'\n",
    "many.py": "[0, 1, 4, 9, 16, 25, 36, 49, 64, 81]\nheld: True\n",
}
STALE_S = 3.0


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(stale_after=f"{STALE_S:g}s", default_runtime="runc") as made:
        made.start()
        yield made


@pytest.fixture
def client(lab: DaemonLab) -> Iterator[axern.Client]:
    yield axern.Client(lab.socket)
    assert lab.reservations() == []


def test_each_example_has_its_output() -> None:
    assert set(PRINTED) == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_does_what_it_says(lab: DaemonLab, name: str) -> None:
    argv = [sys.executable, str(EXAMPLES / name), lab.config_path]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=200, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    if name == "runs.py":  # two pipes: which of them is read first is nobody's promise
        assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name].splitlines())
    else:
        assert done.stdout == PRINTED[name]


def test_a_lease_is_renewed_while_its_block_lasts(client: axern.Client) -> None:
    with client.lease(ttl=3, **SMALL) as lease:
        time.sleep(7)
        lease.check()
        (row,) = client.reservations()
        assert (row["id"], row["owner"]["kind"]) == (lease.id, "external")
        assert lease.expires_in_s > 1


def lose(client: axern.Client, lease: axern.Lease) -> None:
    with lease:
        client.release(lease.id)
        assert lease.lost.wait(60)


def test_a_lease_that_is_taken_away_is_lost_and_told(client: axern.Client) -> None:
    with pytest.raises(axern.LeaseLost, match="is lost"):
        lose(client, client.lease(ttl=3, **SMALL))


def test_what_the_block_raises_comes_before_a_lost_lease(client: axern.Client) -> None:
    def block() -> None:
        with client.lease(ttl=3, **SMALL) as lease:
            client.release(lease.id)
            assert lease.lost.wait(60)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()


def test_no_renewal_goes_beyond_the_lifetime(client: axern.Client) -> None:
    def outlive() -> None:
        began = time.monotonic()
        with client.lease(ttl=2, max_lifetime=4, **SMALL) as lease:
            assert lease.lost.wait(60)
            assert time.monotonic() - began >= 3
            assert lease.expires_in_s > 0  # there is time left to end

    with pytest.raises(axern.LeaseLost, match="is over"):
        outlive()


def test_a_killed_program_gives_its_lease_back(lab: DaemonLab, client: axern.Client) -> None:
    program = (
        "import axern, sys, time\n"
        f"with axern.Client({lab.socket!r}).lease(cpu='10m', memory='16MiB'):\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(client.reservations()) == 1
        process.kill()
    killed = time.monotonic()
    wait_until(lambda: not client.reservations(), 60)
    assert time.monotonic() - killed <= STALE_S + 1 + 5


def test_a_daemon_that_is_restarted_is_waited_for(lab: DaemonLab, client: axern.Client) -> None:
    script = "for i in 1 2 3 4 5 6; do echo $i; sleep 0.5; done"
    seen = threading.Event()
    results: list[axern.RunResult] = []

    def run() -> None:
        results.append(client.run(["sh", "-c", script], on_output=lambda *_: seen.set(), **SMALL))

    with client.lease(ttl=12, **SMALL) as lease:
        thread = threading.Thread(target=run)
        thread.start()
        assert seen.wait(60)
        lab.kill(lab.processes[-1])
        lab.start()
        thread.join(120)
        lease.check()
    assert [result.exit_code for result in results] == [0]
    assert results[0].stdout.split() == [b"1", b"2", b"3", b"4", b"5", b"6"]


def test_errors_are_the_typed_ones(client: axern.Client) -> None:
    with pytest.raises(axern.NotFound):
        client.release("00" * 16)
    with pytest.raises(axern.NotFound):
        client.reserve(namespace="nobody", **SMALL)
    with pytest.raises(axern.InvalidArgument):
        client.run(["true"], cpu="10m", limit_cpu="5m")
    with pytest.raises(axern.Refused) as refused:
        client.run(["true"], memory="900TiB")
    assert refused.value.code == "request_exceeds_node"
    assert refused.value.error["would_fit_if"]
    with pytest.raises(axern.DaemonUnreachable):
        axern.Client("/no/such/socket").reservations()


def test_a_program_that_is_none_is_a_result_without_a_code(client: axern.Client) -> None:
    result = client.run(["/no/such/program"], **SMALL)
    assert (result.exit_code, result.diagnostic_code) == (None, "runtime-start-error")


def test_a_detached_lease_is_renewed_by_its_token(client: axern.Client) -> None:
    first = client.reserve(ttl="30s", request_id="job-1", **SMALL)
    assert client.renew(first.id, first.token, "2m") > 100
    again = client.reserve(ttl="30s", request_id="job-1", **SMALL)
    assert again.id == first.id
    with pytest.raises(axern.PermissionDenied):
        client.renew(first.id, first.token, "2m")
    assert client.release(first.id)["released"]["already"] is False
    assert client.release(first.id)["released"]["already"] is True


def test_a_lease_within_a_lease_ends_with_it(client: axern.Client) -> None:
    with client.lease(**SMALL) as outer:
        with client.lease(parent=outer.id, cpu="6m", memory="4MiB") as inner:
            assert {row["id"]: row["parent_id"] for row in client.reservations()} == {
                outer.id: None,
                inner.id: outer.id,
            }
            with pytest.raises(axern.StateConflict, match="4m left of 10m"):
                client.reserve(parent=outer.id, cpu="6m", memory="4MiB")
        client.reserve(parent=outer.id, cpu="6m", memory="4MiB")
    assert client.reservations() == []


def test_explain_agrees_with_run(client: axern.Client) -> None:
    assert client.explain(**SMALL)["admitted"] is True
    refusal = client.explain(["sleep", "1"], memory="900TiB")["refusal"]
    with pytest.raises(axern.Refused) as refused:
        client.run(["sleep", "1"], memory="900TiB")
    assert refusal["shortfalls"] == refused.value.error["shortfalls"]


async def lose_it(client: axern.AsyncClient, lease: axern.AsyncLease) -> None:
    async with lease:
        await client.release(lease.id)
        await asyncio.wait_for(lease.lost.wait(), 60)


def test_the_asynchronous_client_does_the_same(lab: DaemonLab, client: axern.Client) -> None:
    async def scene() -> None:
        mine = axern.AsyncClient(lab.socket)
        async with mine.lease(ttl=3, **SMALL) as lease:
            await asyncio.sleep(5)
            lease.check()
            assert [row["id"] for row in await mine.reservations()] == [lease.id]
        with pytest.raises(axern.LeaseLost):
            await lose_it(mine, mine.lease(ttl=3, **SMALL))
        with pytest.raises(axern.Refused):
            await mine.run(["true"], memory="900TiB")
        first = await mine.reserve(ttl="30s", **SMALL)
        assert await mine.renew(first.id, first.token, "2m") > 100
        await mine.release(first.id)
        assert (await mine.explain(**SMALL))["admitted"] is True
        with pytest.raises(axern.DaemonUnreachable):
            await axern.AsyncClient("/no/such/socket").reservations()

    asyncio.run(scene())


def test_a_cancelled_call_cancels_its_run(lab: DaemonLab, client: axern.Client) -> None:
    async def scene() -> None:
        mine, seen = axern.AsyncClient(lab.socket), asyncio.Event()
        work = asyncio.create_task(
            mine.run(["sh", "-c", "echo on; sleep 600"], on_output=lambda *_: seen.set(), **SMALL)
        )
        await asyncio.wait_for(seen.wait(), 60)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(scene())
    lab.wait_empty()
