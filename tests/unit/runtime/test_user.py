"""Who a workload is, by files that the workload may have made: nothing outside, no surprise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axern.errors import RootfsRefused
from axern.runtime import user
from axern.runtime.user import Identity, resolve

PASSWD = b"""root:x:0:0:root:/root:/bin/sh
guest:x:7:8::/home/guest:/bin/sh
nohome:x:20:20:::/bin/sh
relative:x:21:21::home:/bin/sh
ugly:x:22:22::/a\x1bb:/bin/sh
latin:x:23:23::/\xff:/bin/sh
far:x:65536:1::/:/bin/sh
farther:x:1:99999999999999999999::/:/bin/sh
short:x:1
seven:x:seven:7::/:/bin/sh
guest:x:70:80::/second:/bin/sh
"""
GROUP = b"""root:x:0:
staff:x:9:guest
audio:x:10:guest
own:x:8:guest
again:x:9:guest
far:x:65536:guest
bad:x:-1:guest
broken
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_bytes(PASSWD)
    (tmp_path / "etc/group").write_bytes(GROUP)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root", Identity(0, 0, (), "/root")),
        ("0", Identity(0, 0, (), "/root")),
        ("guest", Identity(7, 8, (9, 10), "/home/guest")),
        ("7", Identity(7, 8, (9, 10), "/home/guest")),
        ("guest:staff", Identity(7, 9, (), "/home/guest")),
        ("guest:0", Identity(7, 0, (), "/home/guest")),
        ("500", Identity(500, 0, (), "/")),
        ("500:600", Identity(500, 600, (), "/")),
        ("nohome", Identity(20, 20, (), "/")),
        ("relative", Identity(21, 21, (), "/")),
        ("ugly", Identity(22, 22, (), "/")),
        ("latin", Identity(23, 23, (), "/")),
    ],
)
def test_names_and_ids(root: Path, text: str, expected: Identity) -> None:
    assert resolve(text, str(root)) == expected


@pytest.mark.parametrize(
    "text", ["nobody", "far", "farther", "short", "seven", "guest:none", "0:far"]
)
def test_what_the_root_does_not_know_is_told(root: Path, text: str) -> None:
    with pytest.raises(RootfsRefused, match="is not in /etc/") as caught:
        resolve(text, str(root))
    assert caught.value.hint


def test_an_id_needs_no_files(tmp_path: Path) -> None:
    assert resolve("5", str(tmp_path)) == Identity(5, 0, (), "/")
    assert resolve("5:6", str(tmp_path)) == Identity(5, 6, (), "/")
    with pytest.raises(RootfsRefused, match="user a is not in"):
        resolve("a", str(tmp_path))


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # inside the root there is none


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("make", [fifo, folder, loop, huge])
def test_what_is_no_plain_small_file_is_refused(root: Path, make: Callable[[Path], None]) -> None:
    (root / "etc/passwd").unlink()
    make(root / "etc/passwd")
    with pytest.raises(RootfsRefused, match="/etc/passwd of the root file system"):
        resolve("guest", str(root))


@pytest.mark.parametrize(
    "target", ["/outside/passwd", "../../outside/passwd", "/proc/self/environ"]
)
def test_a_link_ends_inside_the_root(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/passwd").write_bytes(PASSWD)
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/passwd").symlink_to(target)
    with pytest.raises(RootfsRefused, match="user guest is not in"):
        resolve("guest", str(root))
    (root / "outside").mkdir()
    (root / "outside/passwd").write_bytes(b"guest:x:1:1::/:\n")
    if "outside" in target:
        assert resolve("guest", str(root)).uid == 1


@given(passwd=st.binary(max_size=400), group=st.binary(max_size=400))
def test_whatever_the_files_hold_ids_stay_in_range(
    tmp_path_factory: pytest.TempPathFactory, passwd: bytes, group: bytes
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_bytes(b"guest:x:1:" + passwd + b":::\n" + passwd)
    (root / "etc/group").write_bytes(group + b"\nx:x:" + group + b":guest\n")
    try:
        found = resolve("guest", str(root))
    except RootfsRefused:
        return
    assert all(0 <= number <= 65_535 for number in (found.uid, found.gid, *found.groups))
    assert found.home.startswith("/")
    assert found.home.isprintable()


def test_groups_are_bounded(root: Path) -> None:
    lines = b"".join(b"g%d:x:%d:guest\n" % (number, number) for number in range(3_000))
    (root / "etc/group").write_bytes(lines)
    assert len(resolve("guest", str(root)).groups) == user._GROUPS_LIMIT
