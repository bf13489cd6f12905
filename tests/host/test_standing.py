"""A node that drains keeps what it has, admits nothing, remembers it; a retired one is over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.host import filestore
from ledger import invariants, reader
from tests.host.daemon import DaemonLab, daemon_lab

pytestmark = pytest.mark.host
RUN = ("run", "--runtime-class", "runc", "--request-memory", "16MiB", "--", "true")


@pytest.fixture
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as made:
        yield made


def _node(lab: DaemonLab, *words: str) -> dict[str, Any]:
    done = lab.axern("node", *words, "-o", "json")
    assert done.returncode == 0, done
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_draining_outlives_the_daemon_and_ends_when_told(lab: DaemonLab) -> None:
    daemon = lab.start()
    kept = lab.detach("runc", "sleep", "600")
    lab.wait_status(kept, "running")
    drained = _node(lab, "drain", "--reason", "new disks")
    assert (drained["standing"]["state"], drained["entries"]) == ("draining", 1)
    lab.kill(daemon)
    daemon = lab.start()
    refused = lab.axern(*RUN)
    assert refused.returncode == 125
    assert b"node_selection_error" in refused.stderr
    assert b"this node is draining: new disks" in refused.stderr
    assert b"draining since" in lab.axern("node", "status").stdout
    assert lab.run(kept)["status"] == "running"
    retire = lab.axern("node", "retire", "--reason", "too early")
    assert (retire.returncode, b"still has 1 reservations" in retire.stderr) == (5, True)
    assert _node(lab, "undrain")["standing"]["state"] == "open"
    assert lab.axern(*RUN).returncode == 0


def test_a_retired_node_never_serves_again(lab: DaemonLab) -> None:
    daemon = lab.start()
    assert _node(lab, "retire", "--reason", "goes back")["standing"]["state"] == "retired"
    assert b"this node is retired: goes back" in lab.axern(*RUN).stderr
    assert lab.stop(daemon) == 0
    assert lab.spawn().wait(60) == 69
    assert "goes back" in lab.log()
    for words in (("undrain",), ("drain", "--reason", "x")):
        offline = lab.axern("node", *words)
        assert (offline.returncode, b"was retired at" in offline.stderr) == (5, True)
    snapshot = reader.read(f"{lab.base}/state/ledger")
    assert invariants.check(snapshot.state.all_rows(), snapshot.state.balances()) == []
    filestore.remove_tree(f"{lab.base}/state")  # where another node may begin


def test_an_older_ledger_does_not_bring_a_retired_node_back(lab: DaemonLab) -> None:
    ledger, older = f"{lab.base}/state/ledger", f"{lab.base}/older"
    assert lab.stop(lab.start()) == 0
    shutil.copytree(ledger, older)
    assert _node(lab, "retire", "--reason", "goes back")["standing"]["state"] == "retired"
    filestore.remove_tree(ledger)
    shutil.move(older, ledger)
    lab.forget_generations()
    assert _node(lab, "undrain")["standing"]["state"] == "open", "control: it knows of nothing"
    assert lab.spawn().wait(60) == 69
    assert "goes back; a ledger that says nothing of it is an older copy" in lab.log()
    filestore.remove_tree(f"{lab.base}/state")  # where another node may begin


def test_what_a_crash_left_to_remember_is_remembered_by_the_next(lab: DaemonLab) -> None:
    daemon = lab.start()
    _node(lab, "retire", "--reason", "goes back")
    lab.kill(daemon)
    (mark,) = Path(f"{lab.base}/state").glob("retired-*")
    mark.unlink()
    assert lab.spawn().wait(60) == 69
    assert "goes back" in mark.read_text(encoding="utf-8")
    filestore.remove_tree(f"{lab.base}/state")


def test_the_same_without_a_daemon(lab: DaemonLab) -> None:
    daemon = lab.start()
    kept = lab.detach("runc", "sleep", "600")
    lab.wait_status(kept, "running")
    assert lab.stop(daemon) == 0
    assert _node(lab, "drain", "--reason", "new disks")["standing"]["state"] == "draining"
    shown = json.loads(lab.axern("node", "capacity", "-o", "json").stdout)
    assert shown["node"]["standing"]["reason"] == "new disks"
    assert lab.axern("node", "retire", "--reason", "too early").returncode == 5
    daemon = lab.start()
    assert b"draining" in lab.axern(*RUN).stderr
    assert lab.stop(daemon) == 0
    assert _node(lab, "undrain")["standing"]["state"] == "open"
    lab.start()
    assert lab.axern(*RUN).returncode == 0


@pytest.mark.parametrize("words", [("drain",), ("retire", "--reason", " ")])
def test_a_reason_is_needed(lab: DaemonLab, words: tuple[str, ...]) -> None:
    done = lab.axern("node", *words)
    assert (done.returncode, b"--reason" in done.stderr) == (2, True)
