"""`axern ledger` beside a real daemon with real sandboxes, and after one was killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.host.mounts import unmount_below
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab(stop_grace="300ms", tick="500ms") as made:
        yield made


def answer(lab: DaemonLab, *words: str, code: int = 0) -> Any:
    done = lab.axern("ledger", *words, "-o", "json")
    assert done.returncode == code, done
    return json.loads(done.stdout)


def test_beside_a_daemon_and_after_a_repair(lab: DaemonLab, tmp_path: Path) -> None:
    daemon = lab.start()
    ended = lab.detach("runc", "true")
    lab.wait_status(ended, "succeeded")
    lab.wait_empty()
    kept = lab.detach("runc", "sleep", "600")
    lab.wait_status(kept, "running")

    found = answer(lab, "check")
    assert (found["findings"], found["host"], found["reservations"]) == ([], "daemon", 1)
    outcome = answer(lab, "replay")
    assert (outcome["difference"], outcome["decisions"], outcome["reservations"]) == (None, 2, 1)
    steps = [each["operation"] for each in answer(lab, "log", ended)["operations"]]
    assert steps == ["reserve", "start", "run", "retire", "release"]
    exported = tmp_path / "head.json"
    exported.write_text(json.dumps(answer(lab, "export-head")), encoding="utf-8")
    assert answer(lab, "verify-head", str(exported))["verdict"] == "verified"
    assert lab.axern("ledger", "repair", "--apply", "--reason", "x").returncode == 1  # it is held

    given_up = lab.detach("runc", "sleep", "600")
    lab.wait_status(given_up, "running")
    lab.kill(daemon)
    damage(lab, given_up)
    daemon = lab.start()  # it serves reads
    assert [each["code"] for each in answer(lab, "check", code=7)["findings"]] == [
        "checkpoint-damaged"
    ]
    done = answer(lab, "repair", "--apply", "--reason", "a bad sector")
    assert done["applied"]
    assert {each for lost in done["plan"]["dropped"] for each in lost["ids"]} <= {given_up}

    lab.stop(daemon)
    codes = {(each["code"], each["id"]) for each in answer(lab, "check", code=3)["findings"]}
    assert codes == {("leaked-sandbox", given_up)}
    words = ("reservations", "release", given_up, "--force", "--reason", "its entry is gone")
    assert lab.axern(*words).returncode == 0
    lab.start()
    lab.wait_status(kept, "running")
    found = answer(lab, "check")
    assert (found["findings"], found["reservations"]) == ([], 1)
    assert answer(lab, "replay")["difference"] is None
    assert answer(lab, "verify-head", str(exported))["verdict"] == "verified"


def damage(lab: DaemonLab, reservation_id: str) -> None:
    """Flip a bit in both checkpoints and in the line that admitted *reservation_id*."""
    folder = Path(lab.layout.state_dir, "ledger")
    admitted = f'"key":"{reservation_id}"'.encode()
    lines = [each for each in folder.rglob("journal-*") if admitted in each.read_bytes()]
    flip(min(lines, key=lambda each: each.name), admitted)
    for name in ("ledger.json", "ledger.json.prev"):
        flip(folder / name, b'"node_id"')


def flip(path: Path, text: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(text) + 2] ^= 1
    path.write_bytes(data)


def test_a_mount_that_is_gone_is_found(lab: DaemonLab) -> None:
    lab.start()
    running = lab.detach("runc", "sleep", "600")
    lab.wait_status(running, "running")
    unmount_below(lab.layout.sandbox(running).rootfs, 10)
    found = answer(lab, "check", code=3)["findings"]
    assert {(each["code"], each["id"]) for each in found} == {("drifting-mount", running)}
