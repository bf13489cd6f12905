"""What people and programs are told of releases, evidence, history and the doctor."""

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from axern.cli.actions import closely
from axern.cli.actions.release import release
from axern.cli.actions.where import Where
from axern.config import load
from axern.errors import DaemonUnreachable
from axern.runtime.configured import sole_user_of
from ledger.clock import Now
from ledger.store import Ledger
from ledger.testing import observing, reserving, small_node, small_proposal
from tests.cli.command import Axern
from tests.cli.fake import AT, FakeDaemon
from tests.cli.test_show import RESERVATION

ID = str(RESERVATION["id"])
STEP = {
    "at": AT,
    "generation": 3,
    "operation": "stop",
    "by": "uid:0",
    "phase": "stopping",
    "note": "released by uid 0: \x1b[2Jgone",
    "reason": None,
}


def released(name: str = ID, *, already: bool = False) -> dict[str, Any]:
    return {
        "reservation": RESERVATION | {"phase": "released"},
        "released": {
            "id": name,
            "at": AT,
            "by": "daemon",
            "evidence": "released by uid 0; nothing left",
            "already": already,
        },
    }


def test_each_is_told_and_the_worst_counts(axern: Axern, fake: FakeDaemon) -> None:
    waiting = {"reservation": RESERVATION | {"phase": "retiring"}, "released": None}
    fake.releases = {
        "0123": [(202, waiting), (202, waiting), (200, released())],
        "4567": [(200, released("4567" + "0" * 28, already=True))],
    }
    done = axern.run("reservations", "release", "0123", "89ab", "4567", "0123", "--grace", "1s")
    assert done.returncode == 5
    assert done.stdout.decode().splitlines() == [
        f"{ID}: released by uid 0; nothing left",
        f"4567{'0' * 28}: already released at {AT}: released by uid 0; nothing left",
    ]
    assert b"[not_found]" in done.stderr
    asked = [path for method, path, _ in fake.requests if method == "DELETE"]
    assert asked == [
        f"/v2/reservations/{word}?grace_ms=1000"
        for word in ("0123", "0123", "0123", "89ab", "4567")
    ]


def test_programs_are_told_the_same(axern: Axern, fake: FakeDaemon) -> None:
    fake.releases = {"0123": [(200, released())]}
    words = ("0123", "89ab", "--force", "--reason", "a b&c", "-o", "json")
    done = axern.run("reservations", "release", *words)
    assert done.returncode == 5
    good, bad = json.loads(done.stdout)["results"]
    assert (good["id"], good["error"], good["released"]["already"]) == (ID, None, False)
    assert (bad["id"], bad["released"], bad["error"]["code"]) == ("89ab", None, "not_found")
    assert fake.requests[1][1] == "/v2/reservations/0123?force=true&reason=a+b%26c"


def test_who_interrupts_is_told_that_it_goes_on(axern: Axern, fake: FakeDaemon) -> None:
    waiting = {"reservation": RESERVATION | {"phase": "stopping"}, "released": None}
    fake.releases = {"0123": [(202, waiting)] * 10_000}
    with axern.start("reservations", "release", "0123") as process:
        while len(fake.requests) < 3:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"hint: axern reservations inspect 0123" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["0123", "--force"], b"--force needs --reason TEXT"),
        (["0123", "--force", "--reason", ""], b"must not have an empty value"),
        (["0123", "--reason", "x" * 257], b"--reason: 257 characters"),
        (["0123", "--reason", "a\nb"], b"without control characters"),
        (["xyz"], b"is not an id"),
        (["0123", "--grace", "soon"], b"--grace"),
        ([], b"ID"),
    ],
)
def test_misuse_asks_for_nothing(
    axern: Axern, fake: FakeDaemon, words: list[str], told: bytes
) -> None:
    done = axern.run("reservations", "release", *words)
    assert done.returncode == 2
    assert told in done.stderr
    assert [method for method, _, _ in fake.requests if method == "DELETE"] == []


def test_an_entry_from_all_sides(axern: Axern, fake: FakeDaemon) -> None:
    group = {"path": "/cg/a", "exists": True, "inode": 7, "populated": True, "processes": 2}
    fake.reservations = [RESERVATION]
    fake.closely = {
        "exit": {"status": "cancelled", "exit_code": 137},
        "evidence": {
            "last_heartbeat_age_ms": 1500,
            "deadline_in_ms": -2000,
            "owner_process": None,
            "monitor": {"pid": 5, "alive": False},
            "monitor_cgroup": group | {"exists": False},
            "cgroup": group | {"inode_matches": False},
            "stray_pids": [],
            "mounts": ["/m"],
            "sandbox_folder": "/s",
            "store": "/f",
            "store_bytes": 4096,
            "exit_file": None,
            "run_folder": "/r",
        },
        "history": {"steps": [STEP], "omitted": 2, "damage": ["journal-1: cut"]},
    }
    done = axern.run("reservations", "inspect", "0123")
    assert done.returncode == 0
    shown = done.stdout.decode()
    for words in (
        "last heartbeat:  1s ago",
        "deadline:        2s ago",
        "monitor:         5, gone",
        "cgroup:          /cg/a, 2 processes",
        "cgroup inode:    another one",
        "written:         4KiB",
        "not shown: 2 older steps",
        "released by uid 0: \\x1b[2Jgone",
    ):
        assert words in shown
    assert b"the journal is damaged" in done.stderr
    answer = axern.json("reservations", "inspect", "0123", "-o", "json")
    assert answer["history"]["steps"] == [STEP]
    assert fake.requests[-1][1] == "/v2/reservations/0123?evidence=true&history=true"


def test_the_doctor(axern: Axern, fake: FakeDaemon) -> None:
    done = axern.run("reservations", "doctor")
    assert (done.returncode, done.stdout[:27]) == (0, b"ledger and host agree: noth")
    warning = {
        "code": "leaked-files",
        "severity": "warning",
        "id": ID,
        "found": "no entry, but /x",
        "remedy": f"axern reservations release {ID}",
    }
    fake.findings = [warning]
    done = axern.run("reservations", "doctor")
    assert done.returncode == 1
    assert done.stdout.decode().splitlines() == [
        f"warning: leaked-files  {ID}",
        "found:   no entry, but /x",
        f"remedy:  axern reservations release {ID}",
    ]
    fake.findings.append(warning | {"severity": "problem"})
    done = axern.run("reservations", "doctor", "-o", "json")
    assert done.returncode == 3
    assert len(json.loads(done.stdout)["findings"]) == 2


@pytest.fixture
def alone(short_root: Path) -> Axern:
    """The command line of root on a host whose daemon is down, with one lease in its ledger."""
    config = short_root / "axern.toml"
    config.write_text(
        f'state_dir = "{short_root}/state"\nrun_dir = "{short_root}/run"\n'
        f'cgroup_root = "axern-test-{os.getpid()}"\n'
    )
    (short_root / "state").mkdir()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    clocks = (time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_REALTIME)
    now = Now(boot_id, *(time.clock_gettime_ns(clock) // 1_000_000 for clock in clocks))
    with Ledger.open(short_root / "state" / "ledger", now, node_id="node-1") as ledger:
        ledger.commit(observing(small_node()), now)
        ledger.commit(reserving(small_proposal(0xAAAA << 112), now), now)
    return Axern(("--config", str(config)))


def test_offline_a_lease_is_released_once(alone: Axern) -> None:
    assert axern_phase(alone) == "reserved"
    done = alone.run("reservations", "release", "aaaa")
    assert (done.returncode, done.stdout.count(b"released by uid 0")) == (0, 1)
    assert b"under its lock" in done.stderr
    again = alone.json("reservations", "release", "aaaa", "-o", "json")["results"]
    assert again[0]["released"]["already"]
    assert axern_phase(alone) == "released"
    assert alone.run("reservations", "release", "bbbb").returncode == 5
    assert alone.run("reservations", "doctor").returncode == 0


def axern_phase(alone: Axern) -> str:
    answer = alone.json("reservations", "inspect", "aaaa", "-o", "json")
    assert answer["history"]["steps"][0]["operation"] == "reserve"
    return str(answer["reservation"]["phase"])


def test_offline_waits_for_the_lock_and_names_its_holder(alone: Axern) -> None:
    settings = load(alone.options[1])
    with sole_user_of(settings.run_dir, "something else"):
        done = alone.run("reservations", "release", "aaaa")
    assert done.returncode == 1
    assert f"something else, process {os.getpid()}".encode() in done.stderr
    assert alone.run("reservations", "release", "aaaa").returncode == 0


def test_the_lock_holds_where_nothing_can_be_noted_in_it(
    alone: Axern, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    settings = load(alone.options[1])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with sole_user_of(settings.run_dir, "something else"):
            assert alone.run("reservations", "release", "aaaa").returncode == 1
    assert alone.run("reservations", "release", "aaaa").returncode == 0


def test_offline_is_for_root(
    alone: Axern, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process: a test's Python may be one that no other user can run."""
    where = Where(config=alone.options[1])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DaemonUnreachable, match="only root may release"):
        release(
            where, reservation_ids=("aaaa",), force=False, reason=None, grace=None, output="json"
        )
    with pytest.raises(DaemonUnreachable, match="only root may examine"):
        closely.doctor(where, output="json")
    closely.inspect(where, reservation_id="aaaa", output="json")
    answer = json.loads(capfd.readouterr().out)
    assert answer["evidence"] is None
    assert [step["operation"] for step in answer["history"]["steps"]] == ["reserve"]
