"""Without a daemon the ledger's files are read, and nothing is changed."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.api.views import node_view, reservation_view
from ledger.clock import Now
from ledger.reservation import UNOBSERVED
from ledger.store import Ledger
from ledger.testing import ManualClock, observing, reserving, small_node, small_proposal
from tests.cli.command import Axern

FIRST = 0xAAAA << 112
SECOND = 0xAAAB << 112
HOUR_MS = 3_600_000


def read_clocks() -> Now:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    clocks = (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME)
    return Now(boot_id, *(time.clock_gettime_ns(clock) // 1_000_000 for clock in clocks))


@pytest.fixture
def now() -> Now:
    return read_clocks()


@pytest.fixture
def ledger(short_root: Path, now: Now) -> Iterator[Ledger]:
    """Yield a ledger with two leases, still held by its writer."""
    (short_root / "state").mkdir()
    with Ledger.open(short_root / "state" / "ledger", now, node_id="node-1") as found:
        found.commit(observing(small_node()), now)
        found.commit(reserving(small_proposal(FIRST, ttl_ms=HOUR_MS), now), now)
        found.commit(reserving(small_proposal(SECOND), now), now)
        yield found


@pytest.fixture
def axern(short_root: Path) -> Axern:
    config = short_root / "axern.toml"
    config.write_text(f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n')
    return Axern(("--config", str(config)))


def traces(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything below *folder*."""
    found = {str(path): path.stat() for path in folder.rglob("*")}
    return {path: (status.st_size, status.st_mtime_ns) for path, status in found.items()}


def test_reservations_are_those_of_the_daemon(
    axern: Axern, ledger: Ledger, now: Now, short_root: Path
) -> None:
    before = traces(short_root)
    answer = axern.json("reservations", "list", "-o", "json")
    assert (answer["source"], answer["generation"]) == ("ledger-file", ledger.generation)
    expected = [reservation_view(row, UNOBSERVED, now) for row in ledger.state.reservations()]
    # Wall and boot time are two readings: a deadline may be a millisecond off.
    for row, wanted in zip(answer["reservations"], expected, strict=True):
        assert (row.pop("expires_at") is None) == (wanted.pop("expires_at") is None)
        assert row == wanted
    assert traces(short_root) == before


def test_the_node_is_that_of_the_daemon(axern: Axern, ledger: Ledger) -> None:
    answer = axern.json("node", "capacity", "-o", "json")
    view = answer["node"]
    assert view["node_id"] == "node-1"
    assert view["capabilities"] is None
    expected = node_view(ledger.state)
    assert {key: view[key] for key in expected} == json.loads(json.dumps(expected))


def test_people_are_told(axern: Axern, ledger: Ledger) -> None:
    told = f"source: ledger-file, generation {ledger.generation}\n".encode()
    for words in (
        ["reservations"],
        ["reservations", "list", "--format", "ndjson"],
        ["reservations", "inspect", "aaaa0"],
        ["node", "capacity"],
    ):
        done = axern.run(*words)
        assert (done.returncode, done.stderr) == (0, told)
        assert b"ledger-file" not in done.stdout


def test_filters(axern: Axern, ledger: Ledger) -> None:
    def count(*words: str) -> int:
        return len(axern.json("reservations", "list", "-o", "json", *words)["reservations"])

    assert count("--namespace", "default", "--phase", "reserved") == 2
    assert count("--namespace", "other") == 0
    assert count("--phase", "running") == 0


@pytest.mark.parametrize(
    ("prefix", "exit_code"), [("aaaa", 0), ("AAAB0", 0), ("aaa", 2), ("abcd", 5)]
)
def test_beginnings_of_ids(axern: Axern, ledger: Ledger, prefix: str, exit_code: int) -> None:
    assert axern.run("reservations", "inspect", prefix).returncode == exit_code


def test_an_ambiguous_beginning_is_refused(axern: Axern, ledger: Ledger, now: Now) -> None:
    ledger.commit(reserving(small_proposal(FIRST + 1), now), now)
    done = axern.run("reservations", "inspect", "aaaa0")
    assert done.returncode == 2
    assert b"2 reservations" in done.stderr


def deadline(axern: Axern) -> str:
    rows: list[dict[str, Any]] = axern.json("reservations", "list", "-o", "json")["reservations"]
    return str(rows[0]["expires_at"])


def test_a_deadline_is_in_wall_time(axern: Axern, ledger: Ledger, now: Now) -> None:
    expected = time.gmtime((now.wall_ms + HOUR_MS) / 1000)
    assert deadline(axern).startswith(time.strftime("%Y-%m-%dT%H:%M", expected))


def test_after_a_reboot_the_last_commit_is_the_present(axern: Axern, short_root: Path) -> None:
    clock = ManualClock()
    (short_root / "state").mkdir()
    with Ledger.open(short_root / "state" / "ledger", clock(), node_id="node-1") as ledger:
        ledger.commit(observing(small_node()), clock())
        ledger.commit(reserving(small_proposal(FIRST, ttl_ms=HOUR_MS), clock()), clock())
    expected = time.gmtime((clock().wall_ms + HOUR_MS) / 1000)
    assert deadline(axern).startswith(time.strftime("%Y-%m-%dT%H:%M:%S", expected))


def test_damage_is_7(axern: Axern, ledger: Ledger, short_root: Path) -> None:
    path = short_root / "state" / "ledger" / "ledger.json"
    text = path.read_text()
    path.write_text(text.replace("node-1", "node-2"))
    done = axern.run("reservations", "list", "-o", "json")
    assert done.returncode == 7
    assert json.loads(done.stdout)["error"]["code"] == "ledger_corrupt"
    assert b"[ledger_corrupt]" in done.stderr


def test_what_needs_a_daemon_is_6(axern: Axern, ledger: Ledger) -> None:
    for words in (["node", "status"], ["run", "list"], ["template", "list"]):
        assert axern.run(*words).returncode == 6
