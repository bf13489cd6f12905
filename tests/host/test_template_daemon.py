"""Templates through a real daemon: imported, used, counted, removed, and nothing half done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from axern.api.client import ApiError, Client
from tests.host import images
from tests.host.conftest import command_lines, wait_until
from tests.host.daemon import DaemonLab, daemon_lab
from tests.host.images import TAG, Entry
from tests.tidy.sources import ROOT

pytestmark = pytest.mark.host

SMALL = ("--request-cpu", "10m", "--request-memory", "16MiB")


@pytest.fixture(scope="module")
def lab() -> Iterator[DaemonLab]:
    with daemon_lab() as found:
        found.start()
        yield found


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A root file system that a sandbox can run from."""
    folder = tmp_path / "rootfs"
    (folder / "bin").mkdir(parents=True)
    shutil.copy("/bin/busybox", folder / "bin/sh")
    return str(folder)


@pytest.fixture
def slow_image(tmp_path: Path) -> str:
    """An image that takes a while to unpack."""
    path = tmp_path / "slow"
    entries = [Entry(f"d{number % 100}/{number}", b"x" * 600) for number in range(30_000)]
    images.write(str(path), images.layer(entries))
    return str(path)


def templates(lab: DaemonLab) -> dict[str, dict[str, Any]]:
    found = lab.request("GET", "/v2/templates")["templates"]
    return {entry["name"]: entry for entry in found}


def staged(lab: DaemonLab) -> list[str]:
    """Return what is half made or half removed."""
    return [name for name in os.listdir(lab.layout.templates) if name.startswith(".")]


def add(lab: DaemonLab, name: str, source: str) -> dict[str, Any]:
    done = lab.axern("template", "add", name, "--from", source, "-o", "json")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert ("template" in answer) == (done.returncode == 0), done
    return answer


def test_from_a_folder_to_a_run_and_away(lab: DaemonLab, source: str, runtime: str) -> None:
    name = f"mine.{runtime}"
    done = lab.axern("template", "add", name, "--from", source)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().startswith(f"template {name}: 2 entries, ")
    assert done.stderr.decode().splitlines()[0] == "axern: copying"
    assert stat.S_IMODE(os.stat(f"{lab.layout.templates}/{name}").st_mode) == 0o700
    shown = lab.axern("template", "get", name).stdout.decode()
    assert f"source:   {source}\n" in shown
    words = ("run", "--template", name, "--runtime-class", runtime, *SMALL)
    ran = lab.axern(*words, "--", "sh", "-c", "echo hello; exit 7")
    assert (ran.returncode, ran.stdout) == (7, b"hello\n"), ran.stderr
    taken = lab.axern("template", "add", name, "--from", source)
    assert taken.returncode == 5
    assert b"there is a template" in taken.stderr
    wait_until(lambda: not templates(lab)[name]["users"])
    removed = lab.axern("template", "remove", name)
    assert (removed.returncode, removed.stdout.decode()) == (0, f"template {name} removed\n")
    assert name not in os.listdir(lab.layout.templates)
    assert lab.axern("template", "remove", name).returncode == 5
    assert staged(lab) == []


def test_one_that_is_used_stays(lab: DaemonLab, source: str) -> None:
    add(lab, "used", source)
    words = ("run", "--detach", "--template", "used", "--runtime-class", "runc", *SMALL)
    run_id = lab.axern(*words, "--", "sh", "-c", "sleep 600").stdout.decode().strip()
    inside = f"{lab.layout.templates}/used/rootfs"
    own = ("run", "--detach", "--rootfs", inside, "--runtime-class", "runc", *SMALL)
    other_id = lab.axern(*own, "--", "sh", "-c", "sleep 600").stdout.decode().strip()
    assert templates(lab)["used"]["users"] == 2
    refused = lab.axern("template", "remove", "used", "-o", "json")
    assert refused.returncode == 5
    error = json.loads(refused.stdout)["error"]
    assert error["code"] == "state_conflict"
    assert "is used by 2 live runs" in error["message"]
    assert run_id[:12] in error["message"]
    for one in (run_id, other_id):
        lab.request("DELETE", f"/v2/runs/{one}?grace_ms=0")
    wait_until(lambda: not templates(lab)["used"]["users"])
    assert lab.axern("template", "remove", "used").returncode == 0
    assert lab.run(run_id)["template"] == "used"


def test_removal_and_admission_exclude_each_other(lab: DaemonLab, source: str) -> None:
    """Whatever the order, no run lives on without its template."""
    for number in range(4):
        add(lab, "raced", source)
        runs: list[str] = []

        def launch(found: list[str] = runs) -> None:
            words = ("run", "--detach", "--template", "raced", "--runtime-class", "runc", *SMALL)
            done = lab.axern(*words, "--", "sh", "-c", "sleep 600")
            found.append(done.stdout.decode().strip() if done.returncode == 0 else "")

        starter = threading.Thread(target=launch)
        starter.start()
        while starter.is_alive() and number % 2 and not lab.reservations():
            pass
        removed = lab.axern("template", "remove", "raced").returncode == 0
        starter.join()
        assert removed != bool(runs[0]), runs
        if runs[0]:
            assert os.path.isdir(f"{lab.layout.templates}/raced/rootfs")
            lab.wait_status(runs[0], "running")
            lab.request("DELETE", f"/v2/runs/{runs[0]}?grace_ms=0")
            lab.wait_empty()
            assert lab.axern("template", "remove", "raced").returncode == 0


def test_the_built_in_one_stays(lab: DaemonLab) -> None:
    refused = lab.axern("template", "remove", "busybox")
    assert refused.returncode == 5
    assert b"built in" in refused.stderr


def test_an_image_gives_runs_its_variables(lab: DaemonLab, tmp_path: Path, source: str) -> None:
    path = str(tmp_path / "image")
    busybox = Path(source, "bin/sh").read_bytes()
    entries = [Entry("opt", type=b"5"), Entry("opt/sh", busybox)]
    images.write(path, images.layer(entries), config={"Env": ["PATH=/opt", "A=1", "B=2"]})
    made = add(lab, "image", f"oci:{path}:{TAG}")["template"]
    assert made["env"] == {"PATH": "/opt", "A": "1", "B": "2"}
    words = ("run", "--template", "image", "--env", "B=3", "--runtime-class", "runc", *SMALL)
    ran = lab.axern(*words, "--", "sh", "-c", "echo $PATH $A $B")
    assert (ran.returncode, ran.stdout) == (0, b"/opt 1 3\n"), ran.stderr


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/nowhere", "/nowhere is not a directory"),
        ("/etc/passwd", "/etc/passwd is not a directory"),
        ("oci:/usr", "is not an OCI layout"),
        ("{oci}", "is an OCI layout and no root file system"),
        ("docker-archive:/usr", "is not a docker archive"),
        ("docker://debian", "nothing is downloaded"),
        ("oci:", "a path is missing"),
        ("/", "lie in each other"),
    ],
)
def test_sources_that_are_none(lab: DaemonLab, tmp_path: Path, source: str, words: str) -> None:
    images.write(str(tmp_path / "oci"), images.layer([]))
    source = source.replace("{oci}", str(tmp_path / "oci"))
    done = lab.axern("template", "add", "fine", "--from", source)
    assert done.returncode == 2
    assert words in done.stderr.decode()
    assert done.stderr.decode().startswith("axern: --from: ")
    assert staged(lab) == []


def test_names_that_are_none(lab: DaemonLab) -> None:
    for name in ("..", ".x", "a/b", "A", "x-", "x" * 64, "a\nb", ""):
        for words in (("add", name, "--from", "/usr/share/doc"), ("get", name), ("remove", name)):
            done = lab.axern("template", *words)
            assert done.returncode in (2, 5), (words, done)
            assert done.stderr.decode().startswith("axern: "), (words, done)
    assert staged(lab) == []


def test_a_host_without_the_programs(lab: DaemonLab, monkeypatch: pytest.MonkeyPatch) -> None:
    from axern.errors import CapabilityMissing
    from axern.runtime import command, template_image

    monkeypatch.setitem(command.ENVIRONMENT, "PATH", "/nowhere")
    with pytest.raises(CapabilityMissing, match="this host has no skopeo") as caught:
        template_image.require_programs()
    assert caught.value.hint is not None
    assert "apt install skopeo umoci" in caught.value.hint


def events_of(lab: DaemonLab, name: str, image: str) -> Any:
    source = {"kind": "oci", "path": image, "reference": TAG}
    client = Client(lab.socket)
    return client, client.events(
        "/v2/templates", method="POST", body={"name": name, "source": source}
    )


def importing(lab: DaemonLab) -> list[int]:
    """Return the processes that import something for this lab."""
    mine = f"{lab.layout.templates}/.building".encode()
    return [pid for pid, words in command_lines() if mine in words]


def test_an_import_ends_with_its_client(lab: DaemonLab, slow_image: str) -> None:
    first, events = events_of(lab, "slow", slow_image)
    wait_until(lambda: json.loads(next(events).data)["step"] == "unpack")
    with pytest.raises(ApiError, match="imported already"):
        events_of(lab, "slow", slow_image)
    second, _ = events_of(lab, "slow.2", slow_image)
    wait_until(lambda: len(staged(lab)) == 2)
    with pytest.raises(ApiError, match="2 imports are under way") as caught:
        events_of(lab, "slow.3", slow_image)
    assert caught.value.code == "busy"
    first.close()
    second.close()
    wait_until(lambda: staged(lab) == [])
    assert importing(lab) == []
    assert "slow" not in templates(lab)


def test_ctrl_c_cancels_an_import(lab: DaemonLab, slow_image: str) -> None:
    with lab.popen("template", "add", "slow", "--from", f"oci:{slow_image}:{TAG}") as process:
        wait_until(lambda: importing(lab) != [])
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert b"nothing of it is left" in stderr
    wait_until(lambda: staged(lab) == [])


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_daemon_that_ends_leaves_nothing(slow_image: str, end: str) -> None:
    with daemon_lab() as lab:
        daemon = lab.start()
        client, events = events_of(lab, "slow", slow_image)
        wait_until(lambda: json.loads(next(events).data)["step"] == "unpack")
        if end == "stop":
            assert lab.stop(daemon) == 0
            assert staged(lab) == []
        else:
            lab.kill(daemon)
            assert len(staged(lab)) == 1
        wait_until(lambda: importing(lab) == [])
        client.close()
        lab.start()
        wait_until(lambda: staged(lab) == [])
        assert list(templates(lab)) == ["busybox"]


@pytest.mark.long
def test_the_python_recipe(lab: DaemonLab, tmp_path: Path, runtime: str) -> None:
    rootfs = tmp_path / "python"
    recipe = ROOT / "docs/recipes/python-template.sh"
    subprocess.run(["bash", str(recipe), str(rootfs)], check=True)
    name = f"python-{runtime}"
    add(lab, name, str(rootfs))
    words = ("run", "--template", name, "--runtime-class", runtime, *SMALL)
    ran = lab.axern(*words, "--", "python3", "-c", "import ssl; print(1+1)")
    assert (ran.returncode, ran.stdout) == (0, b"2\n"), ran.stderr
