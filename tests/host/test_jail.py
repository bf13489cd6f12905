"""What a jailed process can't do, each tried for real, and that it could without the jail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.host

PROGRAM = r"""
import errno, json, os, socket, sys
base, jailed = sys.argv[1], sys.argv[2] == "jailed"
from axern.host import jail
if jailed:
    jail.confine(f"{base}/own", f"{base}/hidden")

def tried(action):
    try:
        action()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def device():
    os.mknod(f"{base}/own/null", 0o20666, os.makedev(1, 3))
    os.close(os.open(f"{base}/own/null", os.O_RDONLY))

found = {
    "write": tried(lambda: open(f"{base}/out/new", "w")),
    "change": tried(lambda: os.chmod(f"{base}/out/file", 0o600)),
    "unlink": tried(lambda: os.unlink(f"{base}/out/file")),
    "link out": tried(lambda: os.link(f"{base}/out/other", f"{base}/own/link")),
    "rename out": tried(lambda: os.rename(f"{base}/out/third", f"{base}/own/third")),
    "remove around": tried(lambda: os.rmdir(f"{base}/own")),
    "own": tried(lambda: open(f"{base}/own/new", "w")),
    "device": tried(device),
    "hidden": sorted(os.listdir(f"{base}/hidden")),
    "network": [name for _, name in socket.if_nameindex()] == ["lo"],
    "read": open(f"{base}/out/other").read(),
}
print(json.dumps(found))
"""


def tried(base: Path, how: str) -> dict[str, object]:
    for name in ("own", "out", "hidden"):
        (base / name).mkdir(parents=True)
    for name in ("file", "other", "third"):
        (base / "out" / name).write_text("text", encoding="utf-8")
    hidden = str(base / "hidden")
    subprocess.run(["mount", "-t", "tmpfs", "none", hidden], check=True)
    (base / "hidden/mounted").touch()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(base), how], check=True, capture_output=True
        )
    finally:
        subprocess.run(["umount", hidden], check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_jail_has_one_folder_and_no_network(tmp_path: Path) -> None:
    assert tried(tmp_path / "base", "jailed") == {
        "write": "EROFS",
        "change": "EROFS",
        "unlink": "EROFS",
        "link out": "EXDEV",
        "rename out": "EXDEV",
        "remove around": "EROFS",
        "own": "done",
        "device": "EACCES",
        "hidden": [],
        "network": True,
        "read": "text",
    }
    assert sorted(path.name for path in (tmp_path / "base/out").iterdir()) == [
        "file",
        "other",
        "third",
    ]


def test_control_without_it_all_of_that_works(tmp_path: Path) -> None:
    found = tried(tmp_path / "base", "free")
    worked = ("write", "change", "unlink", "link out", "rename out", "own", "device")
    assert [found[name] for name in worked] == ["done"] * len(worked)
    assert found["hidden"] == ["mounted"]
